"""Choose the planner and its options, and list what can be chosen: the catalogue and the optimal planners."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType

from coppice.arguments import checked
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.bounds.tree_optimum import TreeOptimum
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import ANY, AlgorithmParameter, Value
from coppice.planners.algorithms.catalogue import algorithms
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule

FOREST = "forest"
FLOW = "flow"
ORDERS = ("auto", "rank", "topology")

_BARRIER = "bruck"


def optimal_planner(collective: Collective) -> str | None:
    """Name of the planner that attains the bound: ``forest``, ``flow``, or None for a barrier.

    Examples:
        >>> optimal_planner(Collective.ALL_REDUCE), optimal_planner(Collective.GATHER)
        ('forest', 'flow')
    """
    if collective is Collective.BARRIER:
        return None
    return FOREST if collective.made_of_trees else FLOW


def trees_and_tolerance(trees: int | str | None) -> tuple[int | None, Fraction | None]:
    """Parse ``trees``: a number of trees per root, or the fewest within a tolerance.

    Args:
        trees: A number, also as text; or ``auto:`` and a tolerance in percent; None leaves both open.

    Examples:
        >>> trees_and_tolerance(4), trees_and_tolerance("auto:1%"), trees_and_tolerance(None)
        ((4, None), (None, Fraction(1, 100)), (None, None))
    """
    if not isinstance(trees, str):
        return trees, None
    automatic = re.fullmatch(r"auto:([0-9]{1,3}(?:\.[0-9]{1,9})?)%", trees)
    if automatic:
        return None, Fraction(automatic[1]) / 100
    if not re.fullmatch(r"[0-9]{1,9}", trees) or int(trees) < 1:
        raise InputError(
            f"expected `trees` to be a number of 1 or more or a tolerance such as auto:1%, found {trees!r}."
        )
    return int(trees), None


_NONE: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class PlannerOptions:
    """A planner with options; make one with :meth:`of`, which refuses contradicting options."""

    algorithm: str  # `forest`, `flow`, or a name of the catalogue
    optimal: bool  # It is the planner that attains the bound
    parameters: Mapping[str, Value]  # Parameters of an algorithm of the catalogue
    # One of :data:`ORDERS`: ranks as numbered, in an order that suits the topology, or as numbered where that
    # has routes
    order: str
    relay_gpus: bool  # GPUs may pass on what is not theirs
    trees: int | None  # Trees per root of a forest, or None
    tolerance: Fraction | None  # Loss that a forest may have, or None
    in_network: bool  # Switches may copy and add

    @classmethod
    def of(
        cls,
        problem: Problem,
        *,
        algorithm: str | None = None,
        parameters: Mapping[str, Value] = _NONE,
        order: str = "auto",
        relay_gpus: bool = False,
        trees: int | None = None,
        tolerance: Fraction | None = None,
        in_network: bool = False,
    ) -> PlannerOptions:
        """Validate options and choose the planner."""
        optimal = optimal_planner(problem.collective)
        name = algorithm or optimal or _BARRIER
        if name in (FOREST, FLOW) and name != optimal:
            raise InputError(
                f"{name} does not plan {problem.collective}: use {optimal}."
                if optimal
                else f"{name} does not plan a {problem.collective}, which moves no bytes: use {_BARRIER}."
            )
        if order not in ORDERS:
            raise InputError(
                f"expected an order that is {', '.join(ORDERS[:-1])} or {ORDERS[-1]}, found {order!r}."
            )
        if trees is not None and tolerance is not None:
            raise InputError(
                f"expected a number of trees or a tolerance, found both ({trees} and {tolerance}): give one."
            )
        limited = trees is not None or tolerance is not None
        if in_network and limited:
            raise InputError(
                "a plan with in-network help has its own number of trees: leave out `trees` or `in_network`."
            )
        if name != FOREST and limited:
            raise InputError(f"{problem.collective} by {name} has no trees per root: leave out `trees`.")
        if name != FOREST and in_network:
            raise InputError(f"switches do not help {name}: leave out `in_network`.")
        if name == optimal and (parameters or order != "auto" or relay_gpus):
            raise InputError(
                f"{name} decides by itself: leave out the options of algorithms "
                "(`parameters`, `order`, `relay_gpus`)."
            )
        return cls(
            algorithm=name,
            optimal=name == optimal,
            parameters=parameters,
            order=order,
            relay_gpus=relay_gpus,
            trees=trees,
            tolerance=tolerance,
            in_network=in_network,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannerOutput:
    """Output of a planner."""

    body: Forest | Schedule  # The forest or schedule
    parameters: Mapping[str, Parameter]  # What a plan file says about how it was made
    # For a given or a least number of trees, what each phase can have with it; otherwise empty
    phases: tuple[TreeOptimum, ...] = ()


def make_body(problem: Problem, choice: PlannerOptions, plain: Bound) -> PlannerOutput:
    """Run the chosen planner: a forest or a schedule.

    Args:
        plain: The problem's bound without help of switches.
    """
    if choice.algorithm == FOREST:
        return _forest(problem, choice, plain)
    if choice.algorithm == FLOW:
        return PlannerOutput(body=_flow(problem), parameters={})
    return from_catalogue(
        problem, choice.algorithm, choice.parameters, order=choice.order, relay_gpus=choice.relay_gpus
    )


def from_catalogue(
    problem: Problem,
    name: str,
    parameters: Mapping[str, Value] | None = None,
    *,
    order: str = "auto",  # One of :data:`ORDERS`
    relay_gpus: bool = False,  # GPUs may pass on what is not theirs
) -> PlannerOutput:
    """Apply an algorithm of the catalogue to a problem.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
        >>> made = from_catalogue(problem, "ring")
        >>> made.body.num_transfers, made.parameters
        (24, {'order': 'rank', 'relay_gpus': False})
    """
    from coppice.planners.algorithms.catalogue import case_of, find, make

    entry = find(name, problem.collective)

    def attempt(taken: str) -> PlannerOutput:
        ranks = _suited_order(problem) if taken == "topology" else None
        case = case_of(entry, problem, parameters, order=ranks)
        body = make(entry, case, relay_gpus=relay_gpus)
        return PlannerOutput(
            body=body, parameters={**case.parameters, "order": taken, "relay_gpus": relay_gpus}
        )

    if order != "auto":
        return attempt(order)
    try:
        return attempt("rank")
    except UnreachableError as unreachable:
        try:
            return attempt("topology")
        except UnreachableError:
            raise unreachable from None


def _suited_order(problem: Problem) -> tuple[int, ...]:
    from coppice.planners.algorithms.parts.orders import box_order

    return box_order(problem.topology)


def _flow(problem: Problem) -> Schedule:
    from coppice.planners.flow import plan_all_to_all, plan_flow  # bring the linear programs

    return plan_all_to_all(problem) if problem.collective is Collective.ALL_TO_ALL else plan_flow(problem)


def _forest(problem: Problem, choice: PlannerOptions, plain: Bound) -> PlannerOutput:
    tolerance = None if choice.tolerance is None else str(choice.tolerance)
    parameters = {"trees": choice.trees, "tolerance": tolerance, "in_network": choice.in_network}
    if choice.in_network:
        from coppice.planners.forest.in_network import plan_in_network

        return PlannerOutput(body=plan_in_network(problem, optimum=plain), parameters=parameters)
    from coppice.planners.forest.planner import planned_forest

    made = planned_forest(problem, trees=choice.trees, tolerance=choice.tolerance, optimum=plain)
    return PlannerOutput(body=made.forest, parameters=parameters, phases=made.phases)


@dataclass(frozen=True, kw_only=True, repr=False)
class Listed(Brief):
    """An entry of the list; a name whose conditions differ by collective has several."""

    name: str  # What `plan --algorithm` takes
    collectives: tuple[Collective, ...]  # What it performs
    ranks: str  # Numbers of ranks: `any`, `even` or `power of two`
    roots: str  # `any`, or `none` where the collective has no root
    summary: str  # What it does, in one line
    source: str  # Where it comes from
    topological: bool  # It looks at the topology
    parameters: Mapping[str, AlgorithmParameter] = field(default_factory=dict)  # Its parameters


_OPTIMAL = {
    FOREST: (
        "throughput-optimal spanning trees",
        "ForestColl, NSDI 2026; the pipeline schedule, arXiv 2305.18461",
    ),
    FLOW: ("throughput-optimal routes", "maximum concurrent flow; for one root a maximum flow"),
}


@checked
def listed(collective: Collective | str | None = None, name: str | None = None) -> tuple[Listed, ...]:
    """List the optimal planners, then the catalogue.

    Args:
        collective: Only what performs this one.
        name: Only this name.

    Raises:
        InputError: If there is no such name for the collective.

    Examples:
        >>> [entry.name for entry in listed(Collective.ALL_GATHER)][:1]
        ['forest']
    """
    if collective is not None:
        collective = Collective.named(collective)
    rows = [_optimal(planner, served) for served in Collective if (planner := optimal_planner(served))]
    rows += [
        Listed(
            name=entry.name,
            collectives=(served,),
            ranks=entry.ranks,
            roots=entry.roots,
            summary=entry.summary,
            source=entry.source,
            topological=entry.topological,
            parameters=entry.parameters,
        )
        for (_, served), entry in algorithms().items()
    ]
    groups: dict[tuple[object, ...], list[Listed]] = {}
    for row in rows:
        if collective in (None, *row.collectives) and name in (None, row.name):
            key = (row.name, row.ranks, row.roots, row.summary, tuple(row.parameters))
            groups.setdefault(key, []).append(row)
    if not groups:
        wanted = "an algorithm" if collective is None else f"an algorithm for {collective}"
        raise InputError(f"expected {wanted}, found {name!r}: `coppice algorithms` lists them.")
    return tuple(
        replace(alike[0], collectives=tuple(row.collectives[0] for row in alike)) for alike in groups.values()
    )


def _optimal(planner: str, served: Collective) -> Listed:
    summary, source = _OPTIMAL[planner]
    return Listed(
        name=planner,
        collectives=(served,),
        ranks=ANY,
        roots="any" if served.rooted else "none",
        summary=summary,
        source=source,
        topological=True,
    )
