"""Plan for given sizes: choose among the optimal planner's variants by simulated time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from coppice.errors import InputError
from coppice.planners.alternatives import Alternative, Preferred, preferred
from coppice.planners.planning import PlannedResult, plan
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.simulation.models import Model, model_of
from coppice.simulation.simulator import fastest
from coppice.text import sizes_of


def plan_for(
    problem: Any,
    sizes: str | int | Sequence[int | str],
    *,
    model: Model | str | os.PathLike[str] | None = None,
    **options: Any,
) -> tuple[PlannedResult, Preferred]:
    """Plan for some sizes; at a single size no variant with the same options is faster.

    The plan of the best rate may have deeper trees, or more of them, than one that is a little slower in the end. All
    alternatives are simulated at each size, and the one is taken whose worst loss against the fastest is least.

    Args:
        problem: As :func:`coppice.planners.planning.plan` takes it.
        sizes: Sizes M in bytes, as a list or as text such as ``"1M"`` or ``"1K:1G"``.
        model: What messages cost: a model or its name; None is the default.
        options: All other arguments of :func:`coppice.planners.planning.plan`.

    Returns:
        The verified plan, and how the alternatives compare.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> result, chosen = plan_for(preset("ring", gpus=4), "1K", collective="all_gather")
        >>> chosen.taken.name, chosen.worst_loss
        ('forest', 0.0)
    """
    wanted, assumed = sizes_of(sizes), model_of(model)
    found: list[Preferred] = []
    if not wanted:
        raise InputError("expected sizes to plan for, found none: give one, such as 1M.")

    def time_us(body: Forest | Schedule, size_bytes: int) -> float:
        return fastest(body, size_bytes, model=assumed, keep_hops=False).time_us

    def choose(candidates: Iterator[Alternative]) -> Alternative:
        found.append(preferred(candidates, wanted, time_us))
        return found[-1].taken

    return plan(problem, choose=choose, **options), found[-1]
