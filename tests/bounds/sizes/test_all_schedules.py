"""Bounds on time, linear programs over expanded time, and the best of all schedules, on networks of a few ranks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from math import ceil

import pytest

from bounds.sizes.test_least_times import drawn, steps_of
from coppice.bounds.problem import Problem
from coppice.bounds.sizes.least import TimeBounds
from coppice.bounds.sizes.timed import MessageCosts
from coppice.collectives import Collective
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.time_proof import check_time_bound
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import Model, model_of
from coppice.simulation.simulator import fastest
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from reference.all_schedules import adding_everywhere, every_schedule, made
from reference.time_expanded import least_steps

NANOSECOND = 1e-3
COPYING = (Collective.BROADCAST, Collective.REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
MODELS = (
    model_of("ideal"),
    Model(name="messages", overhead_us=0.002, steps_bind=False),
    Model(name="one worker", overhead_us=0.001, workers=1, send_us=0.001, receive_us=0.002, steps_bind=False),
    Model(name="steps", overhead_us=0.001, send_engines=1, receive_engines=1),
    Model(name="one channel", overhead_us=0.001, channels=1, channel_gb_per_s=0.5, steps_bind=False),
)


def fastest_of(schedules: Iterable[Schedule], size_bytes: int, model: Model) -> float:
    """Nanoseconds of the fastest."""
    return min(
        fastest(each, size_bytes, model=model, pieces=1, keep_hops=False).time_us / NANOSECOND
        for each in schedules
    )


def few_ranks(rng: random.Random, ranks: int) -> Topology:
    """A drawn network of so many ranks."""
    while True:
        topology = drawn(rng, most=ranks + 1, slowest=2, rates=2)
        if topology.num_ranks == ranks:
            return topology


def steps_needed(problem: Problem, size_bytes: int) -> int:
    """Nanoseconds that the linear program needs, a step being one."""
    topology, turned = problem.topology, problem.collective in (Collective.REDUCE, Collective.REDUCE_SCATTER)
    nodes = topology.rank_nodes.tolist()
    if problem.collective.rooted:
        held = {nodes[problem.root or 0]: size_bytes}
    else:
        held = dict.fromkeys(nodes, size_bytes // len(nodes))
    needs = {sink: {node: part for node, part in held.items() if node != sink} for sink in nodes}
    plain = set(range(topology.num_nodes)) - set(nodes)
    return least_steps(topology.num_nodes, steps_of(topology, turned=turned), needs, plain=plain)


def drawn_case(rng: random.Random, collectives: tuple[Collective, ...]) -> tuple[Problem, int, int]:
    """A problem, its size and the chunks of a slot that are few enough to try all schedules."""
    collective = rng.choice(collectives)
    ranks = rng.choice((3, 3, 4)) if collective.rooted else 3
    chunks = rng.choice((1, 2)) if collective.rooted and ranks == 3 else 1
    problem = Problem(
        few_ranks(rng, ranks), collective, root=rng.randrange(ranks) if collective.rooted else None
    )
    return problem, rng.randint(1, 4) * ranks * chunks, chunks


def check_order(seed: str, most: int | None) -> tuple[float, float, float]:
    """Bound, program and best schedule, in nanoseconds, each no more than the next."""
    rng = random.Random(seed)
    problem, size, chunks = drawn_case(rng, COPYING)
    found = TimeBounds(problem, MessageCosts()).least(size)
    check_time_bound(found)
    bound, steps = float(found.time_us) / NANOSECOND, steps_needed(problem, size)
    best = fastest_of(islice(every_schedule(problem, chunks=chunks), most), size, model_of("ideal"))
    assert found.time_us * 1000 <= steps
    assert steps <= ceil(best - 1e-6)
    return bound, steps, best


def test_bound_and_program_and_the_best_of_all_schedules() -> None:
    """The three agree on many networks, so none of them is idle."""
    rows = [check_order(f"small {seed}", 400) for seed in range(20)]
    assert sum(ceil(bound) == steps for bound, steps, _ in rows) > 10
    assert sum(best <= bound * 1.001 for bound, _, best in rows) > 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_bound_and_program_and_the_best_of_all_schedules_of_many_networks(part: int) -> None:
    rows = [check_order(f"many {100 * part + seed}", 1000) for seed in range(100)]
    assert sum(ceil(bound) == steps for bound, steps, _ in rows) > 90


def mixtures(problem: Problem, rng: random.Random, count: int) -> Iterator[Schedule]:
    """All-reduces in which every slot goes its own way, drawn from all ways of one chunk."""
    ways = list(adding_everywhere(problem.topology))
    ranks = problem.topology.num_ranks
    for _ in range(count):
        chosen = [rng.choice(ways) for _ in range(ranks)]
        rows = [each._replace(chunk=slot) for slot, way in enumerate(chosen) for each in way]
        yield made(problem, 1, sorted(rows, key=lambda each: each.step))


def check_all_reduce(seed: str, count: int) -> float:
    """How much longer the best all-reduce that was tried takes than the bound."""
    rng = random.Random(seed)
    problem = Problem(few_ranks(rng, 3), Collective.ALL_REDUCE)
    model, size = rng.choice(MODELS), 3 * rng.randint(1, 6)
    least = LeastTimes(problem, model).at(size)
    for bound in least.bounds:
        check_time_bound(bound)
    tried = [*islice(every_schedule(problem), count), *mixtures(problem, rng, count)]
    best = fastest_of(tried, size, model)
    assert least.time_us / NANOSECOND <= best * (1 + 1e-9)
    return best * NANOSECOND / least.time_us


def test_no_all_reduce_of_all_is_faster() -> None:
    over = [check_all_reduce(f"sum {seed}", 120) for seed in range(12)]
    assert min(over) < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_no_all_reduce_of_all_is_faster_on_many_networks(part: int) -> None:
    over = [check_all_reduce(f"many sums {100 * part + seed}", 150) for seed in range(100)]
    assert min(over) < 1.2


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_of_all_is_faster_under_costs(seed: int) -> None:
    rng = random.Random(f"costs {seed}")
    problem, size, chunks = drawn_case(rng, (*COPYING, Collective.ALL_TO_ALL))
    model = rng.choice(MODELS)
    least = LeastTimes(problem, model).at(size)
    best = fastest_of(islice(every_schedule(problem, chunks=chunks), 300), size, model)
    assert least.time_us / NANOSECOND <= best * (1 + 1e-9)


def test_all_schedules_are_schedules() -> None:
    """The verifier takes each of them, so what is timed carries out what it says."""
    star = preset("star", gpus=3, gb_per_s=1)
    for collective in (*COPYING, Collective.ALL_TO_ALL, Collective.ALL_REDUCE):
        problem = Problem(star, collective, root=1 if collective.rooted else None)
        some = list(islice(every_schedule(problem), 40))
        assert len(some) > 3
        for each in some:
            verify_schedule(each).require_ok()


def test_all_reduces_of_all_hold_the_exchange_and_the_tree() -> None:
    """Six sends in one step, and four in two or more, are among those of three ranks."""
    star = preset("star", gpus=3, gb_per_s=1)
    counts = {(len(each), 1 + each[-1].step) for each in adding_everywhere(star)}
    assert (6, 1) in counts
    assert (4, 2) in counts
    assert min(len(each) for each in adding_everywhere(star)) == 2 * (star.num_ranks - 1)
