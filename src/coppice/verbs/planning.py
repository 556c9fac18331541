"""Plan a collective, for its rate or for message sizes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import ANYTHING, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.shared import ModelOption
from coppice.planners.plan_options import PlanOptions

if TYPE_CHECKING:
    from coppice.comparison.planned import SizedPlan
    from coppice.planners.planning import PlannedResult
    from coppice.simulation.models import Model

    AnyModel = Model | str | os.PathLike[str]
else:
    AnyModel = Any

PREFERENCES = ("auto", "rate", "low")


class SizedPlanOptions(PlanOptions, frozen=True, kw_only=True):
    """Options of a plan, with the sizes that it is for."""

    sizes: Annotated[
        AnySizes | None,
        option(
            "Plan for these message sizes, such as 1M or 1K:1G: what loses least to the fastest there of fewer or "
            "lower trees and all algorithms, with the least time that any schedule takes [default: the best rate].",
            "--size",
            "--sizes",
            "-s",
            metavar="SIZES",
        ),
    ] = None
    prefer: Annotated[
        str,
        option(
            "Where they conflict: the best rate, or the lowest trees, whose loss is stated; auto is the rate, or "
            "what is fastest at --sizes.",
            choices=PREFERENCES,
        ),
    ] = "auto"
    model: Annotated[AnyModel | None, ANYTHING, *ModelOption.__metadata__] = None
    effort: Annotated[
        str,
        option(
            "How much is tried at --sizes beside the trees: nothing (quick), the algorithms while they have few "
            "transfers, or many (high).",
            choices=("quick", "normal", "high"),
        ),
    ] = "normal"


class SizedPlanCall(SizedPlanOptions, frozen=True):
    """A plan: its problem, its options and what it is for."""

    problem: Annotated[
        Any,
        argument(
            "What to plan: a :class:`Problem`, what has one, or a topology (also by name) with a `collective`."
        ),
    ]
    collective: Annotated[
        Collective | str | None, argument("The collective, where `problem` is a topology.")
    ] = None


@verb(SizedPlanCall)
def plan(asked: SizedPlanCall) -> PlannedResult:
    """Plan a collective, verify the plan, and compute its figures.

    Raises:
        InputError: If the problem has no meaning on its topology, an option does not fit it, or the algorithm does
            not serve it.
        UnreachableError: If some rank cannot be reached.
        CheckError: If the plan does not verify, which would be a defect of the planner.
        KeyboardInterrupt: Within a fraction of a second after Ctrl-C.

    Examples:
        >>> import coppice
        >>> cluster = coppice.load("mi250", boxes=2)
        >>> best, low = coppice.plan(cluster, "all_reduce"), coppice.plan(cluster, "all_reduce", prefer="low")
        >>> best.shape.max_height > low.shape.max_height, best.loss < low.loss
        (True, True)
        >>> small = coppice.plan(cluster, "all_reduce", sizes="64K", effort="quick")
        >>> small.shape.max_height < best.shape.max_height
        True
    """
    return planned(asked, asked.problem, asked.collective)[0]


def planned(
    options: SizedPlanOptions, problem: Any, collective: Collective | str | None = None
) -> tuple[PlannedResult, SizedPlan | None]:
    """A verified plan, and how it compares at the sizes that it is for."""
    from coppice.planners.alternatives import lowest
    from coppice.planners.planning import plan as made

    given: dict[str, Any] = {name: getattr(options, name) for name in PlanOptions.__struct_fields__}
    if options.prefer not in PREFERENCES:
        raise InputError(
            f"expected `prefer` to be one of {', '.join(PREFERENCES)}, found {options.prefer!r}."
        )
    if options.sizes is None:
        if options.prefer == "low":
            given["choose"] = lowest
        return made(problem, collective, **given), None
    if options.prefer != "auto":
        raise InputError(
            f"`sizes` takes what is fastest there, found `prefer={options.prefer}` as well: give one of them."
        )
    from coppice.comparison.planned import plan_for  # brings the comparison of algorithms

    del given["choose"]
    found = plan_for(
        problem, options.sizes, collective=collective, model=options.model, effort=options.effort, **given
    )
    return found.result, found
