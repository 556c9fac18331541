"""The two-dimensional torus and BlueConnect: rings along one dimension after the other.

2d-torus: a grid of X columns and Y rows, rows being runs of X positions. Reduce-scatter along the rows, all-reduce of
what is left along the columns, all-gather along the rows: 2 (X - 1) + 2 (Y - 1) steps. BlueConnect does the same over
any number of levels p_0, p_1, ..: 2 sum (p_i - 1) steps. Half of that for reduce-scatter and all-gather.

Bytes per rank 2 (P - 1)/P M, as one ring would send; time on a crossbar: steps ``alpha``, plus these bytes ``beta``,
plus (P - 1)/P M ``gamma``. A prime P makes one ring of it.

Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv 1811.05233; Cho et al.,
"BlueConnect", SysML 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, Parameter
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.boxes import grouped
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.levels import Level, build_levels, cost_of_levels
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]

Plan = Callable[[Case], tuple[Case, tuple[Level, ...]]]


def _torus(case: Case) -> tuple[Case, tuple[Level, ...]]:
    case, columns = grouped(case, case.number("columns"))
    return case, (Level(columns), Level(case.size // columns))


def _torus_needs(case: Case) -> str | None:
    columns = case.number("columns")
    if columns and case.size % columns:
        return f"2d-torus needs columns that divide {case.size} ranks, found {columns}: choose a divisor."
    return None


def _blue_connect(case: Case) -> tuple[Case, tuple[Level, ...]]:
    given = str(case.parameters["levels"])
    if given:
        return case, tuple(Level(size) for size in _sizes(given))
    case, columns = grouped(case, 0)
    return case, (Level(columns), Level(case.size // columns))


def _blue_connect_needs(case: Case) -> str | None:
    given = str(case.parameters["levels"])
    if given and prod(_sizes(given)) != case.size:
        return (
            f"blueconnect needs levels that multiply to {case.size} ranks, found {given!r}: "
            "write them as in `levels=8x4`, the nearest ranks first."
        )
    return None


def _sizes(text: str) -> list[int]:
    """Sizes of the levels in ``8x4``; a zero where one is no number."""
    return [int(part) if part.isdecimal() and len(part) < 10 else 0 for part in text.split("x")]


def _entries(
    name: str, plan: Plan, needs: Callable[[Case], str | None], parameter: dict[str, Parameter], **text: str
) -> tuple[Algorithm, ...]:
    def build(case: Case) -> Schedule:
        return build_levels(*plan(case))

    def cost(case: Case) -> Cost:
        return cost_of_levels(*plan(case))

    return tuple(
        Algorithm(
            name=name,
            collective=collective,
            build=build,
            cost=cost,
            needs=needs,
            parameters=parameter,
            topological=True,
            **text,
        )
        for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    )


ALGORITHMS = (
    *_entries(
        "2d-torus",
        _torus,
        _torus_needs,
        {
            "columns": Parameter(
                default=0,
                least=0,
                summary="ranks in a row of the grid; 0: of a box, else nearest to the root of P",
            )
        },
        summary="rings along the rows of a grid, then along its columns",
        source="Mikami et al., arXiv 1811.05233",
    ),
    *_entries(
        "blueconnect",
        _blue_connect,
        _blue_connect_needs,
        {
            "levels": Parameter(
                default="", summary="ranks of each level, nearest first, as 8x4; empty: by box"
            )
        },
        summary="rings level by level, each on what the levels before left",
        source="Cho et al., BlueConnect, SysML 2019",
    ),
)
