"""The hybrid of EFLOPS (ACCL): rings inside the boxes, halving and doubling between them.

Reduce-scatter by a ring in each group of g ranks, then ranks of equal number in all P/g groups reduce-scatter what is
left by recursive halving; the all-gather is the mirror. The number of groups is a power of two.

``mapping`` numbers the groups. In the network of EFLOPS, servers hang on two layers of switches; ``opposite`` gives the
first half of the groups the numbers with an even count of one bits and the second half the others, so that all partners
of all steps, whose numbers differ in one bit, are on opposite sides and no two exchanges share a link. ``natural``
keeps the order of the groups.

Steps 2 (g - 1) + 2 lg(P/g); bytes per rank 2 (P - 1)/P M; time on a crossbar: steps ``alpha``, plus these bytes
``beta``, plus (P - 1)/P M ``gamma``. Half of that for reduce-scatter and all-gather.

Dong et al., "EFLOPS: algorithm and system co-design for a high performance distributed training platform", HPCA 2020.
"""

from __future__ import annotations

from math import isqrt

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, Parameter
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.boxes import equal_boxes, grouped, in_order
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.levels import Exchange, Level, build_levels, cost_of_levels
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS", "halves"]


def halves(groups: int) -> list[int]:
    """Which group gets each number, so that numbers that differ in one bit belong to different halves.

    Examples:
        >>> halves(8)
        [0, 4, 5, 1, 6, 2, 3, 7]
    """
    near, far = iter(range((groups + 1) // 2)), iter(range((groups + 1) // 2, groups))
    return [next(far) if number.bit_count() % 2 else next(near) for number in range(groups)]


def _group(case: Case) -> int:
    """Ranks of a group: given, those of a box, or the divisor nearest to the root that leaves a power of two."""
    given = case.number("group")
    if given:
        return given
    found = equal_boxes(case.topology)
    if found is not None:
        return len(found[0])
    odd = case.size // (case.size & -case.size)
    sizes = [odd << k for k in range((case.size // odd).bit_length())]
    return min(sizes, key=lambda size: (abs(size - isqrt(case.size)), size))


def _levels(case: Case) -> tuple[Case, tuple[Level, ...]]:
    group = _group(case)
    boxed = not case.number("group") and equal_boxes(case.topology) is not None
    case, group = grouped(case, 0 if boxed else group)
    groups = case.size // group
    if case.parameters["mapping"] == "opposite":
        ranks = case.order or tuple(range(case.size))
        case = in_order(
            case, tuple(ranks[number * group + j] for number in halves(groups) for j in range(group))
        )
    return case, (Level(group), Level(groups, Exchange.HALVING))


def _needs(case: Case) -> str | None:
    group = _group(case)
    if case.size % group:
        return f"accl needs a group that divides {case.size} ranks, found {group}: choose a divisor."
    groups = case.size // group
    if groups & (groups - 1):
        return (
            f"accl needs a power of two of groups, found {groups} of {group} ranks: choose another `group`."
        )
    return None


def _build(case: Case) -> Schedule:
    return build_levels(*_levels(case))


def _cost(case: Case) -> Cost:
    return cost_of_levels(*_levels(case))


ALGORITHMS = tuple(
    Algorithm(
        name="accl",
        collective=collective,
        build=_build,
        summary="rings in groups, then recursive halving and doubling between ranks of equal number",
        source="EFLOPS, HPCA 2020; ACCL, IEEE Micro 2021",
        cost=_cost,
        needs=_needs,
        parameters={
            "group": Parameter(
                default=0, least=0, summary="ranks of a group; 0: of a box, else near the root of P"
            ),
            "mapping": Parameter(
                default="natural",
                choices=("natural", "opposite"),
                summary="order of the groups, or the partners of all steps in opposite halves",
            ),
        },
        topological=True,
    )
    for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
)
