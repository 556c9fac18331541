"""PLink: aggregation in two levels whose leaders rotate, so that every rank leads for an equal part of the data.

In a group of g ranks, rank j is the leader for part j: the others send it theirs directly (g - 1 steps, in step s to
the rank s + 1 places on). Leaders of the same part in all P/g groups do likewise among themselves: each adds up one of
P/g pieces of the part. The result goes back the same way. Only partners near each other exchange large messages, and
no two messages of a step have the same receiver.

Steps 2 (g - 1) + 2 (P/g - 1); bytes per rank 2 (P - 1)/P M; time on a crossbar: steps ``alpha``, plus these bytes
``beta``, plus (P - 1)/P M ``gamma``.

Luo et al., "PLink: discovering and exploiting datacenter network locality for efficient cloud-based distributed
training", MLSys 2020; the exchange between leaders is direct here, too.
"""

from __future__ import annotations

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, Parameter
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.boxes import grouped
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.levels import Exchange, Level, build_levels, cost_of_levels
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def _levels(case: Case) -> tuple[Case, tuple[Level, ...]]:
    case, group = grouped(case, case.number("group"))
    return case, (Level(group, Exchange.DIRECT), Level(case.size // group, Exchange.DIRECT))


def _needs(case: Case) -> str | None:
    group = case.number("group")
    if group and case.size % group:
        return f"plink needs a group that divides {case.size} ranks, found {group}: choose a divisor."
    return None


def _build(case: Case) -> Schedule:
    return build_levels(*_levels(case))


def _cost(case: Case) -> Cost:
    return cost_of_levels(*_levels(case))


ALGORITHMS = (
    Algorithm(
        name="plink",
        collective=Collective.ALL_REDUCE,
        build=_build,
        summary="two levels of direct aggregation; every rank leads for an equal part",
        source="Luo et al., PLink, MLSys 2020",
        cost=_cost,
        needs=_needs,
        parameters={
            "group": Parameter(
                default=0, least=0, summary="ranks of a group; 0: of a box, else nearest to the root of P"
            )
        },
        topological=True,
    ),
)
