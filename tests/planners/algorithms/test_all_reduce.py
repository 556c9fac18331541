"""All-reduces: steps and bytes of the literature, foldings, rank order, exchanges without idle engines."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.planners.algorithms.parts.cost import Chain
from coppice.planners.algorithms.parts.radix import partners
from coppice.planners.algorithms.trees.single_tree import SHAPES
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset
from planners.algorithms.exchange_cases import RANKS, disordered_rows, made, steps_of

ALL_REDUCE = Collective.ALL_REDUCE
MANY = RANKS[1:]


def one(messages: int, sent: Fraction | int, reduced: Fraction | int) -> tuple[Chain, ...]:
    return (Chain(messages=messages, sent=Fraction(sent), reduced=Fraction(reduced)),)


def lower_power(ranks: int) -> tuple[int, int]:
    """Exponent of the largest power of two up to ``ranks``, and 1 where it is less."""
    depth = ranks.bit_length() - 1
    return depth, int(ranks > 1 << depth)


@pytest.mark.parametrize("ranks", MANY)
def test_whole_buffers(ranks: int) -> None:
    depth, folds = lower_power(ranks)
    rounds = depth + folds
    _, linear = made("linear", ALL_REDUCE, ranks)
    assert (linear.steps, linear.chains) == (2, one(2 * (ranks - 1), 2 * (ranks - 1), ranks - 1))
    _, trees = made("nonoverlapping", ALL_REDUCE, ranks)
    assert (trees.steps, trees.chains) == (2 * rounds, one(2 * rounds, 2 * rounds, rounds))
    schedule, doubling = made("recursive-doubling", ALL_REDUCE, ranks)
    assert doubling.steps == len(steps_of(schedule)) == depth + 2 * folds
    assert doubling.chains == one(depth + 2 * folds, depth + 2 * folds, depth + folds)
    schedule, direct = made("allgather-reduce", ALL_REDUCE, ranks)
    assert (direct.steps, direct.chains) == (1, one(ranks - 1, ranks - 1, ranks - 1))
    assert schedule.num_transfers == ranks * (ranks - 1)


@pytest.mark.parametrize("ranks", MANY)
def test_halved_buffers(ranks: int) -> None:
    """Rabenseifner: whole buffers folded cost 2 n beta and n gamma more, halves the same beta and half the gamma."""
    depth, folds = lower_power(ranks)
    part = 1 - Fraction(1, 1 << depth)
    _, mpich = made("rabenseifner", ALL_REDUCE, ranks, folding="mpich")  # type: ignore[arg-type]
    assert mpich.steps == 2 * depth + 2 * folds
    assert mpich.chains == one(mpich.steps, 2 * part + 2 * folds, part + folds)
    _, open_mpi = made("rabenseifner", ALL_REDUCE, ranks, folding="open-mpi")  # type: ignore[arg-type]
    assert open_mpi.steps == 2 * depth + 3 * folds
    assert open_mpi.chains == one(open_mpi.steps, 2 * part + 2 * folds, part + Fraction(folds, 2))
    _, radix_2 = made("k-reduce-scatter-allgather", ALL_REDUCE, ranks, radix=2)
    assert radix_2 == mpich


@pytest.mark.parametrize("ranks", MANY)
def test_fewest_bytes(ranks: int) -> None:
    moved = Fraction(ranks - 1, ranks)
    rounds = (ranks - 1).bit_length()
    _, circulant = made("circulant", ALL_REDUCE, ranks)
    assert circulant.sent == 2 * moved
    assert (circulant.steps, circulant.chains) == (2 * rounds, one(2 * rounds, 2 * moved, moved))
    _, ring = made("segmented-ring", ALL_REDUCE, ranks, segments=3)
    steps = 4 * (ranks - 1)
    assert (ring.steps, ring.sent, ring.chains) == (steps, 2 * moved, one(steps, 2 * moved, moved))


@pytest.mark.parametrize(
    ("ranks", "radix", "depth"), [(9, 3, 2), (16, 4, 2), (64, 4, 3), (27, 3, 3), (5, 5, 1)]
)
def test_groups_of_k(ranks: int, radix: int, depth: int) -> None:
    messages, part = (radix - 1) * depth, Fraction(ranks - 1, ranks)
    schedule, whole = made("recursive-multiplying", ALL_REDUCE, ranks, radix=radix)
    assert (whole.steps, whole.chains) == (depth, one(messages, messages, messages))
    for phase, step in enumerate(steps_of(schedule)):
        span = radix**phase
        assert {abs(src - dst) % span for src, dst in step} == {0}
        assert {abs(src - dst) // span for src, dst in step} == set(range(1, radix))
    _, parts = made("k-reduce-scatter-allgather", ALL_REDUCE, ranks, radix=radix)
    assert (parts.steps, parts.chains) == (2 * depth, one(2 * messages, 2 * part, part))


@pytest.mark.parametrize("ranks", MANY)
@pytest.mark.parametrize("radix", [3, 4, 5])
def test_groups_of_k_after_folding(ranks: int, radix: int) -> None:
    """Members of a run send to its leader one after the other; parts then travel in turns."""
    core, depth = 1, 0
    while core * min(radix, ranks) <= ranks:
        core, depth = core * min(radix, ranks), depth + 1
    extra = min(min(radix, ranks) - 1, ranks - core)
    schedule, parts = made("k-reduce-scatter-allgather", ALL_REDUCE, ranks, radix=radix)
    share = Fraction(core - 1, core)
    messages = 2 * (min(radix, ranks) - 1) * depth + 2 * extra
    assert parts.chains == one(messages, 2 * (share + extra), share + extra)
    assert len(steps_of(schedule)) == parts.steps
    if extra:
        assert max(sum(dst == leader for _, dst in steps_of(schedule)[0]) for leader in range(ranks)) == extra
        with pytest.raises(InputError, match=rf"powers of {radix} ranks only, found {ranks}.*radix 2\.$"):
            made("recursive-multiplying", ALL_REDUCE, ranks, radix=radix)


def test_recursive_doubling_folds_the_even_into_the_odd() -> None:
    steps = steps_of(made("recursive-doubling", ALL_REDUCE, 6)[0])
    assert set(steps[0]) == {(0, 1), (2, 3)}
    assert set(steps[1]) == {(1, 3), (3, 1), (4, 5), (5, 4)}
    assert set(steps[2]) == {(1, 4), (4, 1), (3, 5), (5, 3)}
    assert set(steps[3]) == {(1, 0), (3, 2)}


def test_rabenseifner_folds_whole_buffers_or_halves() -> None:
    whole, halves = (
        steps_of(made("rabenseifner", ALL_REDUCE, 6, folding=folding)[0])  # type: ignore[arg-type]
        for folding in ("mpich", "open-mpi")
    )
    everything, first, second = [0, 1, 2, 3], [0, 1], [2, 3]
    assert whole[0] == {(0, 1): everything, (2, 3): everything}
    assert whole[-1] == {(1, 0): everything, (3, 2): everything}
    assert {src for src, _ in whole[1]} == {1, 3, 4, 5}
    assert halves[0] == {(0, 1): second, (2, 3): second, (1, 0): first, (3, 2): first}
    assert halves[1] == {(1, 0): second, (3, 2): second}
    assert halves[-1] == {(0, 1): everything, (2, 3): everything}
    assert {src for src, _ in halves[2]} == {0, 2, 4, 5}


@pytest.mark.parametrize("ranks", RANKS)
def test_rank_order(ranks: int) -> None:
    for name in ("linear", "nonoverlapping", "recursive-doubling", "allgather-reduce"):
        assert made(name, ALL_REDUCE, ranks)[0].ordered
    for folding in ("mpich", "open-mpi"):
        assert made("rabenseifner", ALL_REDUCE, ranks, folding=folding)[0].ordered  # type: ignore[arg-type]
    for name in ("tree", "circulant", "segmented-ring", "k-reduce-scatter-allgather"):
        schedule, _ = made(name, ALL_REDUCE, ranks)
        assert not (schedule.ordered and disordered_rows(schedule))
    # Where buffers go round a circle, somebody adds the first rank's to the last one's.
    for name in ("circulant", "segmented-ring"):
        assert bool(disordered_rows(made(name, ALL_REDUCE, ranks)[0])) == (ranks > 2)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("radix", [3, 4, 6])
def test_recursive_multiplying_keeps_rank_order(ranks: int, radix: int) -> None:
    """Also where ranks are folded in, though the cost is then not stated."""
    entry = find("recursive-multiplying", ALL_REDUCE)
    problem = Problem(topology=preset("star", gpus=ranks), collective=ALL_REDUCE)
    schedule = entry.build(case_of(entry, problem, {"radix": radix}))
    assert isinstance(schedule, Schedule)
    report = verify_schedule(schedule)
    assert report.ok, report.failures
    assert report.ordered
    assert disordered_rows(schedule) == 0
    core, depth = 1, 0
    while ranks > 1 and core * min(radix, ranks) <= ranks:
        core, depth = core * min(radix, ranks), depth + 1
    assert len(steps_of(schedule)) == depth + 2 * (core < ranks)


@pytest.mark.parametrize("radix", range(1, 12))
def test_exchanges_in_order_are_rotations_when_served(radix: int) -> None:
    """Into each member nearest first on either side; yet served greedily, round i is the rotation by i."""
    receiver, sender = (digits.tolist() for digits in partners(radix))
    for member in range(radix):
        into = [src for dst, src in zip(receiver, sender, strict=True) if dst == member]
        assert into == [*range(member + 1, radix), *range(member - 1, -1, -1)]
    waiting = list(zip(sender, receiver, strict=True))
    for rotation in range(1, radix):
        sending: set[int] = set()
        receiving: set[int] = set()
        for src, dst in list(waiting):
            if src not in sending and dst not in receiving:
                sending.add(src)
                receiving.add(dst)
                waiting.remove((src, dst))
                assert (src - dst) % radix == rotation
        assert len(sending) == radix
    assert not waiting


@pytest.mark.parametrize("up", SHAPES)
@pytest.mark.parametrize("down", ["binomial", "chain"])
def test_any_reduce_before_any_broadcast(up: str, down: str) -> None:
    """Each cuts the buffer as it likes; costs add up."""
    ranks = 7
    schedule, cost = made("nonoverlapping", ALL_REDUCE, ranks, reduce=up, broadcast=down)  # type: ignore[arg-type]
    first, reduction = made(up, Collective.REDUCE, ranks)
    second, broadcast = made(down, Collective.BROADCAST, ranks)
    assert schedule.num_chunks == np.lcm(first.num_chunks, second.num_chunks)
    assert cost.steps == reduction.steps + broadcast.steps
    (whole,), (one_way,), (other_way,) = cost.chains, reduction.chains, broadcast.chains
    assert whole.messages == one_way.messages + other_way.messages
    assert whole.sent == one_way.sent + other_way.sent
    assert whole.reduced == one_way.reduced
    adds = schedule.op == Op.REDUCE
    assert schedule.step[adds].max() < schedule.step[~adds].min()


@pytest.mark.parametrize("shape", ["k-ary", "k-nomial"])
@pytest.mark.parametrize("ranks", [2, 3, 7, 15, 16])
def test_tree_goes_up_and_down(shape: str, ranks: int) -> None:
    """2 (height + S - 1) steps; a full binary tree takes 2 (height + S - 1) messages each way."""
    segments = 5
    schedule, cost = made("tree", ALL_REDUCE, ranks, shape=shape, segments=segments)  # type: ignore[arg-type]
    assert len(steps_of(schedule)) == cost.steps
    if shape == "k-ary" and ranks in (3, 7, 15):
        height = ranks.bit_length() - 1
        assert cost.steps == 2 * (height + segments - 1)
        messages = 4 * (height + segments - 1)
        assert cost.chains == one(messages, Fraction(messages, segments), Fraction(messages, 2 * segments))


def test_segmented_ring_reduces_a_segment_in_each_phase() -> None:
    ranks, segments = 4, 3
    steps = steps_of(made("segmented-ring", ALL_REDUCE, ranks, segments=segments)[0])
    for step in range(segments * (ranks - 1)):
        assert {chunk % segments for chunks in steps[step].values() for chunk in chunks} == {
            step // (ranks - 1)
        }
    for last in steps[segments * (ranks - 1) :]:
        assert all(len(chunks) == segments for chunks in last.values())
