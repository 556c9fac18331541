"""Verify a set of plans: each plan by counting, and what the set claims about times by arithmetic and a simulation.

That ranges cover every size once, and that all plans solve one problem, is a condition for a set to be read at all
(:mod:`coppice.schedule.files.set_file`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isclose, isfinite
from typing import ClassVar

from coppice.schedule.files.set_file import PlanRange, PlanSet, TimedSize
from coppice.schedule.plan import Plan
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.sums import of_all
from coppice.text import percent_text, short_size, time_text

_ROUNDING = 1e-6
"""What floats may add to a time that is counted again, as a share."""

TimeOf = Callable[[Plan, int], float]
"""Simulated time of a plan at a size, in microseconds."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SetReport(Report):
    """Result of the verification of a set of plans."""

    subject: ClassVar[str] = "set of plans"

    reports: tuple[tuple[str, Report], ...] = ()  # Of each plan, by its file or its sizes
    simulated: bool = False  # Times were simulated again


def set_report(plans: PlanSet, reports: Sequence[Report], time_us: TimeOf | None) -> SetReport:
    """Join the reports of the plans of a set, and check what it claims about times.

    Args:
        reports: What the verification of each of ``plans.plans`` says.
        time_us: Simulates a plan under the model of the set; None leaves the times of plans as they are claimed.
    """
    names: dict[int, str] = {}
    for each in plans.ranges:
        names.setdefault(id(each.plan), each.file or each.text)
    named = tuple(zip((names[id(plan)] for plan in plans.plans), reports, strict=True))
    failures = [f"{name}: {sentence}" for name, report in named for sentence in report.failures]
    for each in plans.ranges:
        failures += _faults(plans, each, time_us)
    return SetReport(
        ok=not failures,
        failures=tuple(failures),
        checked={"plans": len(reports), "ranges": len(plans.ranges), "sizes": len(plans.sizes)},
        reports=named,
        simulated=time_us is not None,
        sums=of_all([report.sums for report in reports]),
    )


def _faults(plans: PlanSet, each: PlanRange, time_us: TimeOf | None) -> Iterator[str]:
    """Claims about times that do not hold."""
    for row in each.sizes:
        where = f"{each.file or each.text} at {short_size(row.size_bytes)}"
        times = (row.simulated_seconds, row.fastest_seconds, row.least_seconds)
        if not all(isfinite(time) and time >= 0 for time in times):
            yield f"{where}: expected times of 0 or more seconds, found {', '.join(map(str, times))}"
            continue
        yield from _contradictions(plans, row, where)
        if time_us is not None:
            found = time_us(each.plan, row.size_bytes)
            if not isclose(found, row.simulated_seconds * 1e6, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
                yield (
                    f"{where}: expected a simulated time of {_us(row.simulated_seconds)}, as claimed, found "
                    f"{time_text(found)} (model {plans.model_name})"
                )


def _contradictions(plans: PlanSet, row: TimedSize, where: str) -> Iterator[str]:
    """Claims of one size that do not go together."""
    own, least = row.simulated_seconds, row.least_seconds
    if own > row.fastest_seconds * (1 + plans.least_gain) * (1 + _ROUNDING):
        over = percent_text(Fraction(str(plans.least_gain)))
        yield (
            f"{where}: expected a plan within {over} of the fastest, {row.fastest_name} with "
            f"{_us(row.fastest_seconds)}, found {_us(own)}"
        )
    if own < least * (1 - _ROUNDING):
        yield f"{where}: expected no time below the least of {_us(least)}, found {_us(own)}"
    gap = max(0.0, own / least - 1) if least else 0.0
    if not isclose(row.gap, gap, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        yield f"{where}: expected a gap of {gap:.6g} between its time and the least, found {row.gap:.6g}"


def _us(seconds: float) -> str:
    return time_text(seconds * 1e6)
