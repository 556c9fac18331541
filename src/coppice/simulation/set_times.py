"""Simulate a set of plans: each size with its plan, under the model of the set."""

from __future__ import annotations

from collections.abc import Callable

from coppice.schedule.files.set_file import PlanSet
from coppice.schedule.plan import Plan
from coppice.simulation.models import Model, model_from
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
