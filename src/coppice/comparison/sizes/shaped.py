"""Schedules for middle sizes that follow the shape of a network: boxes, groups behind switches, and hypercubes."""

from __future__ import annotations

from functools import cached_property
from math import inf

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.sizes.candidates import NEARBY, Candidate, as_it_is_us, for_size
from coppice.comparison.sizes.effort import MOST_RANKS
from coppice.comparison.sizes.matched import LEAST_CHUNK_BYTES, in_full_lines
from coppice.comparison.sizes.ordered import OrderSearch
from coppice.comparison.sizes.side_by_side import side_by_side
from coppice.comparison.sizes.spread import SpreadSearch
from coppice.planners.alternatives import Alternative, Timer
from coppice.planners.choice import PlannerOutput
from coppice.planners.cube_exchange import exchanged_in_cube
from coppice.planners.exchanges_between_boxes import exchanged_between_boxes, ways_in_stages
from coppice.planners.ordering import turned_round
from coppice.planners.over_boxes import rails
from coppice.planners.over_groups import shared_over_groups, switch_groups
from coppice.planners.spread_over_boxes import SpreadShape
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.simulation.channels import transport_profiles
from coppice.simulation.models import Model
from coppice.simulation.simulator import fastest
from coppice.text import plural

_MOST_IN_ORDER, _MOST_HELD_BACK = 2**15, 8
"""A reduction of more transfers is carried out as its mirror and not put in order, with so many simulations."""
_MOST_SHARED, _MOST_SHARED_IN_VAIN = 2**15, 3
"""Transfers of a broadcast over groups, or an exchange in a hypercube, and numbers of chunks, or of halvings, in a row
that gain nothing."""
_MOST_SIDE_BY_SIDE = 2**18
"""Transfers of a broadcast along trees side by side."""
_CUBE_PIECES = (1, 2, 3, 4, 6, 8, 12, 16)
"""Pieces of an exchange in a hypercube: each needs all the steps, of which some runtimes have 64 at most."""


class ShapedSchedules:
    """Schedules that follow the shape of a problem's network.

    Args:
        time_us: What a body takes at a size.
    """

    def __init__(self, problem: Problem, model: Model, time_us: Timer) -> None:
        self.problem, self.model, self.time_us = problem, model, time_us
        self._spread = SpreadSearch(problem, model)

    def at(self, size_bytes: int, best_us: float) -> list[Candidate]:
        """The fastest of each kind at a size, where it comes near the fastest of all there is."""
        return [
            *self.over_boxes(size_bytes, best_us),
            *self.over_groups(size_bytes, best_us),
            *self.side_by_side(size_bytes, best_us),
            *self.in_cube(size_bytes, best_us),
        ]

    def over_boxes(self, size_bytes: int, best_us: float) -> list[Candidate]:
        """What passes between boxes in few messages, with its time; of broadcasts and reductions the fastest one.

        Reductions are told apart by what they take turned round, as broadcasts.
        """
        problem = self.problem
        if problem.weights is not None or problem.topology.num_ranks > MOST_RANKS:
            return []
        if self._exchanges:
            times = [self.time_us(each.made.body, size_bytes) for each in self._exchanges]
            return [
                Candidate(time_us, for_size(each, size_bytes))
                for each, time_us in zip(self._exchanges, times, strict=True)
            ]
        below_us = best_us * NEARBY
        found = self._spread.fastest(
            size_bytes, lambda body, limit_us: self._copied_us(body, size_bytes, limit_us), below_us
        )
        return [self._spread_as(*each, size_bytes) for each in found if each[0] < below_us]

    def _spread_as(self, hoped_us: float, shape: SpreadShape, body: Schedule, size_bytes: int) -> Candidate:
        """A broadcast over boxes, or a reduction, as it is asked for."""
        parameters: dict[str, Parameter] = {
            "over_boxes": "apart" if self._spread.apart else "spread",
            "turns": shape.turns,
            "direct": shape.direct,
            "home_last": shape.home_last,
        }
        name = f"spread over {'ranks' if self._spread.apart else 'boxes'} in {plural(shape.turns, 'turn')}"
        made = PlannerOutput(body=body, parameters=parameters)
        one = Alternative(name=name, made=made, size_bytes=size_bytes)
        return self._as_asked(Candidate(hoped_us, one), size_bytes)

    def side_by_side(self, size_bytes: int, best_us: float) -> list[Candidate]:
        """The fastest broadcast along trees on links between ranks."""
        found: list[Candidate] = []
        if self.problem.weights is not None or not 2 < self.problem.topology.num_ranks <= MOST_RANKS:
            return []
        for one in side_by_side(self.problem, self.model, [size_bytes], most_messages=_MOST_SIDE_BY_SIDE):
            body = one.made.body
            assert isinstance(body, Schedule)
            below_us = min([best_us * NEARBY, *(each.time_us for each in found)])
            time_us = as_it_is_us(body, size_bytes, self.model, below_us)
            if time_us < below_us:
                found = [Candidate(time_us, one)]
        return found

    def in_cube(self, size_bytes: int, best_us: float) -> list[Candidate]:
        """The fastest all-reduce on a hypercube that halves in some dimensions and exchanges in the others."""
        found: list[Candidate] = []
        in_vain = 0
        for halvings, body in enumerate(self._cubes):
            gained = False
            for pieces in _CUBE_PIECES:
                least = LEAST_CHUNK_BYTES * pieces * body.num_chunks if pieces > 1 else 0
                if body.num_transfers * pieces > _MOST_SHARED or size_bytes < least:
                    break
                below_us = min([best_us * NEARBY, *(each.time_us for each in found)])
                cut = in_pieces(body, pieces)
                time_us = as_it_is_us(cut, size_bytes, self.model, below_us)
                if time_us < below_us:
                    gained = True
                    parameters: dict[str, Parameter] = {"halvings": halvings, "pieces": pieces}
                    name = f"exchange after {plural(halvings, 'halving')} in {plural(pieces, 'piece')}"
                    made = PlannerOutput(body=cut, parameters=parameters)
                    found = [Candidate(time_us, Alternative(name=name, made=made, size_bytes=size_bytes))]
            in_vain = 0 if gained else in_vain + len(found)
            if in_vain == _MOST_SHARED_IN_VAIN:
                break
        return found

    @cached_property
    def _cubes(self) -> list[Schedule]:
        """All-reduces on a hypercube in all numbers of dimensions that are halved."""
        ranks = self.problem.topology.num_ranks
        if self.problem.weights is not None or not 2 < ranks <= MOST_RANKS or self.model.steps_bind:
            return []
        made = [exchanged_in_cube(self.problem, halvings=each) for each in range(ranks.bit_length() - 1)]
        return [each for each in made if each is not None]

    def over_groups(self, size_bytes: int, best_us: float) -> list[Candidate]:
        """The fastest broadcast in which ranks of groups take turns to pass on, with its time."""
        problem = self.problem
        others = problem.topology.num_ranks - 1
        if problem.root is None or others >= MOST_RANKS or not switch_groups(problem.topology):
            return []
        found: list[Candidate] = []
        in_vain = 0
        for chunks in self._in_lines(size_bytes, _MOST_SHARED // others):
            body = shared_over_groups(problem, chunks=chunks)
            if body is None or in_vain == _MOST_SHARED_IN_VAIN:
                break
            below_us = min([best_us * NEARBY, *(each.hoped_us for each in found)])
            hoped_us = self._copied_us(body, size_bytes, below_us)
            in_vain += len(found)
            if hoped_us < below_us:
                in_vain = 0
                parameters: dict[str, Parameter] = {"over_groups": True, "chunks": chunks}
                name = f"shared over groups in {plural(chunks, 'chunk')}"
                made = PlannerOutput(body=body, parameters=parameters)
                one = Alternative(name=name, made=made, size_bytes=size_bytes)
                found = [Candidate(hoped_us, one)]
        return [self._as_asked(each, size_bytes) for each in found]

    def _copied_us(self, body: Schedule, size_bytes: int, below_us: float) -> float:
        """What a broadcast takes, or a reduction turned round."""
        reduces = self.problem.collective is Collective.REDUCE
        return as_it_is_us(turned_round(body) if reduces else body, size_bytes, self.model, below_us)

    def _as_asked(self, found: Candidate, size_bytes: int) -> Candidate:
        """A candidate that was judged as a broadcast, with what it takes as what it is."""
        body = found.one.made.body
        if self.problem.collective is not Collective.REDUCE or not isinstance(body, Schedule):
            return found
        if body.num_transfers > _MOST_IN_ORDER:
            back = fastest(turned_round(body), size_bytes, model=self.model, pieces=1, keep_hops=False)
            profiles = {each.name: each for each in transport_profiles(self.model, self.problem.topology)}
            search = OrderSearch(body, self.model, _MOST_HELD_BACK * body.num_transfers)
            ordered = search.as_its_mirror(size_bytes, profiles[back.protocol])
            if ordered is not None:
                return Candidate(ordered.time_us, ordered.alternative(found.one, size_bytes))
        time_us = as_it_is_us(body, size_bytes, self.model, inf)
        return Candidate(time_us, found.one, otherwise_us=found.time_us)

    def _in_lines(self, size_bytes: int, most: int) -> list[int]:
        """Numbers of chunks up to so many: powers of two and half as many more, and those that fill lines."""
        profiles = transport_profiles(self.model, self.problem.topology)
        about = {least * 2**doubled // 2 for least in (2, 3) for doubled in range(most.bit_length())} | {most}
        numbers = {in_full_lines(each, size_bytes, chunks) for each in profiles for chunks in about}
        return sorted(each for each in numbers if each <= min(most, -(-size_bytes // LEAST_CHUNK_BYTES)))

    @cached_property
    def _exchanges(self) -> list[Alternative]:
        """All-reduces in which boxes exchange sums, in one stage and several."""
        joined = rails(self.problem.topology)
        found: list[Alternative] = []
        for stages in ways_in_stages(0 if joined is None else len(joined[0])):
            body = exchanged_between_boxes(self.problem, stages)
            if body is not None:
                words = " x ".join(map(str, stages))
                name = "exchange over rails" + (f" in stages of {words}" if len(stages) > 1 else "")
                made = PlannerOutput(body=body, parameters={"between_boxes": words})
                found.append(Alternative(name=name, made=made))
        return found
