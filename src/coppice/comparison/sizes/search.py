"""Candidates that are made for one size: trees of few hops, and orders in which links idle least.

Both are judged by simulation at that size, and only what is faster than everything else is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.comparison.sizes.exchanges import WholeBlocks, exchanges_on_rails
from coppice.comparison.sizes.matched import LEAST_CHUNK_BYTES, Matched, Matcher, in_full_lines
from coppice.comparison.sizes.ordered import Ordered, OrderSearch, num_rows
from coppice.comparison.sizes.reworked import ReworkStart, fastest_rework
from coppice.planners.alternatives import Alternative, Timer
from coppice.planners.choice import PlannerOutput
from coppice.planners.cube_exchange import exchanged_in_cube
from coppice.planners.forest.bounded_height import bounded_trees, least_height
from coppice.planners.forest.weighted_height import weighted_trees
from coppice.planners.ordering import turned_round
from coppice.planners.over_boxes import exchanged_over_rails, shapes, spread_over_boxes
from coppice.planners.over_groups import shared_over_groups, switch_groups
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.channels import transport_profiles
from coppice.simulation.models import Model
from coppice.simulation.simulator import fastest
from coppice.text import plural
from coppice.topology.symmetry import find_symmetry


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a plan for sizes looks at: counts, so that results do not depend on the machine."""

    catalogue: int  # Transfers of algorithms of the catalogue that are made
    ordering: int  # Transfers that are simulated to find an order, for each size
    growing: (
        int  # Ranks that trees of bounded height are grown to, with those of all roots and numbers of trees
    )
    matching: int  # Transfers that are matched with links over time, for each size
    reworking: int  # Looks at what links serve while schedules are improved, for each size


EFFORTS: Mapping[str, Effort] = {
    "quick": Effort(catalogue=0, ordering=0, growing=0, matching=0, reworking=0),
    "normal": Effort(catalogue=2**22, ordering=2**20, growing=2**10, matching=2**19, reworking=2**25),
    "high": Effort(catalogue=2**26, ordering=2**24, growing=2**17, matching=2**23, reworking=2**30),
}

ORDER_GAIN = 0.002
"""Share of the time that an order has to save: schedules as they are made have fewer rows, and suit more sizes."""

NEARBY = 1.3
"""What takes so many times the fastest as it is made may be the fastest in another order."""
_MOST_ORDERED, _MOST_REWORKED = 5, 3
_WORTH = 0.98
"""Trees of more hops, or more trees, are looked at where their busiest link carries less than this share."""
_MOST_RANKS, _MOST_ROWS, _MOST_TREES = 128, 2**14, 32
_MOST_EDGES, _GROWN = 2**15, 2**10
"""Edges of a forest of weighted trees, and what effort is multiplied by for the trees that are grown for it."""
_LOADED = 0.1
"""Trees are packed in weights where links that are full all the time take this share of the fastest time: weights spare
links, not hops."""
_MOST_SPREAD = 2**15
"""Transfers of a broadcast over boxes that is looked at."""
_MOST_SHARED, _MOST_SHARED_IN_VAIN = 2**15, 3
"""Transfers of a broadcast over groups, or an exchange in a hypercube, and numbers of chunks, or of halvings, in a row
that gain nothing."""
_CUBE_PIECES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Pieces of an exchange in a hypercube: each needs all the steps, of which some runtimes have 64 at most."""
_MORE_HOPS, _MORE_HOPS_WEIGHTED = 3, 7
"""Trees of one weight, and those of several, are grown with up to so many hops more than the fewest."""
_MOST_IN_VAIN = 2
"""Heights in a row that spare no link after which no higher trees are packed in weights."""


@dataclass(frozen=True)
class _Ranked:
    """What there is for a size, and what it takes."""

    time_us: float
    one: Alternative
    mirrored_us: float = inf  # What it takes backwards

    @property
    def hoped_us(self) -> float:
        """What it may take in another order."""
        return min(self.time_us, self.mirrored_us)


class SizeSearch:
    """Search at one size after another of the same problem.

    Args:
        made: What there is already, for any size.
        time_us: What a body takes at a size.
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
        plain: Bound,
        say: Callable[[str], object],
    ) -> None:
        self.problem, self.model, self.effort, self.plain = problem, model, effort, plain
        self.made, self.time_us, self.say = made, time_us, say
        self._spread: dict[tuple[int, int], Schedule] = {}

    def at(self, size_bytes: int, limit_us: float) -> list[tuple[Alternative, float]]:
        """What is faster at a size than all there is, with its time; nothing where ``limit_us`` is reached already."""
        ranked = [_Ranked(self.time_us(one.made.body, size_bytes), one) for one in self.made]
        best_us = min(each.time_us for each in ranked)
        if best_us <= limit_us or not self.effort.ordering:
            return []
        busy_us = size_bytes * float(self.plain.inv_rate / self.problem.shards) / 1000
        weighted = self._weighted if busy_us > _LOADED * best_us else []
        for one in (*self._low, *weighted):
            found = self._about_us(one.made.body, size_bytes, best_us * NEARBY)
            ranked.append(_Ranked(found, _for_size(one, size_bytes)))
        ranked += self._over_boxes(size_bytes, best_us)
        ranked += self._exchanges(size_bytes, best_us, limit_us)
        ranked += self._over_groups(size_bytes, best_us)
        ranked += self._in_cube(size_bytes, best_us)
        ranked += self._matched(size_bytes, best_us)
        lowest = min(ranked, key=lambda each: each.time_us)
        near = sorted(
            (each for each in ranked if each.hoped_us <= best_us * NEARBY and not _is_held_back(each.one)),
            key=lambda each: each.hoped_us,
        )
        ordered = self._in_order(near[:_MOST_ORDERED], size_bytes, lowest.time_us, limit_us)
        best = (lowest.one, lowest.time_us) if ordered is None else ordered
        ones = [best[0], *(each.one for each in near if each.one is not best[0])]
        best = self._reworked(ones, size_bytes, best[1], best_us, limit_us) or best
        return [best] if best[1] < best_us else []

    def _reworked(
        self, ones: Sequence[Alternative], size_bytes: int, least_us: float, best_us: float, limit_us: float
    ) -> tuple[Alternative, float] | None:
        """One of the alternatives or of what was matched, improved, if that is faster than ``least_us``."""
        below_us = least_us * (1 - ORDER_GAIN)
        if below_us <= limit_us:
            return None
        self.say("reworking schedules")
        profiles = {each.name: each for each in transport_profiles(self.model, self.problem.topology)}
        starts: list[tuple[Alternative, ReworkStart]] = []
        for one in ones[:_MOST_REWORKED]:
            timeline = fastest(one.made.body, size_bytes, model=self.model, keep_hops=False)
            start = ReworkStart(
                body=one.made.body, profile=profiles[timeline.protocol], pieces=timeline.pieces
            )
            starts.append((one, start))
        for matched in self._matcher.fastest(size_bytes, best_us * NEARBY)[:_MOST_REWORKED]:
            body = self._matcher.schedule(matched)
            one = self._made_of(matched, body, size_bytes)
            starts.append(
                (one, ReworkStart(body=body, profile=profiles[matched.profile.name], in_order=True))
            )
        found = fastest_rework(
            [start for _, start in starts],
            size_bytes,
            self.model,
            self._matcher.routes,
            looks=self.effort.reworking,
            enough_us=limit_us,
        )
        if found is None:
            return None
        one, start = starts[found[0]]
        best: tuple[Alternative, float] | None = None
        for body in found[1].schedules():
            time_us = self._as_it_is_us(body, size_bytes, below_us)
            if time_us < below_us and verify_schedule(body, relay_gpus=True).ok:
                parameters: dict[str, Parameter] = {**one.made.parameters, "reworked_for": size_bytes}
                if start.profile.name is not None:
                    parameters["protocol"] = start.profile.name
                name, made = f"{one.name}, reworked", PlannerOutput(body=body, parameters=parameters)
                best_one = Alternative(name=name, made=made, planner=one.planner, size_bytes=size_bytes)
                below_us, best = time_us, (best_one, time_us)
        return best

    def _in_order(
        self, ranked: Sequence[_Ranked], size_bytes: int, least_us: float, limit_us: float
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
                best_us, best = found.time_us, _ordered(one, found, size_bytes)
        return None if best is None else (best, best_us)

    def _over_boxes(self, size_bytes: int, best_us: float) -> list[_Ranked]:
        """What passes between boxes in few messages, with its time; of broadcasts and reductions the fastest one.

        Terms that come late keep a sum waiting, which an order mends. So reductions are told apart by what they take
        backwards, as broadcasts.
        """
        problem = self.problem
        if problem.weights is not None or problem.topology.num_ranks > _MOST_RANKS:
            return []
        if self._exchanged is not None:
            time_us = self.time_us(self._exchanged.made.body, size_bytes)
            return [_Ranked(time_us, _for_size(self._exchanged, size_bytes))]
        found: list[_Ranked] = []
        fastest_in = 0
        rows, apart = self._spread_rows
        for segments, direct in shapes(rows, _MOST_SPREAD):
            if found and segments > 2 * fastest_in:
                break  # more of them have been slower
            if (segments, direct) not in self._spread:
                made = spread_over_boxes(problem, segments=segments, direct=direct, apart=apart)
                assert made is not None
                self._spread[segments, direct] = made
            body = self._spread[segments, direct]
            below_us = min([best_us * NEARBY, *(each.hoped_us for each in found)])
            hoped_us = time_us = self._as_it_is_us(body, size_bytes, below_us)
            if problem.collective is Collective.REDUCE:
                hoped_us = min(hoped_us, self._as_it_is_us(turned_round(body), size_bytes, below_us))
            if not found or hoped_us < found[-1].hoped_us:
                parameters: dict[str, Parameter] = {
                    "over_boxes": "apart" if apart else "spread",
                    "segments": segments,
                    "direct": direct,
                }
                made_for = PlannerOutput(body=body, parameters=parameters)
                over = "ranks" if apart else "boxes"
                name = f"spread over {over} in {plural(segments, 'segment')}"
                one = Alternative(name=name, made=made_for, size_bytes=size_bytes)
                found = [_Ranked(time_us, one, mirrored_us=hoped_us)]
                fastest_in = segments
        return found

    def _in_cube(self, size_bytes: int, best_us: float) -> list[_Ranked]:
        """The fastest all-reduce on a hypercube that halves in some dimensions and exchanges in the others."""
        found: list[_Ranked] = []
        in_vain = 0
        for halvings, body in enumerate(self._cubes):
            gained = False
            for pieces in _CUBE_PIECES:
                least = LEAST_CHUNK_BYTES * pieces * body.num_chunks if pieces > 1 else 0
                if body.num_transfers * pieces > _MOST_SHARED or size_bytes < least:
                    break
                below_us = min([best_us * NEARBY, *(each.time_us for each in found)])
                cut = in_pieces(body, pieces)
                time_us = self._as_it_is_us(cut, size_bytes, below_us)
                if time_us < below_us:
                    gained = True
                    parameters: dict[str, Parameter] = {"halvings": halvings, "pieces": pieces}
                    name = f"exchange after {plural(halvings, 'halving')} in {plural(pieces, 'piece')}"
                    made = PlannerOutput(body=cut, parameters=parameters)
                    found = [_Ranked(time_us, Alternative(name=name, made=made, size_bytes=size_bytes))]
            in_vain = 0 if gained else in_vain + len(found)
            if in_vain == _MOST_SHARED_IN_VAIN:
                break
        return found

    @cached_property
    def _cubes(self) -> list[Schedule]:
        """All-reduces on a hypercube in all numbers of dimensions that are halved."""
        ranks = self.problem.topology.num_ranks
        if self.problem.weights is not None or not 2 < ranks <= _MOST_RANKS or self.model.steps_bind:
            return []
        made = [exchanged_in_cube(self.problem, halvings=each) for each in range(ranks.bit_length() - 1)]
        return [each for each in made if each is not None]

    def _over_groups(self, size_bytes: int, best_us: float) -> list[_Ranked]:
        """The fastest broadcast in which ranks of groups take turns to pass on, with its time."""
        problem = self.problem
        others = problem.topology.num_ranks - 1
        if problem.root is None or others >= _MOST_RANKS or not switch_groups(problem.topology):
            return []
        found: list[_Ranked] = []
        in_vain = 0
        for chunks in self._in_lines(size_bytes, _MOST_SHARED // others):
            body = shared_over_groups(problem, chunks=chunks)
            if body is None or in_vain == _MOST_SHARED_IN_VAIN:
                break
            below_us = min([best_us * NEARBY, *(each.hoped_us for each in found)])
            hoped_us = time_us = self._as_it_is_us(body, size_bytes, below_us)
            if problem.collective is Collective.REDUCE:
                hoped_us = min(hoped_us, self._as_it_is_us(turned_round(body), size_bytes, below_us))
            in_vain += len(found)
            if hoped_us < below_us:
                in_vain = 0
                parameters: dict[str, Parameter] = {"over_groups": True, "chunks": chunks}
                name = f"shared over groups in {plural(chunks, 'chunk')}"
                made = PlannerOutput(body=body, parameters=parameters)
                one = Alternative(name=name, made=made, size_bytes=size_bytes)
                found = [_Ranked(time_us, one, mirrored_us=hoped_us)]
        for each in [found[0].one] if found and problem.collective is Collective.REDUCE else []:
            search = OrderSearch(each.made.body, self.model, self.effort.ordering)
            mirrored = search.mirrored(size_bytes)
            if mirrored is not None and verify_schedule(mirrored.schedule, relay_gpus=True).ok:
                found.append(_Ranked(mirrored.time_us, _ordered(each, mirrored, size_bytes)))
        return found

    def _in_lines(self, size_bytes: int, most: int) -> list[int]:
        """Numbers of chunks up to so many: powers of two and half as many more, and those that fill lines."""
        profiles = transport_profiles(self.model, self.problem.topology)
        about = {least * 2**doubled // 2 for least in (2, 3) for doubled in range(most.bit_length())} | {most}
        numbers = {in_full_lines(each, size_bytes, chunks) for each in profiles for chunks in about}
        return sorted(each for each in numbers if each <= min(most, -(-size_bytes // LEAST_CHUNK_BYTES)))

    def _matched(self, size_bytes: int, best_us: float) -> list[_Ranked]:
        """Chunks matched with links over time, with their times."""
        self.say("matching chunks with links")
        found: list[_Ranked] = []
        near_us = best_us * NEARBY
        for matched, body in self._matcher.schedules(size_bytes, below_us=near_us):
            one = self._made_of(matched, body, size_bytes)
            found.append(_Ranked(self._as_it_is_us(body, size_bytes, near_us), one))
        return found

    def _exchanges(self, size_bytes: int, best_us: float, limit_us: float) -> list[_Ranked]:
        """All-to-alls over rails, and those of which blocks go one way whole, with their times.

        The latter are left out where the former are fast enough.
        """
        problem = self.problem
        if problem.collective is not Collective.ALL_TO_ALL or problem.demands is not None:
            return []
        if not 2 < problem.topology.num_ranks <= _MOST_RANKS:
            return []
        found: list[_Ranked] = []
        for make in (lambda: self._on_rails, lambda: self._whole_blocks.at(size_bytes)):
            self.say("routing whole blocks")
            for one in make():
                time_us = self._about_us(one.made.body, size_bytes, best_us * NEARBY)
                found.append(_Ranked(time_us, _for_size(one, size_bytes)))
            if found and min(each.time_us for each in found) <= limit_us:
                break
        return found

    @cached_property
    def _on_rails(self) -> list[Alternative]:
        """All-to-alls over rails, each way."""
        return list(exchanges_on_rails(self.problem))

    @cached_property
    def _whole_blocks(self) -> WholeBlocks:
        return WholeBlocks(self.problem, self.model, self.plain)

    def _about_us(self, body: Schedule | Forest, size_bytes: int, near_us: float) -> float:
        """Time of a body in the best number of pieces, if it is near; for ever, if it is not."""
        return fastest(
            body, size_bytes, model=self.model, keep_hops=False, below_us=near_us, give_up_us=near_us
        ).time_us

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

    def _as_it_is_us(self, body: Schedule, size_bytes: int, below_us: float) -> float:
        """Time of a schedule whose chunks are not cut."""
        return fastest(
            body, size_bytes, model=self.model, pieces=1, keep_hops=False, below_us=below_us
        ).time_us

    @cached_property
    def _exchanged(self) -> Alternative | None:
        """An all-reduce that crosses between boxes once."""
        body = exchanged_over_rails(self.problem)
        if body is None:
            return None
        made = PlannerOutput(body=body, parameters={"over_boxes": "exchange"})
        return Alternative(name="exchange over rails", made=made)

    @cached_property
    def _spread_rows(self) -> tuple[int, bool]:
        """Transfers of a segment of a broadcast over boxes, and whether these are single ranks as there are no others.

        More transfers than are looked at where there is none.
        """
        for apart in (False, True):
            body = spread_over_boxes(self.problem, segments=1, direct=0, apart=apart)
            if body is not None:
                return body.num_transfers, apart
        return _MOST_SPREAD + 1, False

    @cached_property
    def _orbits(self) -> int:
        """Roots whose trees are grown; the others have images of them."""
        problem = self.problem
        ranks = problem.topology.num_ranks
        return 1 if problem.root is not None else ranks // find_symmetry(problem.topology).order

    @property
    def _phases(self) -> int:
        """Phases of the collective that have trees of their own."""
        problem = self.problem
        return 2 if problem.collective.reduces and problem.root is None and len(problem.phases) > 1 else 1

    @cached_property
    def _fewest(self) -> int | None:
        """Least hops of trees; None where there are none, or where growing them takes more than the effort allows."""
        problem = self.problem
        ranks = problem.topology.num_ranks
        if problem.weights is not None or not problem.collective.made_of_trees or ranks < 3:
            return None
        if self._orbits * ranks > self.effort.growing or ranks > _MOST_RANKS:
            return None
        return least_height(problem)

    @cached_property
    def _low(self) -> list[Alternative]:
        """Forests of few hops in several numbers of trees."""
        problem, fewest = self.problem, self._fewest
        if fewest is None:
            return []
        self.say("growing trees of few hops")
        ranks, rooted, orbits = problem.topology.num_ranks, problem.root is not None, self._orbits
        inv_rate = self.plain.inv_rate / self._phases
        found: list[tuple[int, float, Alternative]] = []
        for height in range(fewest, fewest + _MORE_HOPS + 1):
            name = f"trees of {plural(height, 'hop')}"
            for trees in self._numbers:
                rows = trees * ranks * (1 if rooted else ranks)
                if trees * ranks * orbits > self.effort.growing or rows > _MOST_ROWS:
                    continue
                grown = bounded_trees(problem, height=height, trees=trees, inv_rate=inv_rate)
                if grown is None:
                    continue
                busy = grown.inv_rate
                if any(fewer <= trees and busy > _WORTH * other for fewer, other, _ in found):
                    continue  # more hops or more trees for nothing
                parameters: dict[str, Parameter] = {"height": height, "grown_trees": trees}
                made = PlannerOutput(body=grown.forest(), parameters=parameters)
                found.append((trees, busy, Alternative(name=name, made=made)))
        return [one for _, _, one in found]

    @cached_property
    def _weighted(self) -> list[Alternative]:
        """Forests of few hops in weights, with ever more hops until links carry next to what they can."""
        fewest, inv_rate = self._fewest, self.plain.inv_rate / self._phases
        found: list[tuple[float, Alternative]] = []
        if fewest is None:
            return []
        self.say("packing trees of few hops in weights")
        in_vain = 0
        for height in range(fewest, fewest + _MORE_HOPS_WEIGHTED + 1):
            packed = weighted_trees(
                self.problem,
                height=height,
                inv_rate=inv_rate,
                most_grown=_GROWN * self.effort.growing // self.problem.topology.num_ranks**2,
                most_edges=_MOST_EDGES,
            )
            if packed is None:
                continue
            in_vain += 1
            if not found or packed.inv_rate <= _WORTH * found[-1][0]:
                in_vain = 0
                made = PlannerOutput(body=packed.forest(), parameters={"height": height, "weighted": True})
                name = f"weighted trees of {plural(height, 'hop')}"
                found.append((packed.inv_rate, Alternative(name=name, made=made)))
            if in_vain == _MOST_IN_VAIN or _WORTH * packed.inv_rate <= len(packed.phases) * inv_rate:
                break
        return [one for _, one in found]

    @property
    def _numbers(self) -> list[int]:
        """Numbers of trees at a root that are worth a trial, among them those of the optimal forest.

        From one root as many as there are other ranks let each of them pass on a share.
        """
        rooted, ranks = self.problem.root is not None, self.problem.topology.num_ranks
        exact = next((one.made.body for one in self.made if isinstance(one.made.body, Forest)), None)
        numbers = {8, 24, ranks - 1} if rooted else {1, 2, 8}
        if exact is not None:
            shares = exact.total_weight // int(np.gcd.reduce(exact.tree_weight))
            numbers.add(min(shares // (1 if rooted else ranks) or 1, _MOST_TREES))
        return sorted(numbers)


def _is_held_back(one: Alternative) -> bool:
    """Whether rows of an alternative wait for more than what they send: another order is not what it is made for."""
    return isinstance(one.made.body, Schedule) and len(one.made.body.after) > 0


def _for_size(one: Alternative, size_bytes: int) -> Alternative:
    return Alternative(name=one.name, made=one.made, planner=one.planner, size_bytes=size_bytes)


def _ordered(one: Alternative, found: Ordered, size_bytes: int) -> Alternative:
    parameters: dict[str, Parameter] = {"ordered_for": size_bytes, "pieces": found.pieces}
    if found.profile.name is not None:
        parameters["protocol"] = found.profile.name
    return Alternative(
        name=f"{one.name}, ordered in {plural(found.pieces, 'piece')}",
        made=PlannerOutput(body=found.schedule, parameters={**one.made.parameters, **parameters}),
        planner=one.planner,
        size_bytes=size_bytes,
    )
