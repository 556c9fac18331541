"""Which instances to decide: the best of those that were asked for, and the front of latency and bandwidth.

Better means fewer rounds per chunk R / C, then fewer steps S. What bounds refute is left out. A choice goes through the
numbers of chunks in ascending order, as small instances are decided soon, and only through what beats the best so far;
a front decides for each number of steps the instances in ascending order of R / C. So what is left at the end is the
best, and everything better is proved not to exist, but for what was left undecided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.planners.synthesis.method import Request, Status
from coppice.planners.synthesis.sccl.deciding import FIRST_CONFLICTS, InstanceDecider, InstanceVerdict
from coppice.planners.synthesis.sccl.encoding import StepInstance
from coppice.text import plural

MANY_CHUNKS = 12
SOME_CHUNKS = 8


@dataclass(frozen=True, kw_only=True)
class AskedInstance:
    """What is given of an instance; None is free."""

    steps: int | None = None
    rounds: int | None = None
    chunks: int | None = None

    @property
    def complete(self) -> StepInstance | None:
        """The only instance, where all is given."""
        if self.steps is None or self.rounds is None or self.chunks is None:
            return None
        return StepInstance(self.steps, self.rounds, self.chunks)


def most_chunks(decider: InstanceDecider) -> int:
    """Chunks to look at where no number is given: the fewest that may reach the bound, if these are not many.

    Examples:
        >>> from types import SimpleNamespace
        >>> most_chunks(SimpleNamespace(can_reach=lambda chunks: chunks % 6 == 0))
        6
    """
    return next((each for each in range(1, MANY_CHUNKS + 1) if decider.can_reach(each)), SOME_CHUNKS)


@dataclass
class InstanceSearch:
    """A search and what it has found so far, which is what an interruption leaves."""

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
        """The deadline is over."""
        return self.request.seconds_left == 0

    def decide(self, instance: StepInstance) -> InstanceVerdict:
        """Decide an instance, and keep it if it is the best."""
        self.request.say(f"deciding {instance}")
        verdict = self.decider.decide(instance, self.conflicts)
        self.decided[instance] = verdict.status
        if verdict.status is Status.SAT and (self.best is None or _cost(instance) < _cost(self.best[0])):
            self.best = (instance, verdict)
        return verdict

    def find(self, asked: AskedInstance) -> Status:
        """The best schedule of those that are asked for, as :attr:`best`."""
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
        """All instances of up to so many chunks that no other beats, as :attr:`front`."""
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

    def _first(self, asked: AskedInstance) -> None:
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

    def _improve(self, asked: AskedInstance, chunks: int) -> bool:
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
