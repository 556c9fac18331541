"""Certified upper bounds from multipliers that are only nearly right.

A dual solution in floats violates its own constraints in the last digits. Rounded to fractions and repaired
(scaled up until every column without an upper bound is paid for), it proves a bound that is exact, if
slightly weak.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import LinearProgram

__all__ = ["certified_bound"]

_GRID = 2**40


def certified_bound(
    program: LinearProgram, multipliers: NDArray[np.float64], *, payer: Sequence[int | None]
) -> Fraction | None:
    """A proved upper bound on the objective of ``program``, or None where the repair fails.

    Args:
        program: Its rows with ``payer`` are capacities; the others have bound 0.
        multipliers: Row multipliers in floats.
        payer: For each column the row with coefficient 1 in it that may absorb what the column lacks, or
            None. Columns without one are paid for by scaling all multipliers up.
    """
    exact = [Fraction(max(round(value * _GRID), 0), _GRID) for value in multipliers.tolist()]
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
    return program.dual_bound(exact)
