"""Linear programs whose coefficients differ too much for one tolerance: solve repeatedly for the scaled residual.

Iterative refinement of linear programs (A. M. Gleixner, D. E. Steffy, K. Wolter, "Iterative refinement for linear
programming", 2016). What the solution in floats leaves over is counted exactly: by how much it violates rows and
bounds, and by how much its multipliers leave columns unpaid. These remainders are blown up to the size of 1 and solved
for by the same solver from the same basis; the corrections are added at their true size. A violation that is below the
tolerance in one round is far above it in the next, so the bases get right however far apart the numbers are. Nothing is
believed for that: the vertex of a basis counts when it proves itself in fractions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from coppice.bounds.lp.program import Basis, ExactVertex, LinearProgram
from coppice.bounds.lp.refinement import SquareSystem, eliminated
from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.display import Brief

_ROUNDS = 16
_FAR = 2.0**40
_MOST_GAIN = 2**30
"""What is left over is blown up by this factor more from one round to the next."""


def rescaled_vertex(program: LinearProgram, *, time_limit: float | None = None) -> ExactVertex | None:
    """Optimum of a program with its proof; None where no basis proves itself.

    Args:
        program: After :meth:`~coppice.bounds.lp.program.LinearProgram.solve`, whose basis is the first.
        time_limit: Seconds, roughly; at least one round is done.

    Examples:
        >>> from coppice.bounds.lp.program import Constraint
        >>> program = LinearProgram([1], [None])
        >>> program.add_rows([Constraint(column=np.array([0], dtype=np.int32), value=np.array([10**12]), bound=3)])
        >>> program.solve() is not None
        True
        >>> rescaled_vertex(program).objective
        Fraction(3, 1000000000000)
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    first = program.basis()
    if first is None:
        return None
    tried: set[Basis] = set()
    for basis in _bases(program, first):
        if basis not in tried:
            tried.add(basis)
            vertex = program.vertex_of(basis, _solve)
            if vertex is not None:
                return vertex
        if deadline is not None and time.monotonic() > deadline:
            return None
    return None


def _solve(system: SquareSystem, *, transpose: bool) -> list[Fraction] | None:
    del transpose
    return eliminated(system)


def _bases(program: LinearProgram, basis: Basis) -> Iterator[Basis]:
    """The bases of round after round, the first one included."""
    yield basis
    left = _LeftOver(program, basis)
    for _ in range(_ROUNDS):
        if not left.solve():
            return
        yield left.basis


@dataclass
class _Point:
    """Values of columns and multipliers of rows, and what they are wrong by, blown up so far."""

    values: list[Fraction]
    multipliers: list[Fraction]
    grown: int = 1
    paid: int = 1


class _LeftOver(Brief):
    """The program for what is left over of a point, with a column for what each row leaves open.

    With that column every row is an equation that the point satisfies exactly, so that all that it violates are bounds
    of columns, and all that it leaves unpaid are costs of columns.
    """

    def __init__(self, program: LinearProgram, basis: Basis) -> None:
        import highspy

        self._program, self._status = program, highspy.HighsBasisStatus
        self._optimal = highspy.HighsModelStatus.kOptimal
        unit, factor, self._scale = program.scales()
        self._count, rows = program.num_columns, program.rows
        self._unit = [*unit, *(1 / each for each in factor)]
        self._factor = factor
        self._cost_unit = 1 / max(
            (abs(c) * u for c, u in zip(program.cost, unit, strict=True) if c), default=Fraction(1)
        )
        self._upper = [*program.upper, *(0 if row.equal else None for row in rows)]
        self._point = _Point([Fraction(0)] * self._count, [Fraction(0)] * len(rows))
        self.basis = basis
        self._solver = self._loaded(basis)

    def solve(self) -> bool:
        """Do a round; whether there was an optimum."""
        point, solver = self._point, self._solver
        values, costs = self._values(), self._costs()
        total = len(values)
        size = [self._scale * unit / point.grown for unit in self._unit]
        lower = [float(-value / own) for value, own in zip(values, size, strict=True)]
        upper = [
            solver.inf if most is None else float((most - value) / own)
            for most, value, own in zip(self._upper, values, size, strict=True)
        ]
        price = [
            -float(cost * unit * self._cost_unit * point.paid)
            for cost, unit in zip(costs, self._unit, strict=True)
        ]
        columns = np.arange(total, dtype=np.int32)
        # What is very large is far from mattering in this round, and HiGHS fails on it.
        solver.changeColsBounds(total, columns, np.maximum(lower, -_FAR), np.array(upper))
        solver.changeColsCost(total, columns, np.minimum(price, _FAR))
        run_interruptibly(solver)
        if solver.getModelStatus() != self._optimal:
            solver.clearSolver()  # once more without the basis
            run_interruptibly(solver)
        if solver.getModelStatus() != self._optimal:
            return False
        solution, status = solver.getSolution(), solver.getBasis().col_status
        for j in range(self._count):
            point.values[j] += size[j] * Fraction(solution.col_value[j])
            if status[j] == self._status.kLower:
                point.values[j] = Fraction(0)
            elif status[j] == self._status.kUpper:
                point.values[j] = Fraction(self._upper[j] or 0)
        for i, change in enumerate(solution.row_dual):
            point.multipliers[i] -= Fraction(change) * self._factor[i] / self._cost_unit / point.paid
        self.basis = self._basis(status, solver.getBasis().row_status)
        point.grown, point.paid = (
            _blown_up(each, before)
            for each, before in zip(self._wrong(status), (point.grown, point.paid), strict=True)
        )
        return True

    def _loaded(self, basis: Basis) -> Any:
        """HiGHS with every row as an equation, at a basis."""
        import highspy

        program, solver = self._program, new_solver()
        solver.setOptionValue("primal_feasibility_tolerance", 1e-9)
        solver.setOptionValue("dual_feasibility_tolerance", 1e-9)
        solver.setOptionValue("small_matrix_value", 1e-12)
        solver.setOptionValue("presolve", "off")
        total, empty = len(self._unit), np.zeros(0)
        solver.addCols(
            total, np.zeros(total), np.zeros(total), np.full(total, solver.inf), 0,
            np.zeros(total, dtype=np.int32), empty.astype(np.int32), empty,
        )  # fmt: skip
        for i, row in enumerate(program.rows):
            entries = zip(row.column.tolist(), row.value.tolist(), strict=True)
            values = [float(value * self._unit[column] * self._factor[i]) for column, value in entries]
            columns = np.append(row.column, self._count + i).astype(np.int32)
            solver.addRow(0.0, 0.0, len(columns), columns, np.array([*values, 1.0]))
        status, start = self._status, highspy.HighsBasis()
        held = {self._count + i for i in basis.rows}
        basic = {*basis.columns, *({*range(self._count, total)} - held)}
        at_upper = set(basis.at_upper)
        start.col_status = [
            status.kBasic if j in basic else status.kUpper if j in at_upper else status.kLower
            for j in range(total)
        ]
        start.row_status = [status.kLower] * len(program.rows)
        solver.setBasis(start)
        return solver

    def _values(self) -> list[Fraction]:
        """Value of each column, and what each row leaves open."""
        values = self._point.values
        open_ = [
            row.bound
            - sum(
                (v * values[c] for c, v in zip(row.column.tolist(), row.value.tolist(), strict=True)),
                Fraction(0),
            )
            for row in self._program.rows
        ]
        return [*values, *open_]

    def _costs(self) -> list[Fraction]:
        """What each column gains beyond what it pays."""
        multipliers = self._point.multipliers
        return [*self._program.reduced_costs(multipliers), *(-each for each in multipliers)]

    def _basis(self, status: Any, row_status: Any) -> Basis:
        """The basis of the program itself: an equation that HiGHS holds in the basis is a row that is not tight."""
        basic, upper = self._status.kBasic, self._status.kUpper
        return Basis(
            columns=tuple(j for j in range(self._count) if status[j] == basic),
            rows=tuple(
                i
                for i in range(len(self._program.rows))
                if status[self._count + i] != basic and row_status[i] != basic
            ),
            at_upper=tuple(
                j for j in range(self._count) if status[j] == upper and self._upper[j] is not None
            ),
        )

    def _wrong(self, status: Any) -> tuple[Fraction, Fraction]:
        """By how much columns violate their bounds, and by how much they are unpaid, in the units of HiGHS."""
        worst = unpaid = Fraction(0)
        columns = zip(self._values(), self._costs(), self._upper, self._unit, status, strict=True)
        for value, cost, upper, unit, at in columns:
            over = max(-value, Fraction(0) if upper is None else value - upper)
            if at == self._status.kBasic:
                missing = abs(cost)
            else:
                missing = max(Fraction(0), -cost if at == self._status.kUpper and upper != 0 else cost)
                over = max(over, value if upper is None else over)
            worst = max(worst, over / unit / self._scale)
            unpaid = max(unpaid, missing * unit * self._cost_unit)
        return worst, unpaid


def _blown_up(left: Fraction, before: int) -> int:
    """The factor that makes what is left over as large as 1, a power of two."""
    most = before * _MOST_GAIN
    if left * most <= 1:
        return most
    return 1 << max(0, int(1 / left).bit_length() - 1)
