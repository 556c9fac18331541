"""Decide whether a schedule of given steps, rounds and chunks exists: by bounds, else by Z3.

A collective that adds is decided by its dual; an all-reduce as a reduce-scatter and the all-gather after it, over all
ways to share steps and rounds between the two. Everything that is found out is kept, as fronts ask again.

No number of chunks goes below the fewest rounds per chunk of S steps, by a linear program proved in fractions. Chunks
may be cut at will and steps may have any fraction of a round: what a rank sends of a block in a step, it had before,
and what it has came to it. An instance is then a point of the program, divided by its number of chunks, so fewer rounds
per chunk than the optimum are impossible in S steps for any number of chunks. The program is convex, so symmetries may
be imposed without loss. The bound on the collective itself (:func:`coppice.bounds.bound`), whatever the steps, is often
the stronger one where there are many; the larger of both counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Protocol

import numpy as np

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import UnreachableError
from coppice.planners.synthesis.sccl.encoding import ChunkSend, SendSolution, StepFormula, StepInstance
from coppice.planners.synthesis.sccl.model import (
    Commodity,
    StepModel,
    SymmetryImages,
    dual,
    model_of,
    slot_weights,
)
from coppice.planners.synthesis.sccl.routes import StepRoutes, find_routes
from coppice.planners.synthesis.synthesizing import Request, Status
from coppice.rows import offsets
from coppice.schedule.schedule import Op, Schedule


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SendPhase(Brief):
    """Sends in consecutive steps."""

    sends: tuple[ChunkSend, ...]  # What is sent, in the order of the steps
    routes: StepRoutes  # The routes that they take
    steps: int  # Number of steps
    # The sends are those of the dual on the network with its links turned round, and are run backwards
    reduces: bool


def schedule_of(problem: Problem, phases: list[SendPhase], chunks: int) -> Schedule:
    """Schedule of consecutive phases.

    Args:
        phases: One, or a reduce-scatter and an all-gather.
        chunks: Chunks of a block of weight 1.
    """
    weights = slot_weights(problem)
    cut = np.maximum(weights, 1) * chunks
    first = offsets(cut)
    rows: list[tuple[int, int, int, int, int, tuple[int, ...]]] = []
    offset = 0
    for phase in phases:
        for send in phase.sends:
            ends = phase.routes.src[send.route], phase.routes.dst[send.route]
            path = phase.routes.path[send.route]
            step = offset + (phase.steps - send.step if phase.reduces else send.step - 1)
            if phase.reduces:
                ends, path = ends[::-1], path[::-1]
            chunk = int(first[send.slot]) + send.chunk
            op = Op.REDUCE if phase.reduces else Op.COPY
            rows.append((step, *ends, chunk, int(op), path))
        offset += phase.steps
    rows.sort()
    paths = sorted({row[5] for row in rows})
    place = {path: i for i, path in enumerate(paths)}
    columns = np.array([row[:5] for row in rows], dtype=np.int64).reshape(-1, 5)
    return Schedule(
        topology=problem.topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=weights,
        chunk_slot=np.repeat(np.arange(len(weights), dtype=np.int32), cut),
        chunk_share=np.ones(int(first[-1]), dtype=np.int64),
        src=columns[:, 1].astype(np.int32),
        dst=columns[:, 2].astype(np.int32),
        chunk=columns[:, 3].astype(np.int32),
        op=columns[:, 4].astype(np.int8),
        path=np.array([place[row[5]] for row in rows], dtype=np.int32),
        step=columns[:, 0].astype(np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=offsets(np.array([len(path) for path in paths], dtype=np.int64)),
        path_nodes=np.array([node for path in paths for node in path], dtype=np.int32),
    )


MOST_COLUMNS = 60_000


def fewest_rounds_per_chunk(
    model: StepModel, steps: int, *, time_limit_s: float | None = None
) -> Fraction | None:
    """No schedule of so many steps has fewer rounds per chunk; None where the program is too large or out of time.

    Args:
        steps: As many as the distances ask for, or more.
        time_limit_s: Give up after so many seconds.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.synthesis.sccl.model import model_of
        >>> from coppice.planners.synthesis.sccl.routes import find_routes
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-1v")
        >>> model = model_of(Problem(box, "all_gather"), find_routes(box))
        >>> fewest_rounds_per_chunk(model, 2), fewest_rounds_per_chunk(model, 3)
        (Fraction(3, 2), Fraction(7, 6))
    """
    if not model.blocks:
        return Fraction(0)
    program = _RoundsProgram(model, steps)
    if program.columns > MOST_COLUMNS:
        return None
    solver = LinearProgram([-1] * steps + [0] * (program.columns - steps), program.upper)
    solver.add_rows(program.rows)
    if solver.solve(time_limit=time_limit_s) is None:
        return None
    vertex = solver.exact_vertex()
    return None if vertex is None else -vertex.objective


class _RoundsProgram:
    """Columns: rounds of each step, then for each representative what it sends and what each rank has."""

    def __init__(self, model: StepModel, steps: int) -> None:
        self.model, self.steps = model, steps
        self.columns = steps
        self.upper: list[int | None] = [None] * steps
        self.rows: list[Constraint] = []
        self._send: dict[
            tuple[int, int], list[tuple[int, int]]
        ] = {}  # route, step: column, weight of the block
        for block in model.representatives(model.images):
            self._block(block)
        self._groups()

    def _column(self, upper: int | None) -> int:
        self.upper.append(upper)
        self.columns += 1
        return self.columns - 1

    def _row(self, entries: dict[int, int], bound: int = 0) -> None:
        self.rows.append(
            Constraint(
                column=np.fromiter(entries, dtype=np.int32, count=len(entries)),
                value=np.fromiter(entries.values(), dtype=np.int64, count=len(entries)),
                bound=bound,
            )
        )

    def _block(self, block: Commodity) -> None:
        model, steps = self.model, self.steps
        span = model.span(block, steps)
        has: dict[tuple[int, int], int] = {}

        def where(rank: int, step: int) -> int | None:
            """The column of what a rank has after a step; -1: all; None: nothing."""
            earliest, latest = span[rank]
            if rank == block.source or (rank in block.targets and step >= steps):
                return -1
            if step < earliest or earliest > latest:
                return None
            step = min(step, latest)
            if (rank, step) not in has:
                has[rank, step] = self._column(1)
            return has[rank, step]

        coming: dict[tuple[int, int], list[int]] = {}
        for window in model.windows(block, steps):
            src, dst = model.routes.src[window.route], model.routes.dst[window.route]
            for step in range(window.first, window.last + 1):
                column = self._column(1)
                self._send.setdefault((window.route, step), []).append((column, block.weight))
                coming.setdefault((dst, step), []).append(column)
                owned = where(src, step - 1)
                if owned is not None and owned >= 0:
                    self._row({column: 1, owned: -1})
        for rank, (earliest, latest) in enumerate(span):
            if rank == block.source or earliest > latest:
                continue
            for step in range(earliest, latest + 1):
                now, before = where(rank, step), where(rank, step - 1)
                entries = dict.fromkeys(coming.get((rank, step), ()), -1)
                if before is not None:
                    entries[before] = -1
                bound = 0
                if now is not None and now >= 0:
                    entries[now] = entries.get(now, 0) + 1
                else:
                    bound = -1
                self._row({column: value for column, value in entries.items() if value}, bound)

    def _groups(self) -> None:
        unit = self.model.routes.unit
        for group, sources in self.model.groups(self.model.images):
            for step in range(1, self.steps + 1):
                entries = {step - 1: -group.rate * unit.denominator}
                for element in sources:
                    for route in element:
                        for column, weight in self._send.get((route, step), ()):
                            entries[column] = entries.get(column, 0) + weight * unit.numerator
                if len(entries) > 1:
                    self._row(entries)


FIRST_CONFLICTS = 1_000
"""Conflicts of the first attempt at an instance; each further one, with another seed, has four times as many."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class InstanceVerdict(Brief):
    """Decision about an instance."""

    status: Status  # Whether there is a schedule
    why: str = ""  # What proves that there is none, in words; empty otherwise
    phases: tuple[SendPhase, ...] = ()  # The sends, in one phase or two
    rounds: tuple[int, ...] = ()  # Rounds of each step


class InstanceDecider(Protocol):
    """Decide instances of one problem."""

    fewest_steps: int
    """No schedule has fewer steps."""
    least: Fraction
    """No schedule has fewer rounds per chunk."""

    def least_in(self, steps: int) -> Fraction:
        """Lower bound on the rounds per chunk with so many steps."""

    def can_reach(self, chunks: int) -> bool:
        """Whether :attr:`least` is not excluded with so many chunks."""

    def decide(self, instance: StepInstance, conflicts: int | None = None) -> InstanceVerdict:
        """Decide an instance within the deadline and a limit on solver conflicts.

        A conflict in a formula of n thousand literals counts n times, as it takes about as long.
        """


def decider_of(
    request: Request, *, detour: int, round_gb_per_s: Fraction | None
) -> tuple[InstanceDecider, Fraction]:
    """Decider of a request, and the rate in GB/s of one chunk per round."""
    problem = request.problem
    unit = find_routes(problem.topology, detour=detour, round_gb_per_s=round_gb_per_s).round_gb_per_s
    if problem.collective is not Collective.ALL_REDUCE:
        return _OnePhase(request, problem, detour=detour, unit=unit), unit
    halves = [
        _OnePhase(request, replace(problem, collective=half), detour=detour, unit=unit)
        for half in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    ]
    return _TwoPhases(halves[0], halves[1]), unit


class _OnePhase:
    """A collective that is one phase."""

    def __init__(self, request: Request, problem: Problem, *, detour: int, unit: Fraction) -> None:
        turned = dual(problem)
        forward = problem if turned is None else turned
        routes = find_routes(forward.topology, detour=detour, round_gb_per_s=unit)
        self.request, self.reduces = request, turned is not None
        self.model = model_of(forward, routes)
        for block in self.model.blocks:
            for rank in sorted(block.targets):
                if self.model.distances[block.source, rank] < 0:
                    ends = (rank, block.source) if self.reduces else (block.source, rank)
                    raise UnreachableError(
                        f"rank {ends[1]} needs what rank {ends[0]} has, found no route on {problem.topology.name}: "
                        "add links or leave a rank out."
                    )
        self.fewest_steps = self.model.fewest_steps
        self.least = bound_of(forward).inv_rate * unit if self.model.blocks else Fraction(0)
        self._known: dict[StepInstance, InstanceVerdict] = {}
        self._least_in: dict[int, Fraction] = {}

    def least_in(self, steps: int) -> Fraction:
        """See :class:`Decider`."""
        if self._least_in.get(steps - 1) == self.least:
            return self.least  # more steps never need more rounds
        if steps not in self._least_in:
            found = fewest_rounds_per_chunk(self.model, steps, time_limit_s=self.request.seconds_left)
            self._least_in[steps] = self.least if found is None else max(self.least, found)
        return self._least_in[steps]

    def can_reach(self, chunks: int) -> bool:
        """See :class:`Decider`."""
        rounds = self.least * chunks
        if rounds.denominator > 1 or rounds < self.fewest_steps:
            return False
        return any(self.least_in(steps) == self.least for steps in range(self.fewest_steps, int(rounds) + 1))

    def decide(self, instance: StepInstance, conflicts: int | None = None) -> InstanceVerdict:
        """See :class:`Decider`."""
        known = self._known.get(instance)
        if known is None:
            known = self._bounded(instance)
            if known is None:
                known = self._searched(instance, math.inf if conflicts is None else conflicts)
            if known.status is not Status.UNKNOWN:
                self._known[instance] = known
        return known

    def _bounded(self, instance: StepInstance) -> InstanceVerdict | None:
        """What the bounds say."""
        if instance.steps < self.fewest_steps:
            return _none(f"the farthest block needs {self.fewest_steps} steps")
        if instance.rounds < instance.steps:
            return _none("a step takes a round or more")
        if Fraction(instance.rounds, instance.chunks) < self.least:
            return _none(f"the collective needs {self.least} rounds per chunk")
        least = self.least_in(instance.steps)
        if Fraction(instance.rounds, instance.chunks) < least:
            return _none(f"{instance.steps} steps need {least} rounds per chunk")
        return None

    def _searched(self, instance: StepInstance, budget: float) -> InstanceVerdict:
        """What Z3 says: many short attempts, as most schedules are found soon or late; then longer ones.

        Each round of attempts looks for symmetric schedules with the rounds of each step open and with even shares of
        them, then for any schedule, and has four times as many conflicts as the last.
        """
        model = self.model
        shares = even_shares(instance.rounds, instance.steps)
        formulas: dict[int, StepFormula] = {}
        searched: list[tuple[SymmetryImages, list[tuple[int, ...] | None]]] = [
            (model.images, [None, *shares]),
            (model.trivial, [None]),
        ]
        if model.images.order == 1:
            searched.pop()
        conflicts, seed, tried = FIRST_CONFLICTS, self.request.seed, False
        while True:
            for images, open_shares in searched:
                for share in list(open_shares):
                    if self._late:
                        return InstanceVerdict(status=Status.UNKNOWN)
                    if images.order not in formulas:
                        formulas[images.order] = StepFormula(model, instance, images)
                    formula = formulas[images.order]
                    price = conflicts * max(1.0, formula.num_literals / 1000)
                    if tried and price > budget:
                        return InstanceVerdict(status=Status.UNKNOWN)
                    budget, tried = budget - price, True
                    found = formula.attempt(
                        seed=seed, conflicts=conflicts, rounds=share, deadline=self.request.deadline
                    )
                    if found.status is Status.SAT:
                        return self._verdict(found, instance)
                    if found.status is Status.UNSAT and share is not None:
                        open_shares.remove(share)
                    elif found.status is Status.UNSAT and images is searched[-1][0]:
                        return _none("Z3 refutes it")
                    elif found.status is Status.UNSAT:
                        open_shares.clear()
                        break
            conflicts, seed = 4 * conflicts, seed + 1

    @property
    def _late(self) -> bool:
        return self.request.seconds_left == 0

    def _verdict(self, found: SendSolution, instance: StepInstance) -> InstanceVerdict:
        phase = SendPhase(
            sends=found.sends, routes=self.model.routes, steps=instance.steps, reduces=self.reduces
        )
        rounds = found.rounds[::-1] if self.reduces else found.rounds
        return InstanceVerdict(status=Status.SAT, phases=(phase,), rounds=rounds)


class _TwoPhases:
    """A reduce-scatter and the all-gather after it."""

    def __init__(self, first: _OnePhase, second: _OnePhase) -> None:
        self._halves = (first, second)
        self.fewest_steps = first.fewest_steps + second.fewest_steps
        self.least = first.least + second.least
        self.least_in = cache(self._least_in)

    def _least_in(self, steps: int) -> Fraction:
        first, second = self._halves
        sums = [first.least_in(mine) + second.least_in(steps - mine) for mine in self._shares(steps)]
        return min(sums, default=self.least)

    def _shares(self, steps: int) -> list[int]:
        """Steps that the reduce-scatter can have, equal shares first."""
        first, second = (half.fewest_steps for half in self._halves)
        return sorted(range(first, steps - second + 1), key=lambda mine: (abs(2 * mine - steps), mine))

    def can_reach(self, chunks: int) -> bool:
        """See :class:`Decider`."""
        return all(half.can_reach(chunks) for half in self._halves)

    def decide(self, instance: StepInstance, conflicts: int | None = None) -> InstanceVerdict:
        """See :class:`Decider`."""
        if instance.steps < self.fewest_steps:
            return _none(f"reduce-scatter and all-gather need {self.fewest_steps} steps")
        if instance.rounds < instance.steps:
            return _none("a step takes a round or more")
        unknown = False
        for mine in self._shares(instance.steps):
            found = self._shared(instance, mine, conflicts)
            if found.status is Status.SAT:
                return found
            unknown |= found.status is Status.UNKNOWN
        if unknown:
            return InstanceVerdict(status=Status.UNKNOWN)
        return _none("no reduce-scatter leaves an all-gather the steps and rounds that it needs")

    def _shared(self, instance: StepInstance, steps: int, conflicts: int | None) -> InstanceVerdict:
        """The instance with so many steps of reduce-scatter, over all shares of the rounds."""
        first, second = self._halves
        chunks, rest = instance.chunks, instance.steps - steps
        fewest = max(steps, math.ceil(first.least_in(steps) * chunks))
        most = instance.rounds - max(rest, math.ceil(second.least_in(rest) * chunks))
        unknown = False
        for rounds in range(fewest, most + 1):
            scattered = first.decide(StepInstance(steps, rounds, chunks), conflicts)
            if scattered.status is Status.SAT:
                gathered = second.decide(StepInstance(rest, instance.rounds - rounds, chunks), conflicts)
                if gathered.status is Status.SAT:
                    return InstanceVerdict(
                        status=Status.SAT,
                        phases=(*scattered.phases, *gathered.phases),
                        rounds=(*scattered.rounds, *gathered.rounds),
                    )
                # With more rounds for the first, the second has fewer: only if it ran out of time is more to know.
                return InstanceVerdict(status=Status.UNKNOWN) if unknown else gathered
            unknown |= scattered.status is Status.UNKNOWN
        return InstanceVerdict(status=Status.UNKNOWN) if unknown else _none("no share of the rounds suffices")


def even_shares(rounds: int, steps: int) -> list[tuple[int, ...]]:
    """Even distributions of the rounds over steps: the excess in the middle, at the end, or at the start.

    Examples:
        >>> even_shares(7, 3), even_shares(3, 3)
        ([(2, 3, 2), (2, 2, 3), (3, 2, 2)], [])
    """
    if steps < 2 or rounds == steps:
        return []
    each, extra = divmod(rounds, steps)
    found = []
    for start in ((steps - extra) // 2, steps - extra, 0):
        share = tuple(each + (start <= step < start + extra) for step in range(steps))
        if share not in found:
            found.append(share)
    return found


def _none(why: str) -> InstanceVerdict:
    return InstanceVerdict(status=Status.UNSAT, why=why)


def schedule_from(problem: Problem, instance: StepInstance, verdict: InstanceVerdict) -> Schedule:
    """Schedule of a satisfiable instance."""
    return schedule_of(problem, list(verdict.phases), instance.chunks)
