"""Blink's integer program: replace many fractional trees by few integral ones.

Rates are whole multiples of a unit, the rate of one link. The program takes the most of them that the links can carry,
and then the fewest trees that carry as many. Where whole units lose more than is allowed, halves, thirds and so on are
tried, which is Blink's rule of allowing more and more fractional trees.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from coppice.bounds.lp.program import Constraint
from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.planners.synthesis.blink.packings import Packed, TreeLoads

_MOST_PARTS = 12
"""A tree has at least this part of a unit."""

_MOST_TREES = 250
"""Trees of which the fastest whole ones are chosen: those of the highest rates."""

_CANDIDATES = 40
"""Trees among which the fewest are looked for."""

_MOST_NODES = 500
"""Of branch and bound, so that the same question takes the same work on every machine."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WholePacking:
    """Trees with integral rates."""

    packed: Packed  # The trees
    unit: Fraction  # What a rate is a multiple of, in GB/s
    parts: int  # Into how many parts the unit of one link was cut


def whole_packing(
    packed: Packed, unit: Fraction, *, loss: float, deadline: float | None = None
) -> WholePacking | None:
    """Few trees of ``packed`` with integral rates that lose no more than a given share of its rate.

    Args:
        unit: Rate of a whole tree in GB/s.
        loss: Share of the rate that may be lost.
        deadline: Of :func:`time.monotonic`, when to end.

    Returns:
        The packing in the largest parts of the unit that lose no more, or the fastest that was found; None where
        even the smallest parts fit nowhere.
    """
    found = TreeLoads(packed.routes, packed.root)
    heaviest = sorted(range(len(packed.rates)), key=lambda tree: (-packed.rates[tree], tree))[:_MOST_TREES]
    for tree in sorted(heaviest):
        found.add(list(packed.trees[tree]))
    rates = [packed.rates[tree] for tree in sorted(heaviest)]
    best: tuple[Fraction, int, list[int]] | None = None
    for parts in range(1, _MOST_PARTS + 1):
        amounts = _fastest(found, unit / parts, deadline)
        if amounts is None:
            continue
        rate = sum(amounts) * unit / parts
        if rate and (best is None or rate > best[0]):
            best = rate, parts, amounts
        if best is not None and float(best[0]) >= (1 - loss) * float(packed.rate):
            break
    if best is None:
        return None
    _, parts, amounts = best
    part = unit / parts
    amounts = _fewest(found, part, amounts, rates, deadline)
    whole = Packed(
        routes=packed.routes,
        root=packed.root,
        trees=tuple(tree for tree, n in zip(found.trees, amounts, strict=True) if n),
        rates=tuple(n * part for n in amounts if n),
        most=packed.most,
    )
    return WholePacking(packed=whole, unit=part, parts=parts)


def _room(found: TreeLoads, part: Fraction) -> list[int]:
    """Parts that each link can carry."""
    topology = found.routes.topology
    return [int(Fraction(c, topology.denominator) // part) for c in topology.capacity.tolist()]


def _fastest(found: TreeLoads, part: Fraction, deadline: float | None) -> list[int] | None:
    """Parts that each tree gets, as many as fit; None where nothing was found."""
    room = _room(found, part)
    chosen = list(range(len(found.trees)))
    rows = found.rows(chosen, room)
    most = [_most(found, tree, room) for tree in chosen]
    values = _solved([-1.0] * len(chosen), most, rows, deadline)
    return values if values is not None and _fits(rows, values) else None


def _fewest(
    found: TreeLoads, part: Fraction, amounts: list[int], rates: Sequence[Fraction], deadline: float | None
) -> list[int]:
    """As many parts on fewer trees, of those that are used and the fastest others."""
    order = sorted(range(len(amounts)), key=lambda tree: (not amounts[tree], -rates[tree], tree))
    chosen = sorted(order[: max(_CANDIDATES, sum(map(bool, amounts)))])
    room, count = _room(found, part), len(chosen)
    rows = found.rows(chosen, room)
    most = [_most(found, tree, room) for tree in chosen]
    # A tree with parts is used, and all that are used count.
    used = [
        Constraint(column=np.array([t, count + t], dtype=np.int32), value=np.array([1, -most[t]]), bound=0)
        for t in range(count)
    ]
    held = Constraint(
        column=np.arange(count, dtype=np.int32), value=np.full(count, -1, dtype=np.int64), bound=-sum(amounts)
    )
    values = _solved([0.0] * count + [1.0] * count, [*most, *[1] * count], [*rows, *used, held], deadline)
    if values is None or not _fits([*rows, held], values[:count]):
        return amounts
    fewer = [0] * len(amounts)
    for tree, value in zip(chosen, values[:count], strict=True):
        fewer[tree] = value
    return fewer if sum(map(bool, fewer)) < sum(map(bool, amounts)) else amounts


def _most(found: TreeLoads, tree: int, room: list[int]) -> int:
    links, times = found.loads[tree]
    return min((room[e] // n for e, n in zip(links.tolist(), times.tolist(), strict=True)), default=1)


def _fits(rows: Sequence[Constraint], values: list[int]) -> bool:
    """Counted in whole numbers, whatever the solver says."""
    return min(values, default=0) >= 0 and all(
        sum(n * values[c] for c, n in zip(row.column.tolist(), row.value.tolist(), strict=True)) <= row.bound
        for row in rows
    )


def _solved(
    cost: list[float], upper: list[int], rows: Sequence[Constraint], deadline: float | None
) -> list[int] | None:
    """Whole numbers of least cost, as good as was found within the limit of work; None where nothing was."""
    import highspy

    solver = new_solver()
    solver.setOptionValue("random_seed", 0)
    solver.setOptionValue("mip_max_nodes", _MOST_NODES)
    if deadline is not None:
        solver.setOptionValue("time_limit", max(0.0, deadline - time.monotonic()))
    count = len(cost)
    empty = np.zeros(0)
    solver.addCols(
        count, np.array(cost), np.zeros(count), np.array(upper, dtype=np.float64), 0,
        np.zeros(count, dtype=np.int32), empty.astype(np.int32), empty,
    )  # fmt: skip
    solver.changeColsIntegrality(
        count, np.arange(count, dtype=np.int32), np.full(count, highspy.HighsVarType.kInteger, dtype=object)
    )
    for row in rows:
        solver.addRow(
            -solver.inf, float(row.bound), len(row.column), row.column, row.value.astype(np.float64)
        )
    run_interruptibly(solver)
    solution = solver.getSolution()
    if not solution.value_valid:
        return None
    return [round(value) for value in solution.col_value]
