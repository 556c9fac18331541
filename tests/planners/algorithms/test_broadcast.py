"""Broadcasts that cut the buffer: split binary tree, scatter and all-gather, circulant graph."""

from __future__ import annotations

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
from planners.algorithms.exchange_cases import RANKS, made, steps_of

BROADCAST = Collective.BROADCAST


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
    for name, messages in (
        ("scatter-allgather", 2 * rounds),
        ("scatter-ring-allgather", rounds + ranks - 1),
    ):
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
