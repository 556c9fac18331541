"""Nothing of the catalogue is faster than the least time on drawn networks with boxes, under any model."""

from __future__ import annotations

import random
from contextlib import suppress
from fractions import Fraction

import pytest

import coppice
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.choice import listed
from coppice.schedule.verification.time_proof import check_time_bound
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import Model, model_of, named_models
from coppice.topology.model import Link, Node, NodeKind, Topology

MODELS = (
    *(model_of(name) for name in named_models()),
    Model(name="limited", protocols=("ll", "simple"), generation="ampere", workers=2, send_us=0.3),
    Model(name="slow ends", overhead_us=3, send_engines=1, receive_engines=1),
)

GRID_US = 1e-8
"""The simulator rounds every duration to about a millionth of a nanosecond."""


def boxes_of_gpus(rng: random.Random) -> Topology:
    """Boxes of a few GPUs on a switch or in a ring, joined by a switch, a rail for each GPU, or links of their own."""
    boxes, gpus = rng.randint(1, 3), rng.randint(2, 3)
    nodes, links = [], []
    inner, outer = Fraction(rng.choice((20, 50, 300))), Fraction(rng.choice((5, 10, 25)))
    late = rng.choice((0.0, 0.0, 0.4, 2.5))
    rails = rng.random() < 0.5
    switched = rng.random() < 0.6
    for b in range(boxes):
        nodes += [Node(id=f"b{b}g{i}", host=f"b{b}") for i in range(gpus)]
        if switched:
            nodes.append(Node(id=f"b{b}s", kind=NodeKind.SWITCH, host=f"b{b}"))
            links += [Link(src=f"b{b}g{i}", dst=f"b{b}s", gb_per_s=inner) for i in range(gpus)]
        else:
            links += [
                Link(src=f"b{b}g{i}", dst=f"b{b}g{j}", gb_per_s=inner) for i in range(gpus) for j in range(i)
            ]
    if boxes > 1:
        names = [f"rail{i}" for i in range(gpus)] if rails and switched else ["net"]
        nodes += [Node(id=name, kind=NodeKind.SWITCH) for name in names]
        used = range(gpus) if rng.random() < 0.7 or (rails and switched) else range(1)
        links += [
            Link(
                src=f"b{b}g{i}",
                dst=names[i % len(names)],
                gb_per_s=outer / rng.choice((1, 1, 2)),
                latency_us=late,
            )
            for b in range(boxes)
            for i in used
        ]
    return Topology.of("drawn boxes", nodes, links)


def check(seed: str, algorithms: int) -> int:
    """Number of schedules that were timed, none of them faster than the bound."""
    rng = random.Random(seed)
    topology = boxes_of_gpus(rng)
    collective = rng.choice([each for each in Collective if each is not Collective.BARRIER])
    problem = Problem(topology, collective, root=0 if collective.rooted else None)
    plans = []
    with suppress(coppice.CoppiceError):
        plans.append(coppice.plan(problem))
    names = sorted({entry.name for entry in listed() if collective in entry.collectives})
    for name in rng.sample(names, min(algorithms, len(names))):
        with suppress(coppice.CoppiceError):
            plans.append(coppice.plan(problem, algorithm=name))
    count = 0
    for model in rng.sample(MODELS, 3):
        times = LeastTimes(problem, model)
        for size in (1, rng.randint(2, 5000), 60_000, 5_000_000):
            least = times.at(size)
            for bound in least.bounds:
                check_time_bound(bound)
            for plan in plans:
                found = coppice.simulate(plan, size, model=model).time_us
                assert found >= least.time_us * (1 - 1e-9) - GRID_US, (
                    seed,
                    collective,
                    plan.plan.planner,
                    model.name,
                    size,
                )
                count += 1
    return count


def test_no_schedule_of_the_catalogue_is_faster() -> None:
    assert sum(check(f"few {seed}", 3) for seed in range(14)) > 300


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_no_schedule_of_the_catalogue_is_faster_on_many_networks(part: int) -> None:
    assert sum(check(f"many {100 * part + seed}", 6) for seed in range(100)) > 3000
