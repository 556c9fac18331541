"""Nothing that is simulated is faster than the least time under the same model."""

from __future__ import annotations

import random
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest

import coppice
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.choice import listed
from coppice.schedule.verification.time_proof import check_time_bound
from coppice.simulation.least_time import LeastTimes, least_record
from coppice.simulation.models import Model, Sharing, model_of, named_models
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset

PLACES = (
    ("dgx-1v", {}),
    ("dgx-a100", {"boxes": 2}),
    ("mi250", {}),
    ("torus", {"dims": (3, 3)}),
    ("star", {"gpus": 5}),
    ("dgx-a100-pcie", {"boxes": 2}),
)
MODELS = (
    *named_models(),
    Model(name="engines", send_engines=1, receive_engines=1),
    Model(name="fair", sharing=Sharing.FAIR, overhead_us=0.5),
    Model(name="bursts", burst_bytes=20_000),
    Model(name="half", efficiency=0.5, launch_us=4, workers=1, send_us=0.7, receive_us=0.2),
)
SIZES = (1, 3000, 200_000, 50_000_000)
"""Each model is tried at two of them, which differ between collectives and clusters."""


def models() -> list[Model]:
    return [model_of(each) for each in MODELS]


@pytest.mark.parametrize(("place", "more"), PLACES, ids=[name for name, _ in PLACES])
def test_no_plan_and_no_algorithm_is_faster(place: str, more: dict[str, object]) -> None:
    rng = random.Random(place)
    topology = preset(place, **more)
    for collective in Collective:
        if collective is Collective.BARRIER:
            continue
        problem = Problem(topology, collective, root=0 if collective.rooted else None)
        plans = [coppice.plan(problem, ring=False)]
        names = sorted({entry.name for entry in listed() if collective in entry.collectives})
        for name in rng.sample(names, min(3, len(names))):
            try:
                plans.append(coppice.plan(problem, algorithm=name, ring=False))
            except coppice.CoppiceError:
                continue
        for model in rng.sample(models(), 2):
            times = LeastTimes(problem, model)
            for size in rng.sample(SIZES, 2):
                least = times.at(size)
                for bound in least.bounds:
                    check_time_bound(bound)
                for plan in plans:
                    found = coppice.simulate(plan, size, model=model).time_us
                    assert found >= least.time_us * (1 - 1e-9), (collective, plan.planner, model.name, size)


@pytest.mark.parametrize("slow", range(5))
@pytest.mark.parametrize(
    ("collective", "more"),
    [
        (Collective.ALL_GATHER, {}),
        (Collective.ALL_GATHER, {"weights": (3, 1, 2, 0, 1)}),
        (Collective.REDUCE_SCATTER, {}),
        (Collective.GATHER, {"root": 1}),
        (Collective.SCATTER, {"root": 1}),
        (Collective.ALL_TO_ALL, {}),
        (
            Collective.ALL_TO_ALL,
            {"demands": tuple(tuple((i + 2 * j) % 4 for j in range(5)) for i in range(5))},
        ),
    ],
    ids=str,
)
def test_shares_are_whole_bytes(slow: int, collective: Collective, more: dict[str, Any]) -> None:
    """A slow rank whose share was rounded up needs less than its part of a size that has no such part."""
    links = [Link(src=f"g{i}", dst="s", gb_per_s=Fraction(1 if i == slow else 1000, 10)) for i in range(5)]
    star = Topology.of(
        "star", [*(Node(id=f"g{i}") for i in range(5)), Node(id="s", kind=NodeKind.SWITCH)], links
    )
    problem = Problem(star, collective, **more)
    plans = [coppice.plan(problem, ring=False)]
    for name in ("direct", "bruck", "trivance", "ring", "pairwise", "linear"):
        with suppress(coppice.CoppiceError):
            plans.append(coppice.plan(problem, algorithm=name, ring=False))
    times = LeastTimes(problem, model_of("ideal"))
    for size in (7, 1024, 16_384):
        least = times.at(size)
        check_time_bound(least.bound)
        for plan in plans:
            found = coppice.simulate(plan, size, model="ideal").time_us
            assert found >= least.time_us * (1 - 1e-9), (plan.planner, size)


def test_records_name_the_model_and_the_limit() -> None:
    problem = Problem(preset("dgx-h100", boxes=2), "all_gather")
    record = least_record(LeastTimes(problem, model_of("nccl-2.30")).at(2**30))
    assert record["model"] == "nccl-2.30"
    assert record["limit"] == record["limited_by"]
    assert "must enter" in record["limit"]
    assert record["witness"]["kind"] == "moving-cut"
    assert {name for label in record["witness"]["labels"] for name in label["node_names"]} == set(
        problem.topology.node_ids
    )


def test_relays_cost_no_message_of_their_own() -> None:
    """A message that passes through GPUs pays for its links alone."""
    ring = Problem(preset("ring", gpus=6), "all_gather")
    model = Model(overhead_us=2.0)
    assert LeastTimes(ring, model).at(0).time_us == 6.0
    assert LeastTimes(ring, model, relay_gpus=True).at(0).time_us == 2.0


def test_channels_of_relays_carry_nothing() -> None:
    """A message that passes through a GPU takes the channels of its sender alone."""
    path = preset("path", gpus=3, gb_per_s=100)
    problem = Problem(path, "all_to_all")
    model = Model(overhead_us=0.0, channels=1, channel_gb_per_s=1.0, steps_bind=False)
    assert LeastTimes(problem, model).at(3000).time_us == pytest.approx(8 / 3)
    assert LeastTimes(problem, model, relay_gpus=True).at(3000).time_us < 2  # 2 blocks of each GPU
