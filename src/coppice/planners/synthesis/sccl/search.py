"""Method ``sccl``: schedules of S steps, R rounds and C chunks, exact by SMT.

Z. Cai, Z. Liu, S. Maleki, M. Musuvathi, T. Mytkowicz, J. Nelson, O. Saarikivi, "Synthesizing optimal collective
algorithms", PPoPP 2021. A schedule runs in S steps; step s takes r_s >= 1 rounds, R in all; in a round a link carries
as many chunks as its rate is a multiple of the slowest one's. Its time is S alpha + R / C times that of a block on the
slowest link, so the schedules that no other beats lie between the fewest steps and the fewest rounds per chunk.

What is added to the paper: bounds that no number of chunks goes below (:mod:`.deciding`), so that a front is proved
to be all there is; symmetric schedules first (:mod:`.model`); switches by the links that routes share (:mod:`.routes`).

Better means fewer rounds per chunk R / C, then fewer steps S. What bounds refute is left out. A choice goes through the
numbers of chunks in ascending order, as small instances are decided soon, and only through what beats the best so far;
a front decides for each number of steps the instances in ascending order of R / C. So what is left at the end is the
best, and everything better is proved not to exist, but for what was left undecided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import msgspec

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.synthesis.sccl.deciding import (
    FIRST_CONFLICTS,
    InstanceDecider,
    InstanceVerdict,
    decider_of,
    schedule_from,
)
from coppice.planners.synthesis.sccl.encoding import StepInstance, require_z3
from coppice.planners.synthesis.synthesizing import Request, Status, Synthesis, SynthesisMethod
from coppice.text import plural, rate_text
from coppice.topology.model import exact_rate

MANY_CHUNKS = 12
SOME_CHUNKS = 8


@dataclass(frozen=True, kw_only=True)
class RequestedInstance:
    """Requested steps, rounds and chunks; None is free."""

    steps: int | None = None
    rounds: int | None = None
    chunks: int | None = None

    @property
    def complete(self) -> StepInstance | None:
        """The instance, where all three are given."""
        if self.steps is None or self.rounds is None or self.chunks is None:
            return None
        return StepInstance(self.steps, self.rounds, self.chunks)


def most_chunks(decider: InstanceDecider) -> int:
    """Default limit on chunks: the fewest that may reach the bound, if these are not many.

    Examples:
        >>> from types import SimpleNamespace
        >>> most_chunks(SimpleNamespace(can_reach=lambda chunks: chunks % 6 == 0))
        6
    """
    return next((each for each in range(1, MANY_CHUNKS + 1) if decider.can_reach(each)), SOME_CHUNKS)


@dataclass
class InstanceSearch:
    """A search with its best results, which survive an interruption."""

    decider: InstanceDecider  # Decides instances
    request: Request  # What was asked, with the deadline
    # Of the solver, after which an instance of its own choice is left undecided; None: never
    conflicts: int | None = None
    best: tuple[StepInstance, InstanceVerdict] | None = None  # The best instance that has a schedule, with it
    # Instances that no other beats, by steps, of those steps that are done
    front: list[StepInstance] = field(default_factory=list)
    proved: bool = False  # Nothing that could be better was left undecided
    proved_for_any_chunks: bool = False  # Nothing better exists with more chunks either
    # Every instance that was decided, and how
    decided: dict[StepInstance, Status] = field(default_factory=dict)
    why: str = ""  # What refutes the instance that was asked for

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.request.seconds_left == 0

    def decide(self, instance: StepInstance) -> InstanceVerdict:
        """Decide an instance, and keep it if it is the best."""
        self.request.report(f"deciding {instance}")
        verdict = self.decider.decide(instance, self.conflicts)
        self.decided[instance] = verdict.status
        if verdict.status is Status.SAT and (self.best is None or _cost(instance) < _cost(self.best[0])):
            self.best = (instance, verdict)
        return verdict

    def find(self, asked: RequestedInstance) -> Status:
        """Find the best requested schedule, as :attr:`best`."""
        only = asked.complete
        if only is not None:
            self.conflicts = None
            verdict = self.decide(only)
            self.why, self.proved = verdict.why, verdict.status is not Status.UNKNOWN
            return verdict.status
        if asked.steps is not None and asked.steps < self.decider.fewest_steps:
            self.why, self.proved = f"it needs {self.decider.fewest_steps} steps", True
            return Status.UNSAT
        self._first(asked)
        unknown = False
        for chunks in self._numbers(asked.chunks):
            unknown |= not self._improve(asked, chunks)
            if self.late:
                break
        self.proved = not unknown
        if self.best is not None:
            return Status.SAT
        most = plural(max(self._numbers(asked.chunks)), "chunk")
        self.why = "" if unknown else f"no schedule has these figures with up to {most}"
        return Status.UNKNOWN if unknown else Status.UNSAT

    def find_front(self, chunks: int | None) -> Status:
        """Find the Pareto front of instances up to a number of chunks, as :attr:`front`."""
        most = most_chunks(self.decider) if chunks is None else chunks
        steps, least = self.decider.fewest_steps, None
        proved = any_chunks = True
        while least is None or (least > self.decider.least and steps < least * most):
            found, sure = self._best_of(steps, most, least)
            proved &= sure
            if found is not None:
                self.front.append(found)
                least = Fraction(found.rounds, found.chunks)
            if least is None or self.late:
                proved &= least is not None and least == self.decider.least
                break
            any_chunks &= sure and least <= self.decider.least_in(steps)
            steps += 1
        self.proved = proved and bool(self.front)
        self.proved_for_any_chunks = self.proved and any_chunks and least == self.decider.least
        return Status.SAT if self.front else Status.UNKNOWN

    def _first(self, asked: RequestedInstance) -> None:
        """Some schedule, soon, so that an interruption leaves one: with fewest steps and chunks, and rounds enough."""
        if asked.rounds is not None:
            return
        steps = self.decider.fewest_steps if asked.steps is None else asked.steps
        chunks = asked.chunks or 1
        rounds = max(steps, math.ceil(self.decider.least_in(steps) * chunks))
        effort = self.conflicts
        self.conflicts = FIRST_CONFLICTS
        while self.decide(StepInstance(steps, rounds, chunks)).status is not Status.SAT and not self.late:
            rounds += max(1, rounds // 4)
        self.conflicts = effort

    def _improve(self, asked: RequestedInstance, chunks: int) -> bool:
        """Look for what beats the best with so many chunks; whether nothing was left undecided."""
        decider, sure = self.decider, True
        fewest = decider.fewest_steps if asked.steps is None else asked.steps
        rounds = max(fewest, math.ceil(decider.least * chunks)) if asked.rounds is None else asked.rounds
        while not self.late:
            last = rounds if asked.steps is None else fewest
            for steps in range(fewest, last + 1):
                instance = StepInstance(steps, rounds, chunks)
                if self.best is not None and _cost(instance) >= _cost(self.best[0]):
                    break
                if Fraction(rounds, chunks) >= decider.least_in(steps):
                    sure &= self.decide(instance).status is not Status.UNKNOWN
            rounds += 1
            if asked.rounds is not None or self.best is None:
                return sure
            if Fraction(rounds, chunks) > Fraction(self.best[0].rounds, self.best[0].chunks):
                return sure
        return False

    def _best_of(self, steps: int, most: int, least: Fraction | None) -> tuple[StepInstance | None, bool]:
        """The best instance of so many steps that beats ``least``; and whether all better ones are refuted."""
        sure, bound = True, self.decider.least_in(steps)
        rounds = {chunks: max(steps, math.ceil(bound * chunks)) for chunks in range(1, most + 1)}
        while not self.late:
            chunks = min(rounds, key=lambda each: (Fraction(rounds[each], each), each))
            instance = StepInstance(steps, rounds[chunks], chunks)
            if least is not None and Fraction(instance.rounds, chunks) >= least:
                return None, sure
            verdict = self.decide(instance)
            if verdict.status is Status.SAT:
                return instance, sure
            sure &= verdict.status is Status.UNSAT
            rounds[chunks] += 1
        return None, False

    def _numbers(self, chunks: int | None) -> Iterable[int]:
        """The numbers of chunks to look at."""
        return range(1, most_chunks(self.decider) + 1) if chunks is None else [chunks]


def _cost(instance: StepInstance) -> tuple[Fraction, int, int]:
    return Fraction(instance.rounds, instance.chunks), instance.steps, instance.chunks


_ANY = "with any number of chunks"


class ScclOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the method; unset steps, rounds and chunks are optimised."""

    steps: int | None = None  # Steps S
    rounds: int | None = None  # Rounds R of all steps together
    # Chunks C of every block (of weight 1): of each rank's in an all-gather, of each pair's in an all-to-all.
    # For a front, up to so many.
    chunks: int | None = None
    pareto: bool = False  # All pairs of steps and rounds per chunk that no other beats
    detour: int = 0  # StepRoutes may have so many hops through switches more than the shortest
    # The rate that carries one chunk in a round, such as 25 or 25/2 [default: the slowest link's]
    round_gb_per_s: str | int | float | None = None
    # Of the solver, after which an instance is left undecided, so that a choice or a front ends; 0: never.
    # One in a formula of n thousand literals counts n times. An instance that is given by steps, rounds and
    # chunks is searched to the end.
    conflicts: int = 10_000


def _run(request: Request) -> Synthesis:
    require_z3()
    options: ScclOptions = request.options
    _check(options)
    rate = options.round_gb_per_s
    unit = None if rate is None else exact_rate(rate, where="`round_gb_per_s`")
    decider, unit = decider_of(request, detour=options.detour, round_gb_per_s=unit)
    search = InstanceSearch(decider, request, options.conflicts or None)
    interrupted = False
    try:
        if options.pareto:
            status = search.find_front(options.chunks)
        else:
            status = search.find(
                RequestedInstance(steps=options.steps, rounds=options.rounds, chunks=options.chunks)
            )
    except KeyboardInterrupt:
        if search.best is None:
            raise
        status, interrupted = Status.SAT, True
    report = _ScclReport(search, unit, options)
    if search.best is None or status is not Status.SAT:
        return Synthesis(status=status, details=report.details(), words=report.words())
    instance, verdict = search.best
    return Synthesis(
        status=status,
        body=schedule_from(request.problem, instance, verdict),
        parameters={
            "steps": instance.steps,
            "rounds": instance.rounds,
            "chunks": instance.chunks,
            "round_gb_per_s": str(unit),
            "detour": options.detour,
            "seed": request.seed,
        },
        interrupted=interrupted,
        details=report.details(),
        words=report.words(),
    )


def _check(options: ScclOptions) -> None:
    """Refuse options that make no instance."""
    if options.pareto and (options.steps is not None or options.rounds is not None):
        raise InputError(
            "a front has all steps and rounds that are of use: leave out `steps` and `rounds`, or `pareto`."
        )
    for name, least in (("steps", 0), ("rounds", 0), ("chunks", 1), ("detour", 0), ("conflicts", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise InputError(f"expected `{name}` to be {least} or more, found {value}: correct it.")


@dataclass(frozen=True)
class _ScclReport:
    """What a search has to say."""

    search: InstanceSearch
    unit: Fraction
    options: ScclOptions

    def details(self) -> Mapping[str, Any]:
        """As JSON values."""
        search, decider = self.search, self.search.decider
        found: dict[str, Any] = {
            "round_gb_per_s": str(self.unit),
            "fewest_steps": decider.fewest_steps,
            "least_rounds_per_chunk": str(decider.least),
            "proved": self._proved,
            "proved_for": self._proved_for,
            "most_chunks": self._most_chunks(),
        }
        if search.why:
            found["why"] = search.why
        if search.best is not None:
            instance, verdict = search.best
            found |= {
                "steps": instance.steps,
                "rounds": instance.rounds,
                "chunks": instance.chunks,
                "rounds_per_step": list(verdict.rounds),
                "rounds_per_chunk": str(Fraction(instance.rounds, instance.chunks)),
                "least_rounds_per_chunk_in_steps": str(decider.least_in(instance.steps)),
            }
        if self.options.pareto:
            front = [[each.steps, each.rounds, each.chunks] for each in search.front]
            found |= {
                "front_points": front,
                "front": front,
                "proved_for_any_chunks": search.proved_for_any_chunks,
                "decided": [
                    [each.steps, each.rounds, each.chunks, status.value]
                    for each, status in search.decided.items()
                ],
            }
        return found

    def words(self) -> tuple[tuple[str, str], ...]:
        """For people."""
        decider = self.search.decider
        least = f"{plural(decider.fewest_steps, 'step')}; {decider.least} rounds per chunk"
        lines = [("no schedule has less", least), *self._answer()]
        return (*lines, ("a round", f"one chunk at {rate_text(self.unit)} GB/s"))

    def _answer(self) -> list[tuple[str, str]]:
        search = self.search
        if self.options.pareto:
            front = "  ".join(str(each) for each in search.front) or "none found"
            return [("front", front), ("proved", self._front_proof())]
        if search.best is None:
            return [("why", search.why)] if search.why else []
        instance, verdict = search.best
        steps = " + ".join(str(rounds) for rounds in verdict.rounds) or "0"
        lines = [
            ("steps, rounds, chunks", str(instance)),
            ("rounds per chunk", f"{Fraction(instance.rounds, instance.chunks)} (steps of {steps})"),
        ]
        if self._free:
            lines.append(("chosen", f"the least rounds per chunk, then steps{self._up_to()}"))
        return lines

    @property
    def _free(self) -> bool:
        """Something was left to be chosen."""
        return None in (self.options.steps, self.options.rounds, self.options.chunks)

    @property
    def _proved(self) -> bool:
        """Nothing better of what was asked for was left undecided: with any number of chunks where none was given."""
        return self.search.proved and (self.options.chunks is not None or self._any_chunks)

    @property
    def _proved_for(self) -> str:
        """Among what nothing better exists, in words; empty where instances were left undecided."""
        if not self.search.proved:
            return ""
        if self._any_chunks:
            return _ANY
        up_to = "" if self.options.chunks is not None and not self.options.pareto else "up to "
        return f"with {up_to}{plural(self._most_chunks(), 'chunk')}"

    @property
    def _any_chunks(self) -> bool:
        """Bounds leave no room for something better with more chunks than were looked at."""
        search, options = self.search, self.options
        if options.pareto:
            return search.proved_for_any_chunks
        if search.best is None:  # what one chunk cannot do, more cannot
            return search.proved and options.chunks is None
        if options.chunks is not None:
            return False
        instance, decider = search.best[0], search.decider
        if options.rounds is not None:
            return instance.rounds < decider.least * (self._most_chunks() + 1)
        ratio, fewest = Fraction(instance.rounds, instance.chunks), decider.fewest_steps
        if options.steps is not None:
            return ratio == decider.least_in(instance.steps)
        fewer_steps = instance.steps > fewest and decider.least_in(instance.steps - 1) == ratio
        return ratio == decider.least and not fewer_steps

    def _up_to(self) -> str:
        """Among how many chunks, and whether that was proved."""
        if not self.search.proved:
            return "; the best found, others were left undecided"
        return f", {self._proved_for}"

    def _front_proof(self) -> str:
        if not self.search.proved:
            return "not all of it: some instances were left undecided"
        return f"nothing else is better {self._proved_for}"

    def _most_chunks(self) -> int:
        return most_chunks(self.search.decider) if self.options.chunks is None else self.options.chunks


METHOD = SynthesisMethod(
    name="sccl",
    about="schedules of given steps, rounds and chunks, exact by satisfiability (PPoPP'21)",
    collectives=tuple(each for each in Collective if each is not Collective.BARRIER),
    options=ScclOptions,
    run=_run,
)
