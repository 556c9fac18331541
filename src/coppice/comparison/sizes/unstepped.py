"""What schedules with steps come to in pieces that follow each other, before anything is searched.

The catalogue states its algorithms in steps, which are not cut into pieces: in pieces some are the fastest that take
half as long again as they are made. Where ranks need no steps, rows go in the order of their longest ways; where they
exchange what both change, pieces follow each other step by step.
"""

from __future__ import annotations

from math import inf

from coppice.comparison.sizes.candidates import about_us, as_it_is_us, is_short
from coppice.comparison.sizes.ordered import durations_us, plain_rows
from coppice.planners.ordering import by_longest_way, longest_ways, pipelined
from coppice.schedule.forest import Forest
from coppice.schedule.messages import messages_of_routed, routed_body
from coppice.schedule.schedule import Schedule, routed
from coppice.simulation.channels import transport_profiles
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.simulator import least_in_profile_us

_PIECES, _LAG = 4, 1
"""A pipeline that shows what others come to."""


def in_pieces_us(
    body: Schedule | Forest, size_bytes: int, times: KnownTimes, near_us: float, best_us: float
) -> float:
    """Time of a schedule of few rows with steps, if they go in pieces; for ever, if it has none.

    Args:
        near_us: What takes longer is not looked at closely, and may take for ever.
        best_us: What takes less is looked at in the best number of pieces.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.choice import from_catalogue
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> problem, times = Problem(preset("dgx-a100", boxes=4), "all_reduce"), KnownTimes(model_of(None))
        >>> body = from_catalogue(problem, "two-level", {"inside": "at-once", "between": "circulant"}).body
        >>> in_steps = times.fastest(body, 2**22).time_us
        >>> round(in_steps), round(in_pieces_us(body, 2**22, times, inf, 0.0))
        (80, 60)
    """
    if not is_short(body) or times.model.steps_bind:
        return inf
    rows = plain_rows(body)
    if rows is None:
        return as_it_is_us(pipelined(routed(body), _PIECES, _LAG), size_bytes, times.model, near_us)
    messages = messages_of_routed(routed_body(rows), size_bytes, pieces=1, steps_bind=False)
    profile = min(
        transport_profiles(times.model, rows.topology),
        key=lambda each: least_in_profile_us(messages, each, times.model),
    )
    ways_us = longest_ways(rows, durations_us(rows, size_bytes, profile, times.model))
    return about_us(by_longest_way(rows, ways_us, 1, pieces_first=False), size_bytes, times, near_us, best_us)
