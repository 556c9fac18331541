"""Plan a collective, for its rate or for message sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import ANYTHING, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.shared import ModelOption
from coppice.planners.plan_options import PlanOptions
from coppice.verbs.bounding import GroupOptions

if TYPE_CHECKING:
    from coppice.comparison.plan_sets import PlannedSet
    from coppice.comparison.planned import SizedPlan
    from coppice.planners.planning import PlannedResult
    from coppice.planners.together.joint import JointPlan
    from coppice.planners.together.placing import Placement
    from coppice.schedule.files.set_file import PlanSet
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
    deterministic: Annotated[
        bool,
        option(
            "Add in one order, pairs of neighbouring ranks first: the same bits at any size, with any channels, pieces "
            "and placement; what that costs is told."
        ),
    ] = False


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


LeastGainOption = Annotated[
    float,
    option(
        "A plan of a set may be slower than the fastest at a size by this share; more, and the plan changes.",
        ge=0,
    ),
]


class PlanSetCall(SizedPlanOptions, frozen=True):
    """A set of plans: its problem, its options and the sizes."""

    problem: Annotated[
        Any,
        argument(
            "What to plan: a :class:`Problem`, what has one, or a topology (also by name) with a `collective`."
        ),
    ]
    collective: Annotated[
        Collective | str | None, argument("The collective, where `problem` is a topology.")
    ] = None
    least_gain: LeastGainOption = 0.03


@verb(PlanSetCall)
def plan_set(asked: PlanSetCall) -> PlanSet:
    """Plan few plans for many sizes, each for a range of sizes, with the bytes at which the plan changes.

    The set has a plan for every size (``.at("64K")``), is written to a folder (``.save("plans")``) and read again by
    :func:`read_plan_set`.

    Raises:
        InputError: If the problem has no meaning on its topology, there are no sizes, or an option does not fit.
        UnreachableError: If some rank cannot be reached.
        CheckError: If a plan does not verify, which would be a defect of the planner.
        KeyboardInterrupt: Within a fraction of a second after Ctrl-C.

    Examples:
        >>> import coppice
        >>> plans = coppice.plan_set(coppice.load("ring", gpus=4), "all_reduce", sizes="1K,64M")
        >>> [each.first_bytes for each in plans.ranges], plans.at("1K") is plans.at("64M")
        ([0, 40960], False)
    """
    return planned_set(asked, asked.problem, asked.collective, least_gain=asked.least_gain).plans


class GroupPlansCall(GroupOptions, frozen=True):
    """Plans for groups at once: the network and the groups."""

    topology: Annotated[Any, ANYTHING, argument("A topology, its name, or a file.")]
    collective: Annotated[Collective | str, argument("What each group does, without a job.")] = (
        Collective.ALL_REDUCE
    )
    order: Annotated[
        str,
        option(
            "Which GPU takes which place: as numbered, or as a search finds best (topology), which may leave GPUs out.",
            choices=("rank", "topology"),
        ),
    ] = "rank"
    on_stage: Annotated[
        Callable[[str], None] | None,
        ANYTHING,
        option("Called with a few words as each stage begins, for progress."),
    ] = None


@verb(GroupPlansCall)
def plan_groups(asked: GroupPlansCall) -> JointPlan:
    """Plan all groups of a training job that exchange at once: one plan a group, which share the links.

    The result has the plans, for how long each link is busy with all of them, and the bound of all groups together. It
    is written to a folder (``.save("plans")``) with a file that ``coppice simulate --together`` takes.

    Raises:
        InputError: If there are no groups, or they do not fit the network.
        UnreachableError: If members of a group do not reach each other without GPUs outside of it.
        CheckError: If a plan does not verify, which would be a defect of the planner.
        KeyboardInterrupt: Within a fraction of a second after Ctrl-C.

    Examples:
        >>> import coppice
        >>> found = coppice.plan_groups(coppice.load("dgx-a100", boxes=2), groups="tp=8,dp=2")
        >>> len(found.groups), float(found.gap) < 0.01
        (10, True)
        >>> first = coppice.plan_groups(coppice.load("dgx-a100", boxes=2), groups="tp=8,dp=2", priority="tp,dp")
        >>> [round(float(each) * 1e3, 1) for each in first.seconds_of_classes]
        [5.4, 45.4]
    """
    found, _, _ = planned_groups(
        asked, asked.topology, asked.collective, order=asked.order, on_stage=asked.on_stage
    )
    return found


def planned_groups(
    options: GroupOptions,
    topology: Any,
    collective: Collective | str,
    *,
    order: str = "rank",
    on_stage: Callable[[str], None] | None = None,
) -> tuple[JointPlan, str, Placement | None]:
    """Verified plans of all groups at once, what they are of, and where they are if that was searched."""
    from coppice.bounds.together.check import check_together
    from coppice.planners.together.joint import plan_together
    from coppice.planners.together.placing import placed_demands, search_placement
    from coppice.topology.load import load

    if not options.at_once:
        raise InputError(
            "expected groups or a job, found neither: give `groups`, such as tp=8,dp=4, or `job`."
        )
    network = load(topology)
    searched = order == "topology"
    count = options.positions() if searched else None
    demands, title = options.exchanged(network, str(Collective.named(collective)), positions=count)
    place = None
    if count is not None:
        if on_stage is not None:
            on_stage("searching which GPUs to take")
        place = search_placement(network, demands, count)
        demands = placed_demands(demands, place.order)
    found = plan_together(network, demands, priority=options.priority, on_stage=on_stage)
    for each in found.bounds:
        check_together(each)
    return found, title, place


def planned_set(
    options: SizedPlanOptions,
    problem: Any,
    collective: Collective | str | None = None,
    *,
    least_gain: float,
) -> PlannedSet:
    """A set of verified plans for the sizes of the options, and the one plan that would lose least."""
    if options.sizes is None:
        raise InputError("expected sizes for a set of plans, found none: give `sizes`, such as 1K:4G.")
    if options.prefer != "auto":
        raise InputError(
            f"a set takes what is fastest at its sizes, found `prefer={options.prefer}` as well: leave it out."
        )
    from coppice.comparison.plan_sets import plan_set as made  # brings the comparison of algorithms

    given: dict[str, Any] = {name: getattr(options, name) for name in PlanOptions.__struct_fields__}
    del given["choose"]
    given["ring"] = bool(options.ring)
    return made(
        problem,
        options.sizes,
        collective=collective,
        least_gain=least_gain,
        model=options.model,
        effort=options.effort,
        deterministic=options.deterministic,
        **given,
    )


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
        if options.deterministic:
            if options.prefer != "auto":
                raise InputError(
                    "`deterministic` takes the best rate of what adds in one order, found "
                    f"`prefer={options.prefer}` as well: give one of them."
                )
            return _deterministic(problem, collective, given), None
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
        problem,
        options.sizes,
        collective=collective,
        model=options.model,
        effort=options.effort,
        deterministic=options.deterministic,
        **given,
    )
    return found.result, found


def _deterministic(problem: Any, collective: Collective | str | None, given: dict[str, Any]) -> PlannedResult:
    """The plan of the best rate that adds in one order."""
    from coppice.bounds.problem import problem_of
    from coppice.comparison.deterministic import of_best_rate, require_pairs
    from coppice.comparison.planned import is_closed, planner_options
    from coppice.planners.planning import plan as made

    posed = problem_of(
        problem, collective, **{name: given.pop(name) for name in ("root", "weights", "demands")}
    )
    if is_closed(given):
        result = made(posed, **given)
        require_pairs(result.plan.body, result.plan.planner)
        return result
    relaying = given["relay_gpus"]
    given["choose"] = lambda variants: of_best_rate(posed, variants, relaying=relaying)
    return made(posed, **planner_options(given))
