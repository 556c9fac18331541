"""Synthesise a schedule by a published method, verify it, and compare it with the exact bound.

Methods are known by name; a method's module is loaded when it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any

import msgspec

from coppice.arguments import checked
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem, problem_of
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.display import Shown
from coppice.errors import InputError
from coppice.planners.choice import PlannerOutput
from coppice.planners.planning import PlannedResult, Stopwatch, verified
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule


class Status(StrEnum):
    """Outcome of a search."""

    SAT = "sat"
    """There is a schedule, and here it is."""
    UNSAT = "unsat"
    """It is proved that there is none of the kind that was asked for."""
    UNKNOWN = "unknown"
    """The search ended before it knew: a time limit, or Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request to a method."""

    problem: Problem  # The collective on its topology
    options: Any  # The method's own options, an instance of its :attr:`SynthesisMethod.options`
    # Where random choices begin; the same seed gives the same schedule, whatever the number of cores
    seed: int = 0
    # Of :func:`time.monotonic`, when to stop and give the best found so far; None: when it is done
    deadline: float | None = None
    on_progress: Callable[[str], None] | None = None  # Called with a few words now and then

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def report(self, words: str) -> None:
        """Report progress."""
        if self.on_progress is not None:
            self.on_progress(words)


@dataclass(frozen=True, eq=False, kw_only=True)
class Synthesis:
    """Result of a method."""

    status: Status  # What it found out
    # The schedule or forest; None where there is none, or none was found in time
    body: Schedule | Forest | None = None
    # What a plan file says about how it was made: what the answer depends on, so no seconds
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    interrupted: bool = False  # Ctrl-C ended the search; the body is the best found until then
    # What the method has to say beside, as JSON values
    details: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[tuple[str, str], ...] = ()  # The same for people, label and text


@dataclass(frozen=True, kw_only=True)
class SynthesisMethod:
    """A method of synthesis."""

    name: str  # What users call it
    about: str  # What it is, in a line, with its publication
    collectives: tuple[Collective, ...]  # What it synthesises
    # A `msgspec.Struct` (frozen, keyword-only) with its own options and their defaults
    options: type[msgspec.Struct]
    # The search. It raises InputError for what it cannot be asked, UnreachableError where ranks are not
    # connected, and on Ctrl-C gives the best found so far as an interrupted :class:`Synthesis`, or lets
    # KeyboardInterrupt pass if there is none yet.
    run: Callable[[Request], Synthesis]

    def read_options(self, given: Mapping[str, Any]) -> msgspec.Struct:
        """Parse options from values by name, texts from the command line included."""
        known = self.options.__struct_fields__
        for name in given:
            if name not in known:
                has = f"it takes {', '.join(f'`{each}`' for each in known)}" if known else "it takes none"
                raise InputError(f"expected options of method {self.name}, found `{name}`: {has}.")
        try:
            return msgspec.convert(dict(given), decodable(self.options), strict=False)
        except msgspec.ValidationError as error:
            raise InputError(
                f"expected options that method {self.name} can use, found otherwise: {error}."
            ) from None


METHODS = {
    "sccl": "coppice.planners.synthesis.sccl.search",
    "taccl": "coppice.planners.synthesis.taccl.stages",
    "te-ccl": "coppice.planners.synthesis.te_ccl.search",
    "tacos": "coppice.planners.synthesis.tacos",
    "syccl": "coppice.planners.synthesis.syccl.sketches",
    "blink": "coppice.planners.synthesis.blink.packing",
}
"""Module of each method; it has the :class:`SynthesisMethod` as ``METHOD``."""


def method_named(name: str) -> SynthesisMethod:
    """Look up a method by name."""
    if name not in METHODS:
        raise InputError(f"expected a method of synthesis ({', '.join(METHODS)}), found {name!r}.")
    method: SynthesisMethod = import_module(METHODS[name]).METHOD
    return method


@dataclass(frozen=True, kw_only=True, repr=False)
class SynthesizedResult(Shown):
    """Verified result of a synthesis method."""

    problem: Problem  # What was synthesised
    method: str  # Name of the method
    synthesis: Synthesis  # What the method answered
    planned: PlannedResult | None  # The verified plan with its figures; None where there is no schedule
    bound: Bound  # The exact optimum, by which the plan is measured
    seconds: float  # Seconds that the method took

    @property
    def status(self) -> Status:
        """Outcome of the search."""
        return self.synthesis.status

    @property
    def plan(self) -> Any:
        """The plan.

        Raises:
            InputError: If there is none.
        """
        if self.planned is None:
            raise InputError(
                f"method {self.method} found no schedule ({self.status}): ask for more steps, or allow more time."
            )
        return self.planned.plan

    @property
    def gap(self) -> float | None:
        """Relative gap to the optimal rate; None without a schedule."""
        return None if self.planned is None else float(self.planned.loss)

    def __repr__(self) -> str:
        found = self.status if self.planned is None else repr(self.planned).strip("<>")
        return f"<{self.method}: {found}>"

    def record(self) -> dict[str, Any]:
        """The figures as JSON values."""
        plan = self.problem.record() if self.planned is None else self.planned.record()
        return {
            **plan,
            "method": self.method,
            "status": self.status.value,
            "gap": self.gap,
            "interrupted": self.synthesis.interrupted,
            "synthesis_seconds": self.seconds,
            **self.synthesis.details,
        }


@checked
def synthesize(
    problem: Any,
    collective: Collective | str | None = None,
    *,
    method: str,
    options: Mapping[str, Any] | None = None,
    root: int | None = None,
    weights: Sequence[int] | None = None,
    demands: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
    time_limit_s: float | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> SynthesizedResult:
    """Synthesise a schedule, verify it, and compare it with the exact bound.

    Args:
        problem: What to synthesise: a problem, what has one, or a topology (also by name) with a ``collective``.
        collective: The collective, where ``problem`` is a topology.
        method: Name of a method (see :data:`coppice.planners.synthesis.synthesizing.METHODS`).
        options: Options of the method by name.
        root: Root rank of a rooted collective; None is 0.
        weights: Relative shard size of each rank (all_gather, reduce_scatter).
        demands: For all_to_all, relative size from each rank to each.
        seed: Where random choices begin.
        time_limit_s: Seconds after which the best found so far counts; None: until the method is done.
        on_stage: Called with a few words as the search goes on.

    Raises:
        InputError: If the problem has no meaning, or the method does not serve it.
        UnreachableError: If some rank cannot be reached.
        CheckError: If what the method found does not verify, which would be a defect of the method.
    """
    asked = problem_of(problem, collective, root=root, weights=weights, demands=demands)
    chosen = method_named(method)
    if asked.collective not in chosen.collectives:
        raise InputError(
            f"method {method} synthesises {', '.join(chosen.collectives)}, found {asked.collective}: "
            "choose another method."
        )
    if time_limit_s is not None and not time_limit_s > 0:
        raise InputError(f"expected a time limit above 0 seconds, found {time_limit_s}.")
    read = chosen.read_options(options or {})
    watch = Stopwatch(on_stage)
    with watch.stage("bound", "computing the bound"):
        found = bound_of(asked)
    with watch.stage("plan", f"synthesising by {method}"):
        answer = chosen.run(
            Request(
                problem=asked,
                options=read,
                seed=seed,
                deadline=None if time_limit_s is None else time.monotonic() + time_limit_s,
                on_progress=on_stage,
            )
        )
    planned = None
    if answer.body is not None:
        made = PlannerOutput(body=answer.body, parameters=answer.parameters)
        planned = verified(asked, made, found, method, watch)
    return SynthesizedResult(
        problem=asked,
        method=method,
        synthesis=answer,
        planned=planned,
        bound=found,
        seconds=watch.seconds["plan"],
    )
