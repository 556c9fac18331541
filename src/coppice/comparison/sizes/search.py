"""Candidates that are made for one size: trees of few hops, and orders in which links idle least.

Both are judged by simulation at that size, and only what is faster than everything else is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from weakref import WeakKeyDictionary

from coppice.bounds.network import TRANSPOSED
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.comparison.sizes.candidates import (
    FEW_ROWS,
    NEARBY,
    Candidate,
    about_us,
    for_size,
    in_profile_us,
    num_rows,
)
from coppice.comparison.sizes.effort import Effort
from coppice.comparison.sizes.exchanges import ExchangeCandidates
from coppice.comparison.sizes.grown import GrownTrees
from coppice.comparison.sizes.matched import Matched, Matcher
from coppice.comparison.sizes.mirrored import mirror_of
from coppice.comparison.sizes.ordered import OrderSearch
from coppice.comparison.sizes.reworked import MOST_ROWS, ReworkStart, fastest_rework
from coppice.comparison.sizes.shaped import ShapedSchedules
from coppice.comparison.sizes.unstepped import in_pieces_us
from coppice.planners.alternatives import Alternative, Timer
from coppice.planners.choice import PlannerOutput
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.channels import transport_profiles
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.models import Model
from coppice.text import plural

ORDER_GAIN = 0.002
"""Share of the time that an order has to save: schedules as they are made have fewer rows, and suit more sizes."""

_MOST_ORDERED, _MOST_REWORKED = 5, 3
_MOST_SMALL = 3
"""Beside the first ones, so many of those are put in order that have few transfers: they take next to no time."""
_LOADED = 0.1
"""Trees are packed in weights where links that are full all the time take this share of the fastest time: weights spare
links, not hops."""

_NO_TREES = 4
"""Schedules without trees, whose blocks go straight to their receivers, are reworked for this part of the effort."""
_FAR = 0.1
"""What is so far from the least time is reworked for the whole effort, what is nearer for as much less."""
_ROUNDING = 1e-9
"""What a time in floating point may be off by."""


class SizeSearch:
    """Search at one size after another of the same problem.

    Args:
        made: What there is already, for any size.
        time_us: What a body takes at a size.
        times: Of bodies that are simulated under the model.
        plain: The problem's bound.
        say: Called with a few words as each stage begins.
    """

    def __init__(
        self,
        problem: Problem,
        model: Model,
        made: Sequence[Alternative],
        time_us: Timer,
        effort: Effort,
        *,
        times: KnownTimes,
        plain: Bound,
        say: Callable[[str], object],
    ) -> None:
        self.problem, self.model, self.effort, self.plain = problem, model, effort, plain
        self.made, self.time_us, self.times, self.say = made, time_us, times, say
        self._mirrors: WeakKeyDictionary[Schedule | Forest, Schedule | None] = WeakKeyDictionary()
        self._grown = GrownTrees(problem, made, plain.inv_rate, effort.growing)
        self._shaped = ShapedSchedules(problem, model, time_us)
        self._exchanges = ExchangeCandidates(problem, times, plain)

    def at(self, size_bytes: int, limit_us: float) -> list[tuple[Alternative, float]]:
        """What is faster at a size than all there is, with its time; nothing where ``limit_us`` is reached already."""
        as_made = [Candidate(self.time_us(one.made.body, size_bytes), one) for one in self.made]
        best_us = min(each.time_us for each in as_made)
        if best_us <= limit_us or not self.effort.ordering:
            return []
        ranked = [self._otherwise(each, size_bytes, best_us) for each in as_made]
        busy_us = size_bytes * float(self.plain.inv_rate / self.problem.shards) / 1000
        self.say("growing trees of few hops")
        for one in self._grown.at(loaded=busy_us > _LOADED * best_us):
            found = about_us(one.made.body, size_bytes, self.times, best_us * NEARBY, best_us)
            made_for = Candidate(found, for_size(one, size_bytes))
            ranked.append(self._otherwise(made_for, size_bytes, best_us))
        shaped = self._shaped.at(size_bytes, best_us)
        if self.problem.collective is Collective.ALL_REDUCE:  # others were told apart in pieces
            shaped = [self._otherwise(each, size_bytes, best_us) for each in shaped]
        ranked += shaped
        self.say("routing whole blocks")
        ranked += self._exchanges.at(size_bytes, best_us, limit_us)
        self.say("matching chunks with links")
        near_us = NEARBY * min(each.hoped_us for each in ranked)
        ranked += self._matched(size_bytes, near_us)
        lowest = min(ranked, key=lambda each: each.time_us)
        near = sorted(
            (each for each in ranked if each.hoped_us <= best_us * NEARBY and not _is_held_back(each.one)),
            key=lambda each: each.hoped_us,
        )
        unlike = _unlike(near)
        small = [each for each in unlike[_MOST_ORDERED:] if num_rows(each.one.made.body) <= FEW_ROWS]
        best = (lowest.one, lowest.time_us)
        for ones in (unlike[:_MOST_ORDERED], small[:_MOST_SMALL]):
            best = self._in_order(ones, size_bytes, best[1], limit_us) or best
        starts = [best, *((each.one, each.time_us) for each in near if each.one is not best[0])]
        best = self._reworked(starts, size_bytes, best[1], near_us, limit_us) or best
        return [best] if best[1] < best_us else []

    def _otherwise(self, found: Candidate, size_bytes: int, best_us: float) -> Candidate:
        """A candidate with what its mirror takes, or its rows in pieces."""
        near_us, back = best_us * NEARBY, self._mirror(found.one)
        if back is None:
            otherwise_us = in_pieces_us(found.one.made.body, size_bytes, self.times, near_us, best_us)
        else:
            otherwise_us = about_us(back, size_bytes, self.times, near_us, 0.0)
        return replace(found, otherwise_us=otherwise_us)

    def _mirror(self, one: Alternative) -> Schedule | None:
        """What reduces, turned round; copies go as soon as they can anyhow."""
        if self.problem.collective not in TRANSPOSED:
            return None
        body = one.made.body
        if body not in self._mirrors:
            self._mirrors[body] = mirror_of(body)
        return self._mirrors[body]

    def _reworked(
        self,
        ones: Sequence[tuple[Alternative, float]],
        size_bytes: int,
        least_us: float,
        near_us: float,
        limit_us: float,
    ) -> tuple[Alternative, float] | None:
        """One of the alternatives or of what was matched, improved, if that is faster than ``least_us``.

        Args:
            ones: Alternatives, with what they take.
        """
        below_us = least_us * (1 - ORDER_GAIN)
        if below_us <= limit_us:
            return None
        self.say("reworking schedules")
        profiles = {each.name: each for each in transport_profiles(self.model, self.problem.topology)}
        starts: list[tuple[Alternative, ReworkStart]] = []
        for one, known_us in ones[:_MOST_REWORKED]:
            most = MOST_ROWS // max(1, num_rows(one.made.body))
            if not most:
                continue  # too many transfers to improve
            back = self._mirror(one)
            # In which protocol and pieces it takes what it is known to take.
            enough_us = known_us * (1 + _ROUNDING) if back is None and known_us < inf else 0.0
            trial = self.times.fastest(back or one.made.body, size_bytes, most=2 * most, enough_us=enough_us)
            if trial.pieces > most:
                continue  # in as many pieces as are fastest they are too many
            start = ReworkStart(
                body=one.made.body,
                profile=profiles[trial.protocol],
                pieces=trial.pieces,
                mirrored=back is not None,
            )
            starts.append((one, start))
        for matched in self._matcher.fastest(size_bytes, near_us)[:_MOST_REWORKED]:
            body = self._matcher.schedule(matched)
            one = self._made_of(matched, body, size_bytes)
            starts.append(
                (one, ReworkStart(body=body, profile=profiles[matched.profile.name], in_order=True))
            )
        share = min(1.0, (least_us / limit_us - 1) / _FAR) if limit_us else 1.0
        found = fastest_rework(
            [start for _, start in starts],
            size_bytes,
            self.model,
            self._matcher.routes,
            looks=int(self.effort.reworking * share)
            // (1 if self.problem.collective.made_of_trees else _NO_TREES),
            enough_us=limit_us,
        )
        if found is None:
            return None
        one, start = starts[found[0]]
        best: tuple[Alternative, float] | None = None
        for body in found[1].schedules():
            time_us = in_profile_us(body, size_bytes, self.model, start.profile, below_us)
            if time_us < below_us and verify_schedule(body, relay_gpus=True).ok:
                parameters: dict[str, Parameter] = {**one.made.parameters, "reworked_for": size_bytes}
                if start.profile.name is not None:
                    parameters["protocol"] = start.profile.name
                name, made = f"{one.name}, reworked", PlannerOutput(body=body, parameters=parameters)
                best_one = Alternative(name=name, made=made, planner=one.planner, size_bytes=size_bytes)
                below_us, best = time_us, (best_one, time_us)
        return best

    def _in_order(
        self, ranked: Sequence[Candidate], size_bytes: int, least_us: float, limit_us: float
    ) -> tuple[Alternative, float] | None:
        """One of the alternatives in an order that is faster than ``least_us``, if there is one.

        Those of which most is hoped come first, and each is searched with half of what is left.
        """
        self.say("looking for the order of transfers")
        best_us, best = least_us * (1 - ORDER_GAIN), None
        budget = self.effort.ordering
        for one in [each.one for each in ranked]:
            if best_us <= limit_us:
                break
            share = budget // 2
            if num_rows(one.made.body) > share:
                continue
            search = OrderSearch(one.made.body, self.model, share)
            found = search.fastest(size_bytes, below_us=best_us)
            budget -= share - max(0, search.budget)
            if found is not None:
                best_us, best = found.time_us, found.alternative(one, size_bytes)
        return None if best is None else (best, best_us)

    def _matched(self, size_bytes: int, near_us: float) -> list[Candidate]:
        """Chunks matched with links over time, with their times."""
        found: list[Candidate] = []
        for matched, body in self._matcher.schedules(size_bytes, below_us=near_us):
            one = self._made_of(matched, body, size_bytes)
            time_us = in_profile_us(body, size_bytes, self.model, matched.profile, near_us)
            found.append(Candidate(time_us, one))
        return found

    def _made_of(self, matched: Matched, body: Schedule, size_bytes: int) -> Alternative:
        parameters: dict[str, Parameter] = {"matched_for": size_bytes, "chunks": matched.chunks}
        if matched.profile.name is not None:
            parameters["protocol"] = matched.profile.name
        name, made = (
            f"matched in {plural(matched.chunks, 'chunk')}",
            PlannerOutput(body=body, parameters=parameters),
        )
        return Alternative(name=name, made=made, size_bytes=size_bytes)

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(self.problem, self.model, self.effort.matching)


def _unlike(near: Sequence[Candidate]) -> list[Candidate]:
    """Candidates without those that may differ from an earlier one in their order alone.

    These have its name, or as many transfers that take as long.
    """
    seen: set[object] = set()
    found: list[Candidate] = []
    for each in near:
        marks = {each.one.name, (round(each.hoped_us, 6), num_rows(each.one.made.body))}
        if not marks & seen:
            found.append(each)
        seen |= marks
    return found


def _is_held_back(one: Alternative) -> bool:
    """Whether rows of an alternative wait for more than what they send: another order is not what it is made for."""
    return isinstance(one.made.body, Schedule) and len(one.made.body.after) > 0
