"""Synthesise a schedule by a published method, verify it, and compare it with the exact bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coppice.arguments import checked
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem, problem_of
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.display import Shown
from coppice.errors import InputError
from coppice.planners.choice import PlannerOutput
from coppice.planners.planning import PlannedResult, Stopwatch, verified
from coppice.planners.synthesis.method import Request, Status, Synthesis, method_named


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
        method: Name of a method (see :data:`coppice.planners.synthesis.method.METHODS`).
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
