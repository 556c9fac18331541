"""Plan a set for sizes: few plans, each for a range of sizes, with the bytes at which the plan changes.

All plans that were looked at are simulated at all sizes. At each size a plan is good enough if it is within a share of
the fastest there; of all ways to give every size such a plan, the one is taken that changes the plan least often, and
of those the one that loses least in all. Where the plan changes between two sizes, the byte is found by bisection: both
plans are simulated, and the second one is used from where it is the faster one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import inf
from typing import Any

from coppice.comparison.planned import SizedPlan, gap_over, plan_for, planner_options
from coppice.errors import InputError
from coppice.planners.alternatives import Alternative, Preferred, Timer, preferred
from coppice.planners.planning import plan
from coppice.schedule.files.set_file import PlanRange, PlanSet, TimedSize
from coppice.schedule.plan import Plan
from coppice.simulation.models import Model, model_members, model_of
from coppice.simulation.simulator import fastest

LEAST_GAIN = 0.03
"""Share by which a plan of a set may be slower than the fastest that was found at a size."""

STEPS = 8
"""Sizes of each doubling at which the plan may change."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedSet:
    """A set of verified plans, and the one plan that would lose least at all its sizes."""

    plans: PlanSet
    single: SizedPlan


@dataclass(frozen=True, eq=False, kw_only=True)
class _Stretch:
    """Neighbouring sizes with one alternative."""

    taken: Alternative
    sizes: Sequence[int]
    first_bytes: int
    times: Mapping[int, float]  # In microseconds


def plan_set(
    problem: Any,
    sizes: str | int | Sequence[int | str],
    *,
    least_gain: float = LEAST_GAIN,
    model: Model | str | os.PathLike[str] | None = None,
    effort: str = "normal",
    deterministic: bool = False,
    on_stage: Callable[[str], None] | None = None,
    **options: Any,
) -> PlannedSet:
    """Plan a set for sizes.

    Args:
        problem: As :func:`coppice.planners.planning.plan` takes it.
        sizes: Sizes M in bytes, as a list or as text such as ``"1K:4G:4"``.
        least_gain: The plan changes only for what gains more than this share.
        model: What messages cost: a model or its name; None is the default.
        effort: As :func:`coppice.comparison.planned.plan_for` takes it.
        deterministic: As well: all plans of the set add in the same order.
        on_stage: Called with a few words as each stage begins, for progress.
        options: All other arguments of :func:`coppice.planners.planning.plan`.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = plan_set(preset("ring", gpus=4), "1K:64M:256", collective="all_reduce").plans
        >>> len(found.plans), all(row.simulated_seconds <= 1.03 * row.fastest_seconds for row in found.sizes)
        (3, True)
    """
    if not 0 <= least_gain < 10:
        raise InputError(
            f"expected `least_gain` to be a share of 0 or more, such as 0.03, found {least_gain:g}."
        )
    runs: list[_Stretch] = []
    say = on_stage or (lambda _: None)

    def take(made: Sequence[Alternative], wanted: Sequence[int], time_us: Timer) -> Preferred:
        table = [
            [time_us(one.made.body, size) if one.suits(size) else inf for size in wanted] for one in made
        ]
        say("looking for the sizes at which the plan changes")
        runs.extend(_runs(made, wanted, fewest_changes(table, least_gain), time_us))
        return preferred(made, wanted, time_us)

    single = plan_for(
        problem,
        sizes,
        model=model,
        effort=effort,
        deterministic=deterministic,
        take=take,
        on_stage=on_stage,
        **options,
    )
    posed = ("collective", "root", "weights", "demands")
    left = planner_options({name: value for name, value in options.items() if name not in posed})
    made: dict[int, Plan] = {id(single.preferred.taken): single.result.plan}
    for run in runs:
        if id(run.taken) not in made:
            made[id(run.taken)] = plan(
                single.result.problem,
                choose=_always(run.taken),
                on_stage=on_stage,
                **left,
            ).plan
    assumed = model_of(model)
    ends: list[int | None] = [run.first_bytes - 1 for run in runs[1:]]
    ranges = [
        PlanRange(
            first_bytes=run.first_bytes,
            last_bytes=end,
            plan=made[id(run.taken)],
            sizes=tuple(_timed(single, run, size, assumed) for size in run.sizes),
        )
        for run, end in zip(runs, [*ends, None], strict=True)
    ]
    plans = PlanSet(ranges=tuple(ranges), least_gain=least_gain, model=model_members(assumed))
    return PlannedSet(plans=plans, single=single)


def _always(taken: Alternative) -> Callable[[Iterator[Alternative]], Alternative]:
    """A choice that was made before."""
    return lambda _: taken


def _timed(single: SizedPlan, run: _Stretch, size: int, model: Model) -> TimedSize:
    time_us = run.times[size]
    name, fastest_us = single.preferred.fastest[size]
    least_us = single.least[size].time_us
    return TimedSize(
        size_bytes=size,
        simulated_seconds=time_us / 1e6,
        fastest_seconds=fastest_us / 1e6,
        fastest_name=name,
        least_seconds=least_us / 1e6,
        gap=gap_over(least_us, time_us),
        protocol=fastest(run.taken.made.body, size, model=model, keep_hops=False).protocol,
    )


def fewest_changes(times: Sequence[Sequence[float]], share: float) -> list[int]:
    """For each size a plan within a share of the fastest there, so that the plan changes least often.

    Of equally few changes those are taken that lose least against the fastest, summed over the sizes; then the plan
    that stands first. Exact: one pass over the sizes, for each of which the best way to end with each plan is known.

    Args:
        times: Time of each plan (rows) at each size (columns), above 0.
        share: Loss that is allowed at each size, 0 or more.

    Returns:
        The row of each size.

    Examples:
        >>> fewest_changes([[1, 1, 4], [2, 1.02, 1], [9, 1.01, 3]], 0.03)
        [0, 0, 1]
        >>> fewest_changes([[1, 1, 4], [2, 1.02, 1], [9, 1.01, 3]], 1)
        [1, 1, 1]
    """
    rows, columns = range(len(times)), range(len(times[0]))
    ways: dict[int, tuple[int, Fraction]] = {}
    before: list[dict[int, int]] = []
    for column in columns:
        best = min(times[row][column] for row in rows)
        losses = {
            row: Fraction(times[row][column]) / Fraction(best) - 1 if best else Fraction(0)
            for row in rows
            if times[row][column] <= best * (1 + share)
        }
        if not column:
            ways = {row: (0, loss) for row, loss in losses.items()}
            continue
        # To come from any other row, the way that is best of all is the only one of interest.
        cheapest = min(ways, key=lambda row: (*ways[row], row))
        came: dict[int, int] = {}
        found: dict[int, tuple[int, Fraction]] = {}
        for row, loss in losses.items():
            changed = (ways[cheapest][0] + 1, ways[cheapest][1])
            stays = row in ways and ways[row] <= changed
            changes, lost = ways[row] if stays else changed
            came[row], found[row] = row if stays else cheapest, (changes, lost + loss)
        before.append(came)
        ways = found
    last = min(ways, key=lambda row: (*ways[row], row))
    chosen = [last]
    for came in reversed(before):
        chosen.append(came[chosen[-1]])
    return chosen[::-1]


def _runs(
    made: Sequence[Alternative], sizes: Sequence[int], rows: Sequence[int], time_us: Timer
) -> list[_Stretch]:
    """Neighbouring sizes with one row, and the byte at which each begins."""
    found: list[_Stretch] = []
    for row, places in groupby(range(len(sizes)), key=lambda place: rows[place]):
        held = [sizes[place] for place in places]
        taken, start = made[row], 0
        if found:
            last = found[-1]
            start = change_between(last.sizes[-1], held[0], _faster_than(last.taken, taken, time_us))
        times = {size: time_us(taken.made.body, size) for size in held}
        found.append(_Stretch(taken=taken, sizes=held, first_bytes=start, times=times))
    return found


def _faster_than(one: Alternative, other: Alternative, time_us: Timer) -> Callable[[int], bool]:
    """Whether the other alternative is the faster one at a size."""
    return lambda size: time_us(other.made.body, size) < time_us(one.made.body, size)


def change_between(low: int, high: int, faster: Callable[[int], bool]) -> int:
    """The size from which on the second of two plans is the faster one, by bisection.

    Args:
        low: A size that the first plan is for.
        high: A larger size that the second one is for.
        faster: Whether the second plan is faster at a size.

    Returns:
        A size of which there are eight to each doubling, such as 8K, 9K and so on to 16K; or ``high`` itself.

    Examples:
        >>> change_between(1024, 4096, lambda size: size > 2000), change_between(1024, 4096, lambda size: False)
        (2048, 4096)
    """
    doublings = range(max(0, low.bit_length() - 1), high.bit_length())
    tried = [
        size
        for doubling in doublings
        for part in range(STEPS)
        if low < (size := (1 << doubling) + (part << doubling) // STEPS) < high
    ]
    tried = list(dict.fromkeys([*tried, high]))
    won = len(tried) - 1
    lost = -1
    while won - lost > 1:
        middle = (lost + won) // 2
        if faster(tried[middle]):
            won = middle
        else:
            lost = middle
    return tried[won]
