"""Reductions: mirror images of broadcasts, rank order where it is claimed, Rabenseifner's two foldings."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.algorithms.parts.cost import Chain
from coppice.planners.algorithms.trees.single_tree import SHAPES
from coppice.schedule.schedule import Op
from coppice.schedule.verification.transfers import verify_schedule
from planners.algorithms.exchange_cases import RANKS, disordered_rows, made, steps_of

REDUCE = Collective.REDUCE
OWN = ["linear", "chain", "pipeline", "binary", "binomial", "k-nomial", "tree", "in-order-binary"]
OWN += ["rabenseifner", "circulant"]


@pytest.mark.parametrize("name", [*SHAPES, "circulant"])
@pytest.mark.parametrize("ranks", [2, 5, 8, 12])
def test_mirror_of_the_broadcast(name: str, ranks: int) -> None:
    """The messages of the broadcast, turned round, in the opposite order of steps."""
    down, broadcast = made(name, Collective.BROADCAST, ranks, root=1)
    up, reduction = made(name, REDUCE, ranks, root=1)
    messages = [{(src, dst) for src, dst in step} for step in steps_of(up)]
    mirrored = [{(dst, src) for src, dst in step} for step in steps_of(down)]
    if name == "circulant" or "segments" not in SHAPES[name].parameters:
        assert messages == mirrored[::-1]
    assert sorted(pair for step in messages for pair in step) == sorted(
        pair for step in mirrored for pair in step
    )
    assert reduction.steps == broadcast.steps
    assert reduction.sent == 1


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_table(ranks: int) -> None:
    rounds = (ranks - 1).bit_length()

    def chains(name: str, **given: int) -> tuple[Chain, ...]:
        return made(name, REDUCE, ranks, root=ranks - 1, **given)[1].chains

    def one(messages: int, pieces: int = 1) -> tuple[Chain, ...]:
        moved = Fraction(messages, pieces)
        return (Chain(messages=messages, sent=moved, reduced=moved),)

    assert chains("linear") == one(ranks - 1)
    assert chains("pipeline", segments=6) == one(ranks + 4, 6)
    assert chains("binomial") == one(rounds)
    assert chains("circulant", segments=6) == one(rounds + 5, 6)
    if ranks & (ranks + 1) == 0:
        assert chains("binary", segments=6) == one(2 * (ranks.bit_length() - 1 + 5), 6)


@pytest.mark.parametrize("name", OWN)
def test_rank_order_is_claimed_where_it_holds(name: str) -> None:
    """A claim is always right; where none is made, some number of ranks breaks the order."""
    broken = claimed = 0
    for ranks in RANKS:
        for root in sorted({0, ranks // 2, ranks - 1}):
            schedule, _ = made(name, REDUCE, ranks, root=root)
            if schedule.ordered:
                claimed += 1
                assert disordered_rows(schedule) == 0
            elif disordered_rows(schedule):
                broken += 1
                assert not verify_schedule(replace(schedule, ordered=True)).ok
    if name in ("linear", "in-order-binary", "rabenseifner"):
        assert not broken
    else:
        assert broken
    assert claimed or name == "circulant"


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["linear", "in-order-binary", "rabenseifner"])
@pytest.mark.spread(3)
def test_rank_order_for_any_root(name: str, ranks: int) -> None:
    for root in range(ranks):
        assert made(name, REDUCE, ranks, root=root)[0].ordered


@pytest.mark.parametrize("name", ["chain", "pipeline", "binomial", "k-nomial"])
def test_rank_order_for_root_0(name: str) -> None:
    for ranks in RANKS:
        assert made(name, REDUCE, ranks, root=0)[0].ordered


def test_linear_adds_neighbours_first() -> None:
    schedule, _ = made("linear", REDUCE, 7, root=4)
    assert schedule.src.tolist() == [5, 6, 3, 2, 1, 0]


def test_in_order_binary_moves_the_result_from_the_last_rank() -> None:
    ranks, segments = 9, 4
    at_last, there = made("in-order-binary", REDUCE, ranks, root=ranks - 1, segments=segments)
    elsewhere, cost = made("in-order-binary", REDUCE, ranks, root=2, segments=segments)
    *steps, move = steps_of(elsewhere)
    assert steps == steps_of(at_last)
    assert move == {(ranks - 1, 2): list(range(segments))}
    (one,), (other,) = there.chains, cost.chains
    assert (other.messages, other.sent, other.reduced) == (one.messages + 1, one.sent + 1, one.reduced)


@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("blocks", [1, 4, 9])
def test_circulant_root_adds_in_every_step(ranks: int, blocks: int) -> None:
    schedule, cost = made("circulant", REDUCE, ranks, root=0, segments=blocks)
    steps = steps_of(schedule)
    assert len(steps) == cost.steps == blocks - 1 + (ranks - 1).bit_length()
    assert all(sum(dst == 0 for _, dst in step) == 1 for step in steps)
    sent = sorted((src, *chunks) for step in steps for (src, _), chunks in step.items())
    assert sent == [(rank, block) for rank in range(1, ranks) for block in range(blocks)]


@pytest.mark.parametrize("ranks", RANKS[1:])
@pytest.mark.parametrize("folding", ["mpich", "open-mpi"])
def test_rabenseifner(ranks: int, folding: str) -> None:
    """2 lg p messages with 2 (p - 1)/p M; a whole buffer is folded in, or a half there and a half back.

    A root that is folded in takes over from rank 0, which costs a message of M/p.
    """
    depth, root = ranks.bit_length() - 1, ranks // 2
    core = 1 << depth
    moved = int(root % 2 == 1 and root < 2 * (ranks - core))
    part = 1 - Fraction(1, 1 << depth)
    folds = int(ranks > 1 << depth)
    halves = folding == "open-mpi"
    schedule, cost = made("rabenseifner", REDUCE, ranks, root=root, folding=folding)  # type: ignore[arg-type]
    assert cost.steps == len(steps_of(schedule)) == 2 * depth + folds * (2 if halves else 1) + moved
    assert cost.chains == (
        Chain(
            messages=cost.steps,
            sent=2 * part + folds + Fraction(moved, core),
            reduced=part + (Fraction(folds, 2) if halves else folds),
        ),
    )


def test_rabenseifner_gathers_along_a_tree_of_ranks_at_the_root() -> None:
    """As libraries do, ranks are numbered from 0 whatever the root is; a folded root takes over from rank 0."""
    steps = steps_of(made("rabenseifner", REDUCE, 4, root=1)[0])
    assert steps[2:] == [{(3, 1): [3], (2, 0): [1]}, {(0, 1): [0, 1]}]
    steps = steps_of(made("rabenseifner", REDUCE, 5, root=1)[0])
    assert steps[0] == {(1, 0): [0, 1, 2, 3]}
    assert steps[3:] == [{(0, 1): [0]}, {(3, 1): [1], (4, 2): [3]}, {(2, 1): [2, 3]}]


def test_in_order_binary_gives_the_lower_half_one_more() -> None:
    """Six ranks: below the last one are the subtrees of ranks 0 .. 2 and 3 .. 4, each with its last rank on top."""
    steps = steps_of(made("in-order-binary", REDUCE, 6, root=5, segments=1)[0])
    assert sorted(pair for step in steps for pair in step) == [(0, 2), (1, 2), (2, 5), (3, 4), (4, 5)]


def test_parameters_of_a_reduction_have_no_distance() -> None:
    """Only the order that keeps intervals together is mirrored."""
    for name in ("binomial", "k-nomial"):
        assert "distance" in algorithms()[name, Collective.BROADCAST].parameters
        assert "distance" not in algorithms()[name, REDUCE].parameters


SCATTER = Collective.REDUCE_SCATTER
ORDERED = ("butterfly", "recursive-doubling", "nonoverlapping", "linear")
UNORDERED = ("pairwise", "recursive-halving", "circulant")


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ORDERED)
def test_operands_stay_in_rank_order(name: str, ranks: int) -> None:
    schedule, _ = made(name, SCATTER, ranks)
    assert schedule.ordered
    assert disordered_rows(schedule) == 0


@pytest.mark.parametrize("name", UNORDERED)
def test_others_do_not_claim_it(name: str) -> None:
    schedule, _ = made(name, SCATTER, 8)
    assert not schedule.ordered
    assert disordered_rows(schedule) > 0


def test_disorder_is_seen() -> None:
    """The rows of a linear reduction in another order no longer join neighbours."""
    schedule, _ = made("linear", SCATTER, 4)
    first = np.flatnonzero(schedule.step == 0)
    src = schedule.src.copy()
    src[first] = src[first][::-1]
    dst = schedule.dst.copy()
    assert disordered_rows(replace(schedule, src=src, dst=dst)) > 0


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("name", ["recursive-halving", "butterfly", "circulant"])
def test_fewest_steps_and_bytes(name: str, ranks: int) -> None:
    schedule, cost = made(name, SCATTER, ranks)
    depth, moved = ranks.bit_length() - 1, Fraction(ranks - 1, ranks)
    assert cost.steps == depth
    assert cost.sent == moved
    assert cost.chains == (Chain(messages=depth, sent=moved, reduced=moved),)
    assert schedule.num_transfers == ranks * (ranks - 1)


@pytest.mark.parametrize("ranks", RANKS)
def test_circulant_needs_no_folding(ranks: int) -> None:
    schedule, cost = made("circulant", SCATTER, ranks)
    assert cost.steps == (ranks - 1).bit_length()
    assert schedule.num_transfers == ranks * (ranks - 1)


@pytest.mark.parametrize("ranks", RANKS)
def test_pairwise(ranks: int) -> None:
    schedule, cost = made("pairwise", SCATTER, ranks)
    for i, step in enumerate(steps_of(schedule)):
        assert step == {(rank, (rank + i + 1) % ranks): [(rank + i + 1) % ranks] for rank in range(ranks)}
    moved = Fraction(ranks - 1, ranks)
    assert cost.chains == ((Chain(messages=ranks - 1, sent=moved, reduced=moved),) if ranks > 1 else ())


def test_halving_and_butterfly_keep_different_halves() -> None:
    far = steps_of(made("recursive-halving", SCATTER, 8)[0])
    assert far[0][0, 4] == [4, 5, 6, 7]
    assert far[1][0, 2] == [2, 3]
    assert far[2][0, 1] == [1]
    near = steps_of(made("butterfly", SCATTER, 8)[0])
    assert sorted(near[0][0, 1]) == [1, 3, 5, 7]
    assert sorted(near[1][0, 2]) == [2, 6]
    assert near[2][0, 4] == [4]


def test_butterfly_of_six_gives_blocks_back_by_the_mirror() -> None:
    """Runs {0,1}, {2,3}, {4}, {5}: runs 1 and 2 have each other's blocks in the end; folded ranks come first."""
    steps = steps_of(made("butterfly", SCATTER, 6)[0])
    everything = list(range(6))
    assert steps[0] == {(0, 1): everything, (2, 3): everything}
    assert steps[1] == {(1, 3): [4, 5], (3, 1): [0, 1, 2, 3], (4, 5): [4, 5], (5, 4): [0, 1, 2, 3]}
    assert steps[2] == {(1, 4): [2, 3], (4, 1): [0, 1], (3, 5): [5], (5, 3): [4]}
    assert steps[3] == {(1, 0): [0], (4, 2): [2], (4, 3): [3], (3, 4): [4]}
    assert list(steps[3])[:2] == [(1, 0), (4, 2)]


def test_butterfly_of_four_can_exchange_in_the_end() -> None:
    schedule, cost = made("butterfly", SCATTER, 4, mirror="exchange")  # type: ignore[arg-type]
    steps = steps_of(schedule)
    assert steps[0] == {(0, 1): [2, 3], (1, 0): [0, 1], (2, 3): [2, 3], (3, 2): [0, 1]}
    assert steps[2] == {(1, 2): [2], (2, 1): [1]}
    assert schedule.ordered
    assert (cost.steps, cost.sent) == (3, 1)
    assert cost.chains == (Chain(messages=3, sent=Fraction(1), reduced=Fraction(3, 4)),)
    for ranks in (1, 2):
        assert made("butterfly", SCATTER, ranks, mirror="exchange")[1] == made("butterfly", SCATTER, ranks)[1]  # type: ignore[arg-type]


def test_recursive_halving_of_six_gives_blocks_back_to_the_folded() -> None:
    steps = steps_of(made("recursive-halving", SCATTER, 6)[0])
    assert steps[1] == {(1, 4): [4, 5], (4, 1): [0, 1, 2, 3], (3, 5): [4, 5], (5, 3): [0, 1, 2, 3]}
    assert steps[2] == {(1, 3): [2, 3], (3, 1): [0, 1], (4, 5): [5], (5, 4): [4]}
    assert steps[3] == {(1, 0): [0], (3, 2): [2]}


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 9, 13, 17, 24])
def test_folded_cost_is_the_formula(ranks: int) -> None:
    core = 2 ** (ranks.bit_length() - 1)
    depth, rest = core.bit_length() - 1, ranks - core
    added = ranks + sum(2**i + min(2**i, rest) for i in range(depth))
    for name, last in (("recursive-halving", 1), ("butterfly", min(rest, 2))):
        cost = made(name, SCATTER, ranks)[1]
        assert cost.steps == depth + 2
        assert cost.sent == 1
        chain = Chain(
            messages=1 + depth + last, sent=Fraction(added + last, ranks), reduced=Fraction(added, ranks)
        )
        assert cost.chains == (chain,)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64])
def test_recursive_doubling_sends_what_is_not_final(ranks: int) -> None:
    schedule, cost = made("recursive-doubling", SCATTER, ranks)
    depth, moved = ranks.bit_length() - 1, Fraction(ranks - 1, ranks)
    assert cost.sent == depth - moved
    added = depth * (1 + Fraction(1, ranks)) - 2 * moved
    assert cost.chains == (Chain(messages=depth, sent=depth - moved, reduced=added),)
    for i, step in enumerate(steps_of(schedule)):
        for (src, dst), chunks in step.items():
            assert dst == src ^ (1 << i)
            assert sorted(chunks) == [block for block in range(ranks) if block >> i != src >> i]


def test_recursive_doubling_adds_only_what_is_of_use() -> None:
    """In the last step a rank needs nothing but its own block."""
    schedule, _ = made("recursive-doubling", SCATTER, 8)
    last = (schedule.step == 2) & (schedule.op == Op.REDUCE)
    assert (schedule.chunk[last] == schedule.dst[last]).all()
    assert last.sum() == 8


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_through_one_rank(ranks: int) -> None:
    others, share = ranks - 1, Fraction(ranks - 1, ranks)
    depth = others.bit_length()
    linear, tree = (made(name, SCATTER, ranks)[1] for name in ("linear", "nonoverlapping"))
    assert linear.chains == (Chain(messages=2 * others, sent=others + share, reduced=Fraction(others)),)
    assert tree.chains == (Chain(messages=depth + others, sent=depth + share, reduced=Fraction(depth)),)
    assert (linear.steps, tree.steps) == (2, depth + 1)
    assert linear.sent == tree.sent == 1
