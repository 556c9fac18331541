"""Simulate a set of plans: each size with its plan, under the model of the set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from coppice.schedule.files.set_file import PlanSet
from coppice.schedule.plan import Plan
from coppice.simulation.models import Model, model_from
from coppice.simulation.simulated import Simulated, simulate_sizes
from coppice.simulation.simulator import fastest


def model_of_set(plans: PlanSet) -> Model:
    """The model of time behind the figures of a set.

    Raises:
        InputError: If what it says of its model makes none.
    """
    return model_from(plans.model, "the model of the set of plans")


def timer_of(plans: PlanSet) -> Callable[[Plan, int], float]:
    """What simulates plans under the model of a set: time in microseconds of a plan at a size in bytes."""
    model = model_of_set(plans)
    return lambda plan, size_bytes: fastest(plan.body, size_bytes, model=model, keep_hops=False).time_us


def simulate_set(plans: PlanSet, sizes: Sequence[int], **options: Any) -> list[Simulated]:
    """Simulate every size with its plan, by rising size.

    Args:
        sizes: Sizes M in bytes.
        options: All other arguments of :func:`coppice.simulation.simulated.simulate_sizes`.
    """
    rows: list[Simulated] = []
    for _, run in groupby(sorted(sizes), key=lambda size: id(plans.at(size))):
        held = list(run)
        rows += simulate_sizes(plans.at(held[0]), held, **options)
    return rows
