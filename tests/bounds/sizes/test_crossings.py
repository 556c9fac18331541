"""Bounds from messages between boxes: against linear programs, all schedules of few ranks, and a checker of its own."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction
from itertools import islice
from math import ceil
from typing import Any

import pytest

from bounds.sizes.test_all_schedules import fastest_of, mixtures
from bounds.sizes.test_least_times import steps_of
from coppice.bounds.problem import Problem
from coppice.bounds.sizes.crossings import Crossings, crossings
from coppice.bounds.sizes.describe import limit_words, witness_record
from coppice.bounds.sizes.least import TimeBound, TimeBounds, boxes
from coppice.bounds.sizes.timed import MessageCosts, TimedNetwork
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.schedule.files.bounds_file import decode_bounds, encode_bounds
from coppice.schedule.verification.time_proof import check_time_bound
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from reference.all_schedules import every_schedule
from reference.time_expanded import least_steps

ONE = (Collective.BROADCAST, Collective.REDUCE)


def drawn_boxes(rng: random.Random, sizes: tuple[int, ...]) -> Topology:
    """Boxes of GPUs that are joined inside, and a switch between them, with whole rates (GB/s) and latencies (ns)."""
    nodes = [Node(id="net", kind=NodeKind.SWITCH)]
    links = []
    for box, size in enumerate(sizes):
        names = [f"b{box}g{i}" for i in range(size)]
        nodes += [Node(id=name, host=f"b{box}") for name in names]
        links += [
            Link(
                src=a,
                dst=b,
                gb_per_s=Fraction(rng.randint(1, 3)),
                latency_us=rng.randint(0, 2) / 1000,
                duplex=False,
            )
            for a in names
            for b in names
            if a != b
        ]
        for name in names if rng.random() < 0.6 else names[:1]:
            late = rng.randint(0, 3) / 1000
            links += [
                Link(src=a, dst=b, gb_per_s=Fraction(rng.randint(1, 2)), latency_us=late, duplex=False)
                for a, b in ((name, "net"), ("net", name))
            ]
    return Topology.of("drawn boxes", nodes, links)


def crossed(problem: Problem, size: int) -> TimeBound | None:
    """The bound from crossings alone, as a certificate that has been checked; None where it proves nothing."""
    found = TimeBounds(problem, MessageCosts())
    best = max(found._crossings, key=lambda each: each.least_time(Fraction(size)), default=None)
    if best is None or not best.least_time(Fraction(size)):
        return None
    return claimed(problem, size, best)


def of_all_boxes(times: TimeBounds, size: int) -> list[TimeBound]:
    """The bounds from all boxes at once alone, as certificates that have been checked."""
    made = []
    for need in times._over_boxes():
        found = need.sink.least_time(Fraction(size), Fraction(0))
        if found is not None:
            bound = TimeBound(
                problem=times.problem,
                costs=times.costs,
                size_bytes=size,
                time_us=found.time_ns / 1000,
                cut=found,
                turned=need.turned,
                boxed=True,
                sources=need.sources,
                sinks=(need.sink.node,),
            )
            check_time_bound(bound)
            made.append(bound)
    return made


def claimed(problem: Problem, size: int, found: Crossings) -> TimeBound:
    bound = TimeBound(
        problem=problem,
        costs=MessageCosts(),
        size_bytes=size,
        time_us=found.least_time(Fraction(size)) / 1000,
        crossings=found,
    )
    check_time_bound(bound)
    return bound


def against_program(seed: str) -> tuple[Fraction, int]:
    """Nanoseconds of the bound, and the steps that the linear program needs."""
    rng = random.Random(seed)
    topology = drawn_boxes(rng, rng.choice([(1, 1, 1), (2, 1), (2, 2), (1, 2, 1), (1, 1, 1, 1)]))
    collective = rng.choice(ONE)
    problem = Problem(topology, collective, root=rng.randrange(topology.num_ranks))
    size = rng.randint(1, 12)
    nodes = topology.rank_nodes.tolist()
    root = nodes[problem.root or 0]
    needs = {sink: {root: size} for sink in nodes if sink != root}
    plain = set(range(topology.num_nodes)) - set(nodes)
    steps = least_steps(
        topology.num_nodes, steps_of(topology, turned=collective is Collective.REDUCE), needs, plain=plain
    )
    found = of_all_boxes(TimeBounds(problem, MessageCosts()), size)
    return max((1000 * each.time_us for each in found), default=Fraction(0)), steps


def test_data_of_one_rank_take_no_less_than_the_linear_program() -> None:
    rows = [against_program(f"boxes {seed}") for seed in range(30)]
    assert all(bound <= steps for bound, steps in rows)
    assert sum(ceil(bound) == steps for bound, steps in rows) > 3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_data_of_one_rank_take_no_less_than_the_linear_program_on_many_networks(part: int) -> None:
    assert all(
        bound <= steps
        for bound, steps in (against_program(f"many boxes {100 * part + i}") for i in range(100))
    )


def against_schedules(seed: str, count: int) -> float:
    """How much longer the best all-reduce that was tried takes than the bound."""
    rng = random.Random(seed)
    topology = drawn_boxes(rng, rng.choice([(1, 1, 1), (2, 1)]))
    problem, size = Problem(topology, Collective.ALL_REDUCE), 3 * rng.randint(1, 6)
    proved = [*of_all_boxes(TimeBounds(problem, MessageCosts()), size), crossed(problem, size)]
    tried = [*islice(every_schedule(problem), count), *mixtures(problem, rng, count)]
    best = fastest_of(tried, size, model_of("ideal"))
    bound_ns = max((1000 * float(each.time_us) for each in proved if each is not None), default=0.0)
    assert bound_ns <= best * (1 + 1e-9)
    return best / max(bound_ns, 1e-9)


def test_no_all_reduce_between_boxes_is_faster() -> None:
    over = [against_schedules(f"sums {seed}", 100) for seed in range(20)]
    assert min(over) < 1.3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_no_all_reduce_between_boxes_is_faster_on_many_networks(part: int) -> None:
    assert min(against_schedules(f"many sums {50 * part + seed}", 200) for seed in range(50)) < 1.3


def test_two_messages_in_a_row_cannot_be_avoided() -> None:
    """4 KiB on 128 boxes: a message within a box, two between boxes and one within, but for the rails of two ranks."""
    problem = Problem(preset("dgx-h100", boxes=128), Collective.ALL_REDUCE)
    least = LeastTimes(problem, model_of("nccl-2.30")).at(4 * 1024)
    start, inside, between = 6.6, 0.6, 2.7
    assert start + inside + 2 * between < least.time_us < start + 2 * (inside + between) + 0.1
    assert least.bound.crossings is not None
    assert "two messages in a row" in limit_words(least.bound)
    assert witness_record(least.bound)["kind"] == "crossings"


def test_few_bytes_may_cross_once() -> None:
    """So little that each box can send it to all others in the time of a message."""
    ranks = [members for _, members in boxes(preset("dgx-h100", boxes=16))]
    network = TimedNetwork.of(preset("dgx-h100", boxes=16), MessageCosts(message_us=1, crossing_us=9))
    found = crossings(network, ranks)
    assert found is not None
    once, twice = (float(found.least_time(Fraction(size))) / 1000 for size in (16, 2**22))
    assert once < 13 < 20 < twice


def test_certificates_that_were_changed_are_refused() -> None:
    problem = Problem(preset("dgx-h100", boxes=4), Collective.ALL_REDUCE)
    times = TimeBounds(problem, MessageCosts(message_us=1, crossing_us=3, gpu_gb_per_s=Fraction(20)))
    refused = 0
    for size in (4096, 2**20):
        for found in times._crossings:
            bound = TimeBound(
                problem=problem,
                costs=times.costs,
                size_bytes=size,
                time_us=found.least_time(Fraction(size)) / 1000,
                crossings=found,
            )
            other = problem.topology.rank_nodes.tolist()
            refused += changes_refused(
                bound,
                {"crossings": dataclasses.replace(found, sinks=found.sinks[1:])},
                {"crossings": dataclasses.replace(found, sources=(other[0], *found.sources[:-1]))},
                {"crossings": dataclasses.replace(found, sources=(0, *found.sources[1:], other[-1]))},
            )
    assert refused == 24


def changes_refused(bound: TimeBound, *changes: dict[str, Any]) -> int:
    """How many changes of a certificate its check refuses; it has to hold unchanged, and once written and read."""
    check_time_bound(bound)
    written, _ = decode_bounds(encode_bounds([bound], model="mine"), name="bounds.json")
    check_time_bound(written[0])
    every: list[dict[str, Any]] = [
        {"time_us": bound.time_us * Fraction(1001, 1000)},
        {"size_bytes": bound.size_bytes - 1},
        {"problem": Problem(bound.problem.topology, Collective.ALL_GATHER)},
        *changes,
    ]
    for change in every:
        with pytest.raises(CheckError):
            check_time_bound(dataclasses.replace(bound, **change))
    return len(every)


@pytest.mark.parametrize("collective", [*ONE, Collective.ALL_REDUCE])
def test_cuts_for_all_boxes_that_were_changed_are_refused(collective: Collective) -> None:
    problem = Problem(preset("dgx-h100", boxes=4), collective, root=9 if collective.rooted else None)
    times = TimeBounds(problem, MessageCosts(message_us=1, crossing_us=3, gpu_gb_per_s=Fraction(20)))
    for size in (4096, 2**20):
        for bound in of_all_boxes(times, size):
            assert bound.cut is not None
            changes_refused(
                bound,
                {"cut": dataclasses.replace(bound.cut, time_ns=bound.cut.time_ns + 1)},
                {"cut": bound.cut.apart(())},
                {"sources": (1, 2)},
                {"sinks": (0,)},
                {"boxed": False},
                {"boxed": False, "joint": True},
                *([{"turned": not bound.turned}] if collective.rooted else []),
            )


@pytest.mark.parametrize("collective", ONE)
def test_boxes_that_pass_on_wait_for_a_crossing_and_receive_no_more_than_their_links_take(
    collective: Collective,
) -> None:
    """1 GB/s out of the root's box for a crossing, then 3 GB/s into three boxes: (T - 6) + 2 (T - 11) = 3 M / b."""
    pairs = [("net", f"b{box}g0", 1) for box in range(4)] + [
        (f"b{box}g0", f"b{box}g1", 9) for box in range(4)
    ]
    topology = Topology.of(
        "four boxes",
        [Node(id="net", kind=NodeKind.SWITCH)]
        + [Node(id=f"b{box}g{gpu}", host=f"b{box}") for box in range(4) for gpu in range(2)],
        [Link(src=a, dst=b, gb_per_s=Fraction(rate), latency_us=0) for a, b, rate in pairs],
    )
    times = TimeBounds(Problem(topology, collective, root=0), MessageCosts(message_us=1, crossing_us=4))
    found = times.least(60_000)
    check_time_bound(found)
    assert found.boxed
    assert found.time_us == Fraction(180 + 28, 3)
    assert limit_words(found).endswith("3 other boxes in all at 3 GB/s, and 9.33 us of latency")
    assert witness_record(found)["boxed"]


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.ALL_REDUCE, Collective.ALL_GATHER])
def test_fitted_latencies_of_any_length_have_a_least_time(collective: Collective) -> None:
    """A distance over several slow messages is a latency too, and figures that were fitted have many digits."""
    topology = drawn_boxes(random.Random(3), (3, 3, 3))
    root = 0 if collective is Collective.BROADCAST else None
    problem = Problem(topology, collective, root=root)
    for message_us in (243.8123456789, 99_999.87654321, 12_345_678.9):
        bound = TimeBounds(problem, MessageCosts(message_us=message_us)).least(2**20)
        assert bound.time_us >= Fraction(str(message_us)) * (1 - Fraction(1, 10**6))
        check_time_bound(bound)
