"""Repair approximate dual multipliers into ones that prove an upper bound exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import LinearProgram

_GRID = 2**40
"""Denominator of multipliers that are taken from floats."""


def certified_multipliers(
    program: LinearProgram, multipliers: NDArray[np.float64], *, payer: Sequence[int | None]
) -> list[Fraction] | None:
    """Round dual multipliers so that they prove an upper bound exactly; None where that fails.

    A dual solution in floats violates its own constraints in the last digits. Rounded to fractions and scaled up until
    every column without an upper bound is paid for, it proves a bound that is exact, if slightly weak.

    Args:
        program: Its rows with ``payer`` are capacities or equations with bound 0; the others have bound 0.
        payer: For each column the row that may absorb what the column lacks, or None: a capacity with coefficient 1
            in it, or an equation with a positive one, which is raised before all else. Columns without one are paid for
            by scaling all multipliers up.
    """
    exact = [
        Fraction(round(value * _GRID) if row.equal else max(round(value * _GRID), 0), _GRID)
        for value, row in zip(multipliers.tolist(), program.rows, strict=True)
    ]
    reduced = program.reduced_costs(exact)
    raised: dict[int, Fraction] = {}
    for column, rest in enumerate(reduced):
        row = payer[column]
        if row is not None and program.rows[row].equal:
            place = int(np.flatnonzero(program.rows[row].column == column)[0])
            lacking = rest / int(program.rows[row].value[place])
            raised[row] = max(raised.get(row, lacking), lacking)
    for row, lacking in raised.items():
        exact[row] += lacking
    reduced = program.reduced_costs(exact)
    factor = Fraction(1)
    for column, (cost, rest) in enumerate(zip(program.cost, reduced, strict=True)):
        if payer[column] is None and program.upper[column] is None and rest > 0:
            paid = cost - rest
            if paid <= 0:
                return None
            factor = max(factor, cost / paid)
    exact = [value * factor for value in exact]
    for column, rest in enumerate(program.reduced_costs(exact)):
        row = payer[column]
        if rest > 0 and row is not None:
            exact[row] += rest
    return exact
