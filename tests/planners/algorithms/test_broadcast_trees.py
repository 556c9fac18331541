"""Tree shapes and how fast they work, counted edge by edge; the broadcasts along them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.planners.algorithms.exchanges.circulant import (
    baseblocks,
    receive_table,
    send_table,
    skips,
    transfers,
)
from coppice.planners.algorithms.parts.cost import Chain
from coppice.planners.algorithms.parts.trees import (
    Pace,
    PositionTree,
    by_depth,
    chains,
    chains_pace,
    growing_k_nomial,
    k_ary,
    k_ary_pace,
    k_nomial,
    k_nomial_by_depth_pace,
    k_nomial_pace,
    preorder_binary,
    preorder_binary_pace,
)
from planners.algorithms.exchange_cases import RANKS, made, steps_of

BROADCAST = Collective.BROADCAST


def growing_pace(size: int, radix: int) -> Pace:
    """That of the other k-nomial tree, but for the most children of a node that is not the root."""
    below = children(growing_k_nomial(size, radix), size)
    return replace(k_nomial_pace(size, radix), inner=max(map(len, below[1:]), default=0))


SHAPES = {
    "2-ary": (lambda size: k_ary(size, 2), lambda size: k_ary_pace(size, 2)),
    "3-ary": (lambda size: k_ary(size, 3), lambda size: k_ary_pace(size, 3)),
    "star": (lambda size: k_ary(size, max(size - 1, 1)), lambda size: k_ary_pace(size, max(size - 1, 1))),
    "1 chain": (lambda size: chains(size, 1), lambda size: chains_pace(size, 1)),
    "4 chains": (lambda size: chains(size, 4), lambda size: chains_pace(size, 4)),
    "binomial": (lambda size: k_nomial(size, 2), lambda size: k_nomial_pace(size, 2)),
    "4-nomial": (lambda size: k_nomial(size, 4), lambda size: k_nomial_pace(size, 4)),
    "growing binomial": (lambda size: growing_k_nomial(size, 2), lambda size: growing_pace(size, 2)),
    "growing 3-nomial": (lambda size: growing_k_nomial(size, 3), lambda size: growing_pace(size, 3)),
    "binomial by depth": (
        lambda size: by_depth(k_nomial(size, 2)),
        lambda size: k_nomial_by_depth_pace(size, 2),
    ),
    "3-nomial by depth": (
        lambda size: by_depth(k_nomial(size, 3)),
        lambda size: k_nomial_by_depth_pace(size, 3),
    ),
    "preorder binary": (preorder_binary, preorder_binary_pace),
}
EVERY_SHAPE = [pytest.param(*both, id=name) for name, both in SHAPES.items()]
EVERY_TREE = [pytest.param(tree, id=name) for name, (tree, _) in SHAPES.items()]


def children(tree: PositionTree, size: int) -> list[list[int]]:
    """Children of every node, in the order in which a broadcast serves them."""
    found: list[list[int]] = [[] for _ in range(size)]
    for _, parent, child in sorted(
        zip(tree.level.tolist(), tree.parent.tolist(), tree.child.tolist(), strict=True),
        key=lambda edge: edge[0],
    ):
        found[parent].append(child)
    return found


def subtree(below: list[list[int]], node: int) -> list[int]:
    return sorted([node, *(each for child in below[node] for each in subtree(below, child))])


def last_arrival(below: list[list[int]], node: int) -> int:
    """Messages in a row until all of a subtree have what its root has."""
    return max((place + last_arrival(below, child) for place, child in enumerate(below[node], 1)), default=0)


def completion(below: list[list[int]], node: int) -> int:
    """Messages in a row until a node has added its subtree, taking the children as they are ready."""
    busy = 0
    for ready in sorted(completion(below, child) for child in below[node]):
        busy = max(busy, ready) + 1
    return busy


@pytest.mark.parametrize("shape", EVERY_TREE)
def test_trees_reach_every_node_once_and_in_time(shape: Callable[[int], PositionTree]) -> None:
    for size in range(1, 71):
        tree = shape(size)
        assert sorted(tree.child.tolist()) == list(range(1, size))
        assert (tree.parent < tree.child).all()
        reached = dict.fromkeys([0], -1)
        for parent, child, level in sorted(
            zip(tree.parent.tolist(), tree.child.tolist(), tree.level.tolist(), strict=True),
            key=lambda edge: edge[2],
        ):
            assert reached[parent] < level
            reached[child] = level


@pytest.mark.parametrize(("shape", "pace"), EVERY_SHAPE)
def test_pace_is_that_of_the_edges(shape: Callable[[int], PositionTree], pace: Callable[[int], Pace]) -> None:
    for size in range(1, 71):
        tree = shape(size)
        below = children(tree, size)
        counts = [len(each) for each in below]
        assert pace(size) == Pace(
            height=tree.height,
            degree=counts[0],
            inner=max(counts[1:], default=0),
            arrival=last_arrival(below, 0),
            completion=completion(below, 0),
        ), size
        assert pace(size).degree >= pace(size).inner


@pytest.mark.parametrize("shape", EVERY_TREE)
def test_contiguous_subtrees_are_intervals(shape: Callable[[int], PositionTree]) -> None:
    intervals = False
    for size in range(1, 40):
        below = children(shape(size), size)
        intervals = True
        for node in range(size):
            held = [node]
            for child in sorted(below[node]):
                held += subtree(below, child)
            intervals &= held == list(range(node, node + len(held)))
        assert intervals or not shape(size).contiguous
    assert shape(39).contiguous == intervals


def test_siblings_of_a_k_ary_tree_differ_by_one_node() -> None:
    for radix in (2, 3, 5):
        for size in range(1, 60):
            below = children(k_ary(size, radix), size)
            for node in range(size):
                sizes = [len(subtree(below, child)) for child in below[node]]
                assert sizes == sorted(sizes, reverse=True)
                assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("segments", [1, 5])
def test_table_of_trees(ranks: int, segments: int) -> None:
    """Steps and messages as the literature counts them."""
    rounds = (ranks - 1).bit_length()

    def counted(name: str, **given: int) -> tuple[int, Fraction, tuple[Chain, ...]]:
        _, cost = made(name, BROADCAST, ranks, root=ranks // 2, **given)
        return cost.steps, cost.sent, cost.chains

    def one(messages: int, pieces: int = 1) -> tuple[Chain, ...]:
        return (Chain(messages=messages, sent=Fraction(messages, pieces)),)

    assert counted("linear") == (1, ranks - 1, one(ranks - 1))
    pipeline = ranks + segments - 2
    assert counted("pipeline", segments=segments) == (pipeline, 1, one(pipeline, segments))
    assert counted("binomial") == (rounds, rounds, one(rounds))
    if ranks & (ranks - 1) == 0 and rounds % 2 == 0:
        assert counted("k-nomial") == (rounds // 2, 3 * rounds // 2, one(3 * rounds // 2))
    if ranks & (ranks + 1) == 0:
        height = ranks.bit_length() - 1
        messages = 2 * (height + segments - 1)
        assert counted("binary", segments=segments) == (height + segments - 1, 2, one(messages, segments))
    if ranks % 4 == 1:
        length = (ranks - 1) // 4
        messages = length + 3 + 4 * (segments - 1)
        assert counted("chain", segments=segments) == (length + segments - 1, 4, one(messages, segments))


def test_binomial_starts_far_or_near() -> None:
    """MPICH's order serves the other half first, Open MPI's the neighbour."""
    far, _ = made("binomial", BROADCAST, 8, root=3)
    near, _ = made("binomial", BROADCAST, 8, root=3, distance="growing")
    assert list(steps_of(far)[0]) == [(3, 7)]
    assert list(steps_of(near)[0]) == [(3, 4)]
    assert set(steps_of(far)[2]) == {(3, 4), (5, 6), (7, 0), (1, 2)}
    assert set(steps_of(near)[2]) == {(3, 7), (4, 0), (5, 1), (6, 2)}


def test_k_nomial_serves_the_farthest_first() -> None:
    schedule, _ = made("k-nomial", BROADCAST, 16, root=0, radix=4)
    assert schedule.dst[schedule.src == 0].tolist() == [12, 8, 4, 3, 2, 1]


def test_pieces_follow_each_other_down_a_chain() -> None:
    schedule, _ = made("chain", BROADCAST, 7, root=0, fanout=2, segments=3)
    steps = steps_of(schedule)
    assert steps[0] == {(0, 1): [0], (0, 4): [0]}
    assert steps[2] == {(0, 1): [2], (0, 4): [2], (1, 2): [1], (4, 5): [1], (2, 3): [0], (5, 6): [0]}


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_split_binary_sends_each_half_down_one_half(ranks: int) -> None:
    segments, root = 3, ranks - 1
    schedule, cost = made("split-binary", BROADCAST, ranks, root=root, segments=segments)
    halves = {part: set(range(part * segments, (part + 1) * segments)) for part in (0, 1)}
    *down, swap = steps_of(schedule)
    received: dict[int, set[int]] = {}
    for step in down:
        for (_, dst), chunks in step.items():
            received.setdefault((dst - root) % ranks, set()).update(chunks)
    assert received == {node: halves[1 - node % 2] for node in range(1, ranks)}
    partners = {((src - root) % ranks, (dst - root) % ranks) for src, dst in swap}
    alone = {(0, ranks - 1)} if ranks % 2 == 0 else set()
    assert partners == alone | {
        pair for node in range(1, ranks - 1, 2) for pair in ((node, node + 1), (node + 1, node))
    }
    assert all(len(chunks) == segments for chunks in swap.values())
    assert cost.sent <= Fraction(3, 2)


def test_split_binary_halves_the_bytes_of_binary() -> None:
    """With many segments: M beta for two halves and M/2 for the swap, where the binary tree takes 2 M."""
    segments = 10_000
    _, split = made("split-binary", BROADCAST, 3, segments=segments)
    _, plain = made("binary", BROADCAST, 3, segments=segments)
    (chain,), (whole,) = split.chains, plain.chains
    assert chain.sent == Fraction(3, 2)
    assert whole.sent == 2


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_van_de_geijn(ranks: int) -> None:
    """Bytes 2 (P - 1)/P M after 2 ceil(lg P), or ceil(lg P) + P - 1 messages."""
    rounds = (ranks - 1).bit_length()
    moved = Fraction(2 * (ranks - 1), ranks)
    for name, messages in (("scatter-allgather", 2 * rounds), ("scatter-ring-allgather", rounds + ranks - 1)):
        schedule, cost = made(name, BROADCAST, ranks, root=ranks // 3)
        assert cost.steps == len(steps_of(schedule))
        if name == "scatter-allgather" and ranks & (ranks - 1):
            continue
        assert cost.steps == messages
        assert cost.sent == moved
        assert cost.chains == (Chain(messages=messages, sent=moved),)


def test_scatter_leaves_block_v_at_the_vth_rank_after_the_root() -> None:
    ranks, root = 6, 4
    steps = steps_of(made("scatter-allgather", BROADCAST, ranks, root=root)[0])
    held = {root: set(range(ranks))}
    for step in steps[:3]:
        for (src, dst), chunks in step.items():
            assert set(chunks) <= held[src]
            held[dst] = set(chunks)
            held[src] -= set(chunks)
    assert held == {(root + block) % ranks: {block} for block in range(ranks)}


def test_all_gather_of_a_power_of_two_is_recursive_doubling() -> None:
    steps = steps_of(made("scatter-allgather", BROADCAST, 8, root=0)[0])[3:]
    for bit, step in enumerate(steps):
        assert set(step) == {(rank, rank ^ (1 << bit)) for rank in range(8)}
        for (src, _), chunks in step.items():
            assert chunks == [src >> bit << bit | low for low in range(1 << bit)]


def test_all_gather_of_five_passes_on_what_the_small_subtree_had() -> None:
    """Rank 4 is alone: it exchanges with 0 alone, and 0, 2 and 1 tell the others, far ones first."""
    steps = steps_of(made("scatter-allgather", BROADCAST, 5, root=0)[0])
    assert steps[3:] == [
        {(0, 1): [0], (1, 0): [1], (2, 3): [2], (3, 2): [3]},
        {(0, 2): [0, 1], (1, 3): [0, 1], (2, 0): [2, 3], (3, 1): [2, 3]},
        {(0, 4): [0, 1, 2, 3], (4, 0): [4]},
        {(0, 2): [4]},
        {(0, 1): [4], (2, 3): [4]},
    ]


def test_skips_of_seventeen() -> None:
    assert skips(17) == [1, 2, 3, 5, 9, 17]


@pytest.mark.parametrize("ranks", [*range(2, 130), 255, 256, 257, 1000, 1024])
def test_conditions_of_the_circulant_schedule(ranks: int) -> None:
    """What makes the rounds fit together for any number of blocks."""
    period = (ranks - 1).bit_length()
    base, received, sent = baseblocks(ranks), receive_table(ranks), send_table(ranks)
    assert received.shape == sent.shape == (ranks, period)
    all_negative = set(range(-period, 0))
    for rank in range(ranks):
        own = int(base[rank])
        blocks = received[rank].tolist()
        # Over a period a rank receives every block of the period before but one, for which it gets its base block.
        assert len(set(blocks)) == period
        if rank:
            assert set(blocks) == all_negative - {own - period} | {own}
        # It sends what it received earlier in the period, or its base block of the period before.
        for k, block in enumerate(sent[rank].tolist()):
            if rank:
                assert block == own - period or block in blocks[:k]
        # And both tables speak of the same transfer.
        for k, skip in enumerate(skips(ranks)[:-1]):
            assert sent[rank, k] == received[(rank + skip) % ranks, k]
    assert sent[0].tolist() == list(range(period))


@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 20])
def test_circulant_rounds(ranks: int, blocks: int) -> None:
    """Everybody gets every block once, from one who had it, with one message in and one out at a time."""
    period = (ranks - 1).bit_length()
    held = {0: set(range(blocks))}
    ends: set[tuple[str, int, int]] = set()
    arrived: list[tuple[int, int, int]] = []
    now = 0
    for turn, src, dst, block in zip(*(column.tolist() for column in transfers(ranks, blocks)), strict=True):
        if turn != now:
            for _, rank, piece in arrived:
                held.setdefault(rank, set()).add(piece)
            arrived, now = [], turn
        assert block in held[src]
        assert block not in held.get(dst, set())
        assert ("from", turn, src) not in ends
        assert ("to", turn, dst) not in ends
        ends |= {("from", turn, src), ("to", turn, dst)}
        arrived.append((turn, dst, block))
    for _, rank, piece in arrived:
        held.setdefault(rank, set()).add(piece)
    assert now == blocks - 2 + period
    assert held == {rank: set(range(blocks)) for rank in range(ranks)}
    _, cost = made("circulant", BROADCAST, ranks, root=ranks // 2, segments=blocks)
    rounds = blocks - 1 + period
    assert cost.chains == (Chain(messages=rounds, sent=Fraction(rounds, blocks)),)


@pytest.mark.parametrize("name", ["linear", "tree", "split-binary", "scatter-allgather", "circulant"])
def test_any_root_is_a_rotation(name: str) -> None:
    ranks, shift = 11, 4
    here, there = (steps_of(made(name, BROADCAST, ranks, root=root)[0]) for root in (0, shift))
    for one, other in zip(here, there, strict=True):
        turned = {
            ((src + shift) % ranks, (dst + shift) % ranks): chunks for (src, dst), chunks in one.items()
        }
        assert turned == other
