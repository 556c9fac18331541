"""Schedules that may be the fastest at a size, and what they take there by simulation."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TypeGuard

from coppice.planners.alternatives import Alternative
from coppice.schedule.forest import Forest, expanded_edges
from coppice.schedule.messages import messages_of_routed, routed_body
from coppice.schedule.schedule import Schedule
from coppice.simulation.channels import TransportProfile
from coppice.simulation.engine import run
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.models import Model
from coppice.simulation.simulator import fastest

NEARBY = 1.3
"""What takes so many times the fastest as it is made may be the fastest in another order."""
ABOUT = 0.01
"""Share of the time that all further doublings of the pieces are to save where candidates are only told apart."""
FEW_ROWS = 2**12
"""Transfers that take next to no time to put in order."""


@dataclass(frozen=True)
class Candidate:
    """What there is for a size, and what it takes."""

    time_us: float
    one: Alternative
    otherwise_us: float = inf  # What it takes backwards, or in pieces

    @property
    def hoped_us(self) -> float:
        """What it may take in another order."""
        return min(self.time_us, self.otherwise_us)


def about_us(
    body: Schedule | Forest, size_bytes: int, times: KnownTimes, near_us: float, best_us: float
) -> float:
    """Time of a body in about the best number of pieces, if it is near; for ever, if it is not.

    In the best number where it may take less than ``best_us``.
    """
    found = times.fastest(body, size_bytes, below_us=near_us, give_up_us=near_us, gain=ABOUT).time_us
    if found > best_us * (1 + ABOUT):
        return found
    return times.fastest(body, size_bytes, below_us=near_us, give_up_us=near_us).time_us


def is_short(body: Schedule | Forest) -> TypeGuard[Schedule]:
    """Whether a schedule has few rows and these have steps: other orders take next to no time to look at."""
    stepped = isinstance(body, Schedule) and int(body.step.max(initial=-1)) >= 0
    return stepped and num_rows(body) <= FEW_ROWS


def num_rows(body: Schedule | Forest) -> int:
    """Transfers of a schedule, or those that a forest is lowered to at least."""
    return body.num_transfers if isinstance(body, Schedule) else expanded_edges(body)


def as_it_is_us(body: Schedule, size_bytes: int, model: Model, below_us: float) -> float:
    """Time of a schedule whose chunks are not cut."""
    return fastest(body, size_bytes, model=model, pieces=1, keep_hops=False, below_us=below_us).time_us


def in_profile_us(
    body: Schedule, size_bytes: int, model: Model, profile: TransportProfile, below_us: float
) -> float:
    """Time of a schedule whose chunks are not cut in one protocol; for ever, if it takes longer than ``below_us``."""
    messages = messages_of_routed(routed_body(body), size_bytes, pieces=1, steps_bind=model.steps_bind)
    return run(
        messages,
        model=model,
        collective=body.collective,
        size_bytes=size_bytes,
        profile=profile,
        keep_hops=False,
        give_up_us=below_us,
    ).time_us


def for_size(one: Alternative, size_bytes: int) -> Alternative:
    """An alternative that is meant for one size alone."""
    return Alternative(name=one.name, made=one.made, planner=one.planner, size_bytes=size_bytes)
