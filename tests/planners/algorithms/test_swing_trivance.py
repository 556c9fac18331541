"""Swing and Trivance: what their papers say of steps, bytes and links, counted on rings, tori and a crossbar."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.catalogue import case_of, find, make
from coppice.planners.algorithms.exchanges.swing import partners
from coppice.planners.algorithms.exchanges.trivance import distances, radices
from coppice.planners.algorithms.parts.cost import Chain
from coppice.schedule.schedule import Schedule, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from planners.algorithms.exchange_cases import made

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
)
NAMES = ("swing", "trivance")
TORI = [(2, 2), (2, 4), (3, 3), (4, 4), (3, 5), (5, 6), (1, 7), (2, 3, 4), (3, 3, 3), (4, 4, 4), (5, 2, 3)]


def built(name: str, topology: Topology, collective: Collective, **given: int | str) -> Schedule:
    """A schedule whose GPUs may relay, verified."""
    entry = find(name, collective)
    body = make(
        entry, case_of(entry, Problem(topology=topology, collective=collective), given), relay_gpus=True
    )
    assert isinstance(body, Schedule)
    report = verify_schedule(body, relay_gpus=True)
    assert report.ok, report.failures
    assert not report.redundant
    return body


def link_loads(schedule: Schedule) -> Counter[tuple[int, int]]:
    """Chunks that cross every link, counted along the routes, per chunk of the whole buffer."""
    body = routed(schedule, relay_gpus=True)
    found: Counter[tuple[int, int]] = Counter()
    for path in body.path.tolist():
        nodes = body.path_nodes[body.path_start[path] : body.path_start[path + 1]].tolist()
        found.update(pairwise(nodes))
    return found


def log_ceil(size: int, radix: int) -> int:
    steps, reached = 0, 1
    while reached < size:
        steps, reached = steps + 1, reached * radix
    return steps


def swing_steps(size: int) -> int:
    """Steps of a reduce-scatter: those of one less for an odd number."""
    return log_ceil(size - size % 2, 2) if size > 1 else 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dims", [*((n,) for n in range(1, 41)), *TORI], ids=str)
@pytest.mark.spread(3)
def test_rings_and_tori(name: str, dims: tuple[int, ...]) -> None:
    """Every phase takes the steps of all axes; every rank sends each block of others once, whatever the sizes."""
    topology = preset("ring", gpus=dims[0]) if len(dims) == 1 else preset("torus", dims=dims)
    ranks = prod(dims)
    steps = sum(swing_steps(size) if name == "swing" else log_ceil(size, 3) for size in dims)
    for collective, phases in ((ALL_REDUCE, 2), (ALL_GATHER, 1), (REDUCE_SCATTER, 1)):
        body = built(name, topology, collective)
        assert len(np.unique(body.step)) == phases * steps
        ports = body.num_chunks // ranks
        assert ports == (2 * sum(size > 1 for size in dims) if ranks > 1 else 1)
        sent = np.bincount(body.src, minlength=ranks)
        assert (sent == phases * ports * (ranks - 1)).all()
    built(name, topology, ALL_REDUCE, variant="latency")


@pytest.mark.parametrize("size", [2, 4, 6, 10, 16, 22, 64, 100])
def test_swing_partners(size: int) -> None:
    """Partners choose each other, even positions meet odd ones, and distances are sums of powers of -2."""
    for step, partner in enumerate(partners(size)):
        position = np.arange(size)
        assert (partner[partner] == position).all()
        assert ((position + partner) % 2 == 1).all()
        reach = sum((-2) ** power for power in range(step + 1))
        assert (partner[::2] == (position[::2] + reach) % size).all()


@pytest.mark.parametrize("depth", range(2, 7))
def test_swing_on_a_ring(depth: int) -> None:
    """Every link carries |rho(s)|/2^(s + 2) M in step s of a phase: both ways and all links alike."""
    ranks = 2**depth
    body = built("swing", preset("ring", gpus=ranks), REDUCE_SCATTER)
    loads = link_loads(body)
    rho = [abs(sum((-2) ** power for power in range(step + 1))) for step in range(depth)]
    expected = sum(Fraction(far, 2 ** (step + 2)) for step, far in enumerate(rho))
    assert set(loads.values()) == {expected * body.num_chunks}
    assert len(loads) == 2 * ranks
    doubling = Fraction(depth, 4)  # 2^s apart instead
    assert expected <= doubling
    assert expected < doubling or depth < 2


@pytest.mark.parametrize("depth", range(1, 5))
def test_trivance_on_a_ring(depth: int) -> None:
    """Every link carries M/3 in each step of a phase; Bruck's partners at 3^s and 2 3^s on one side make it M."""
    ranks = 3**depth
    ring = preset("ring", gpus=ranks)
    body = built("trivance", ring, ALL_GATHER)
    loads = link_loads(body)
    assert len(loads) == 2 * ranks
    assert set(loads.values()) == {Fraction(depth, 3) * body.num_chunks}
    # One port, without the mirrored half, loads links no less evenly.
    alone = built("trivance", ring, ALL_GATHER, ports=1)
    assert set(link_loads(alone).values()) == {Fraction(depth, 3) * alone.num_chunks}


@pytest.mark.parametrize(
    ("side", "axes"),
    [(4, 1), (16, 1), (4, 2), (8, 2), (16, 2), (4, 3), pytest.param(8, 3, marks=pytest.mark.slow), (4, 4)],
)
@pytest.mark.spread(2)
def test_swing_on_a_torus(side: int, axes: int) -> None:
    """Step t halves the data and crosses |rho(t // axes)| links; above the bound by at most 6/5 in 2D, 28/27 in 3D."""
    ranks = side**axes
    body = built("swing", preset("torus", dims=(side,) * axes), REDUCE_SCATTER)
    loads = link_loads(body)
    assert len(loads) == 2 * axes * ranks
    far = [
        abs(sum((-2) ** power for power in range(step // axes + 1))) for step in range(ranks.bit_length() - 1)
    ]
    expected = sum(Fraction(reach, 2 ** (step + 1)) for step, reach in enumerate(far)) / (2 * axes)
    assert set(loads.values()) == {expected * body.num_chunks}
    over = expected / Fraction(ranks - 1, ranks * 2 * axes)
    assert over >= 1
    if axes > 1:  # the sum of the series for an unbounded side
        half = Fraction(1, 2**axes)
        assert over <= (1 - half) * (2 / (1 - 2 * half) + 1 / (1 + half)) / 3


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 10, 16, 32, 64])
def test_swing_on_a_crossbar(ranks: int) -> None:
    depth, part = log_ceil(ranks, 2), 1 - Fraction(1, ranks)
    _, cost = made("swing", ALL_REDUCE, ranks)
    assert cost.chains == (Chain(messages=2 * depth, sent=2 * part, reduced=part),)
    _, cost = made("swing", ALL_REDUCE, ranks, variant="latency")  # type: ignore[arg-type]
    folds = int(ranks & (ranks - 1) > 0)
    rounds = ranks.bit_length() - 1 + 2 * folds
    assert cost.steps == rounds
    assert cost.chains == (Chain(messages=rounds, sent=Fraction(rounds), reduced=Fraction(rounds - folds)),)


@pytest.mark.parametrize("depth", range(1, 5))
def test_trivance_on_a_crossbar(depth: int) -> None:
    """One port serves both neighbours in turn; the joint reduction adds two buffers a step."""
    ranks = 3**depth
    part = 1 - Fraction(1, ranks)
    _, cost = made("trivance", ALL_REDUCE, ranks)
    assert cost.chains == (Chain(messages=4 * depth, sent=2 * part, reduced=part),)
    schedule, cost = made("trivance", ALL_REDUCE, ranks, variant="latency")  # type: ignore[arg-type]
    assert cost.steps == depth
    assert cost.chains == (Chain(messages=2 * depth, sent=Fraction(2 * depth), reduced=Fraction(2 * depth)),)
    assert schedule.num_transfers == 2 * depth * ranks


def test_trivance_for_any_number() -> None:
    """Distances triple but for the last, which just reaches half around; whole buffers need the fewest steps."""
    for size in range(2, 200):
        found = distances(size)
        assert found[:-1] == [3**step for step in range(len(found) - 1)]
        inner = sum(found[:-1])
        assert found[-1] + inner == size // 2  # the farthest position, by one hop of every distance
        assert found[-1] <= 2 * inner + 1  # no gap
        core = prod(radices(size))
        assert size // 2 < core <= size
        steps = len(radices(size)) + 2 * (core < size)
        assert steps <= log_ceil(size, 2) + 2
        if size == 3 ** log_ceil(size, 3):
            assert steps == log_ceil(size, 3)


def test_given_axes() -> None:
    """Axes and ports may be given on any network; on a torus they are its own."""
    star = preset("star", gpus=12)
    for name in NAMES:
        for dims, ports in (("3x4", 4), ("2x2x3", 6), ("12", 2), ("4x3", 1)):
            body = built(name, star, ALL_REDUCE, dims=dims, ports=ports)
            assert body.num_chunks == 12 * ports
        entry = find(name, ALL_REDUCE)

        def refusal(entry=entry, **given: int | str) -> str | None:  # type: ignore[no-untyped-def]
            case: AlgorithmCase = case_of(entry, Problem(topology=star, collective=ALL_REDUCE), given)
            found: str | None = entry.refusal(case)
            return found

        assert "multiply to 12" in str(refusal(dims="3x5"))
        assert "multiply to 12" in str(refusal(dims="threexfour"))
        assert "at most two ports" in str(refusal(ports=3))
        assert refusal(dims="3x4", ports=4) is None


def test_the_order_of_ranks_is_one_axis() -> None:
    """With an order of ranks given, positions are a ring in that order, also on a torus."""
    torus = preset("torus", dims=(3, 4))
    order = (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 8, 4)
    entry = find("swing", ALL_REDUCE)
    case = case_of(entry, Problem(topology=torus, collective=ALL_REDUCE), order=order)
    body = make(entry, case, relay_gpus=True)
    assert isinstance(body, Schedule)
    assert body.num_chunks == 12
    assert verify_schedule(body, relay_gpus=True).ok
    first = body.step == 0
    place = {rank: position for position, rank in enumerate(order)}
    for src, dst in zip(body.src[first].tolist(), body.dst[first].tolist(), strict=True):
        assert (place[src] - place[dst]) % 12 in (1, 11)
