"""Integer-preserving simplex for small programs whose vertices are too close for floats.

The program is that of ``coppice.bounds.lp.program`` with right-hand sides >= 0, so 0 is a first vertex. This is the
simplex method with upper bounds on columns (G. B. Dantzig, "Linear Programming and Extensions", 1963, chapter 18) on a
table of integers over one common denominator (J. Edmonds, "Systems of distinct representatives and linear algebra",
1967: every division is exact). R. G. Bland's rule (1977) keeps it from going round in circles. It takes as many steps
as it takes: there is no tolerance and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, ExactVertex, LinearProgram

_PATIENCE = 20
"""Steps without gain after which Bland's rule takes over, until there is gain."""


def solve_in_integers(program: LinearProgram) -> ExactVertex | None:
    """Optimum of ``program`` with its proof; None where it is unbounded.

    Args:
        program: Its rows are inequalities with right-hand sides >= 0, or equations with right-hand side 0.

    Examples:
        >>> program = LinearProgram([1, 1], [None, None])
        >>> program.add_rows([Constraint(column=np.array([0, 1], dtype=np.int32), value=np.array([3, 1]), bound=2),
        ...                   Constraint(column=np.array([0, 1], dtype=np.int32), value=np.array([1, 2]), bound=3)])
        >>> solve_in_integers(program).objective
        Fraction(8, 5)
    """
    if any(row.bound < 0 or (row.equal and row.bound) for row in program.rows):
        raise ValueError(
            "expected rows a x <= b with b >= 0, or a x = 0, found others: 0 must satisfy all of them."
        )
    equations = [
        i for i, row in enumerate(program.rows) if row.equal
    ]  # a x <= 0 here and -a x <= 0 at the end
    turned = [replace(program.rows[i], value=-program.rows[i].value, equal=False) for i in equations]
    table = _IntegerTable(program.cost, program.upper, [*program.rows, *turned])
    if not table.optimise():
        return None
    values, multipliers = table.values(), table.multipliers()
    for place, i in enumerate(equations):
        multipliers[i] -= multipliers[len(program.rows) + place]
    del multipliers[len(program.rows) :]
    objective = sum((c * x for c, x in zip(program.cost, values, strict=True) if c), Fraction(0))
    if not program.is_feasible(values) or program.dual_bound(multipliers) != objective:
        raise AssertionError("the vertex does not prove itself: this is an error in the simplex method.")
    return ExactVertex(values=values, multipliers=multipliers, objective=objective)


class _IntegerTable:
    """Rows ``basic + sum of entry * other = right`` and, last, the objective; all over ``denominator``.

    Columns 0 .. n - 1 of the table stand for the variables ``other``, column n for the right-hand side. A variable that
    is ``turned`` counts down from its upper bound, so that every variable outside the basis is 0.
    """

    def __init__(self, cost: Sequence[int], upper: Sequence[int | None], rows: Sequence[Constraint]) -> None:
        count = len(cost)
        self._count = count
        self._upper = [*upper, *[None] * len(rows)]
        self._turned = [False] * (count + len(rows))
        self._basic = [count + i for i in range(len(rows))]
        self._other = list(range(count))
        self._denominator = 1
        self._table: NDArray[np.object_] = np.zeros((len(rows) + 1, count + 1), dtype=np.object_)
        for i, row in enumerate(rows):
            for column, value in zip(row.column.tolist(), row.value.tolist(), strict=True):
                self._table[i, column] = value
            self._table[i, count] = row.bound
        self._table[-1, :count] = [-c for c in cost]

    def optimise(self) -> bool:
        """Move to the optimum; whether there is one."""
        idle = 0
        while True:
            prices = self._table[-1, :-1]
            gains = [place for place, price in enumerate(prices.tolist()) if price < 0]
            if not gains:
                return True
            if idle < _PATIENCE:
                entering = min(gains, key=lambda place: (prices[place], self._other[place]))
            else:
                entering = min(gains, key=lambda place: self._other[place])
            before = Fraction(self._table[-1, -1], self._denominator)
            if not self._step(entering):
                return False
            idle = idle + 1 if Fraction(self._table[-1, -1], self._denominator) == before else 0

    def _step(self, entering: int) -> bool:
        """Raise the variable at ``entering`` as far as the rows and its own bound allow; False: without end."""
        own = self._upper[self._other[entering]]
        best: tuple[Fraction, int, int, bool] | None = (
            None  # how far, which variable, its row, turned on leaving
        )
        if own is not None:
            best = Fraction(own), self._other[entering], -1, False
        column, right = self._table[:-1, entering].tolist(), self._table[:-1, -1].tolist()
        for i, (entry, value) in enumerate(zip(column, right, strict=True)):
            limit = self._upper[self._basic[i]]
            if entry > 0:
                found = Fraction(value, entry), self._basic[i], i, False
            elif entry < 0 and limit is not None:
                found = Fraction(limit * self._denominator - value, -entry), self._basic[i], i, True
            else:
                continue
            if best is None or found[:2] < best[:2]:
                best = found
        if best is None:
            return False
        _, _, row, turned = best
        if row < 0:
            self._turn_column(entering)
            return True
        if turned:
            self._turn_row(row)
        self._pivot(row, entering)
        return True

    def _turn_column(self, place: int) -> None:
        """Count the variable outside the basis from its other end."""
        variable = self._other[place]
        self._table[:, -1] -= self._table[:, place] * self._upper[variable]
        self._table[:, place] = -self._table[:, place]
        self._turned[variable] = not self._turned[variable]

    def _turn_row(self, row: int) -> None:
        """Count the basic variable of ``row`` from its other end."""
        variable = self._basic[row]
        limit = self._upper[variable]
        self._table[row] = -self._table[row]
        self._table[row, -1] += (limit or 0) * self._denominator
        self._turned[variable] = not self._turned[variable]

    def _pivot(self, row: int, place: int) -> None:
        """Exchange the basic variable of ``row`` for the one at ``place``, where the entry is positive."""
        table, before = self._table, self._denominator
        pivot = table[row, place]
        kept_row, kept_column = table[row].copy(), table[:, place].copy()
        table *= pivot
        table -= np.outer(kept_column, kept_row)
        table //= before
        table[row] = kept_row
        table[:, place] = -kept_column
        table[row, place] = before
        self._denominator = pivot
        self._basic[row], self._other[place] = self._other[place], self._basic[row]

    def values(self) -> list[Fraction]:
        """Value of each column of the program."""
        found = [Fraction(0)] * len(self._upper)
        for i, variable in enumerate(self._basic):
            found[variable] = Fraction(self._table[i, -1], self._denominator)
        return [
            Fraction(limit) - value if turned and limit is not None else value
            for value, turned, limit in zip(found, self._turned, self._upper[: self._count], strict=False)
        ]

    def multipliers(self) -> list[Fraction]:
        """Multiplier of each row."""
        found = [Fraction(0)] * len(self._basic)
        for place, variable in enumerate(self._other):
            if variable >= self._count:
                found[variable - self._count] = Fraction(self._table[-1, place], self._denominator)
        return found
