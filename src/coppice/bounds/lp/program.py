"""A linear program over integers that is solved in floats by HiGHS and then proved exactly.

The program is: maximise c x subject to rows a x <= b or a x = b and 0 <= x <= u. HiGHS finds a basis; the
vertex of that basis and its dual multipliers are then computed as fractions and checked against every row and
column. A vertex that passes is optimal, whatever happened in floats: primal and dual are feasible and their
objectives equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.refinement import SquareSystem, solve_exactly
from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.display import Brief
from coppice.rows import first_rows

__all__ = [
    "Constraint",
    "ExactVertex",
    "FloatVertex",
    "LinearProgram",
    "certified_multipliers",
]

_GRID = 2**40
"""Denominator of multipliers that are taken from floats."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Constraint(Brief):
    """``sum of value * x[column] <= bound`` (``= bound`` where ``equal``); columns are distinct."""

    column: NDArray[np.int32]
    value: NDArray[np.int64]
    bound: int = 0
    equal: bool = False


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FloatVertex(Brief):
    """What HiGHS found: the values of the columns and of the objective, in floats."""

    values: NDArray[np.float64]
    objective: float


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactVertex:
    """An optimal vertex with its proof.

    Attributes:
        values: Value of each column.
        multipliers: Multiplier of each row (>= 0 on rows with <=).
        objective: c x, equal to the dual objective.
    """

    values: list[Fraction]
    multipliers: list[Fraction]
    objective: Fraction


class LinearProgram:
    """maximise ``cost @ x`` over ``0 <= x <= upper`` and the rows added so far.

    Examples:
        >>> program = LinearProgram([1, 1], [None, None])
        >>> program.add_rows([Constraint(column=np.array([0, 1], dtype=np.int32), value=np.array([3, 1]), bound=2),
        ...                   Constraint(column=np.array([0, 1], dtype=np.int32), value=np.array([1, 2]), bound=3)])
        >>> round(program.solve().objective, 6)
        1.6
        >>> program.exact_vertex().objective
        Fraction(8, 5)
    """

    def __init__(self, cost: Sequence[int], upper: Sequence[int | None]) -> None:
        """Make a program without rows.

        Args:
            cost: Objective coefficient of each column.
            upper: Upper bound of each column, None for none.
        """
        self._cost = list(cost)
        self._upper = list(upper)
        self._rows: list[Constraint] = []
        self._loaded = 0
        self._scale = 0.0
        self._solver: Any = None

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self._cost)

    @property
    def cost(self) -> Sequence[int]:
        """Objective coefficient of each column."""
        return self._cost

    @property
    def upper(self) -> Sequence[int | None]:
        """Upper bound of each column."""
        return self._upper

    @property
    def rows(self) -> Sequence[Constraint]:
        """The rows, in the order in which they were added."""
        return self._rows

    def add_rows(self, rows: Sequence[Constraint]) -> None:
        """Append rows; a solver that has a basis keeps it."""
        self._rows.extend(rows)

    def solve(self, *, time_limit: float | None = None, interior_point: bool = False) -> FloatVertex | None:
        """Optimise in floats, from the last basis where there is one.

        Args:
            time_limit: Give up after this many seconds.
            interior_point: Start with the interior-point method (crossover to a vertex follows).

        Returns:
            The optimum, or None where HiGHS did not prove one (time, infeasible, unbounded).
        """
        import highspy

        solver = self._load()
        if time_limit is not None:
            solver.setOptionValue("time_limit", solver.getRunTime() + time_limit)
        if interior_point:
            solver.setOptionValue("solver", "ipm")
            solver.setOptionValue("presolve", "on")
            run_interruptibly(solver)
        solver.setOptionValue("solver", "simplex")
        solver.setOptionValue("presolve", "off")
        run_interruptibly(solver)  # from the basis that is there; leaves a factorised one
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        values = np.asarray(solver.getSolution().col_value) * self._scale
        return FloatVertex(values=values, objective=-solver.getInfo().objective_function_value * self._scale)

    def float_multipliers(self) -> NDArray[np.float64]:
        """Row multipliers of the last optimum, in floats and >= 0 on rows with <=."""
        return -np.asarray(self._load().getSolution().row_dual)

    def exact_vertex(self, *, max_bits: int = 2048) -> ExactVertex | None:
        """The vertex of the last basis in fractions, with its dual; None unless both prove to be feasible."""
        basis = self._basis()
        if basis is None:
            return None
        columns, rows, fixed = basis
        position = np.full(self.num_columns, -1, dtype=np.int64)
        position[columns] = np.arange(len(columns))
        entries: list[tuple[int, int, int]] = []
        right: list[int] = []
        for place, i in enumerate(rows):
            row = self._rows[i]
            rest = row.bound
            for column, value in zip(row.column.tolist(), row.value.tolist(), strict=True):
                if position[column] >= 0:
                    entries.append((place, int(position[column]), value))
                else:
                    rest -= value * fixed.get(column, 0)
            right.append(rest)
        table = np.array(entries, dtype=np.int64).reshape(-1, 3)
        primal = solve_exactly(
            SquareSystem(row=table[:, 0], column=table[:, 1], value=table[:, 2], right=_objects(right)),
            self._basis_solver(columns, rows, transpose=False),
            max_bits=max_bits,
        )
        if primal is None:
            return None
        dual = solve_exactly(
            SquareSystem(
                row=table[:, 1],
                column=table[:, 0],
                value=table[:, 2],
                right=_objects([self._cost[column] for column in columns]),
            ),
            self._basis_solver(columns, rows, transpose=True),
            max_bits=max_bits,
        )
        if dual is None:
            return None
        values = [Fraction(fixed.get(column, 0)) for column in range(self.num_columns)]
        for column, fraction in zip(columns, primal, strict=True):
            values[column] = fraction
        multipliers = [Fraction(0)] * len(self._rows)
        for i, fraction in zip(rows, dual, strict=True):
            multipliers[i] = fraction
        objective = sum((c * x for c, x in zip(self._cost, values, strict=True) if c), Fraction(0))
        if not self.is_feasible(values) or self.dual_bound(multipliers) != objective:
            return None
        return ExactVertex(values=values, multipliers=multipliers, objective=objective)

    def is_feasible(self, values: Sequence[Fraction]) -> bool:
        """Whether ``values`` satisfy all bounds and rows, exactly."""
        for value, upper in zip(values, self._upper, strict=True):
            if value < 0 or (upper is not None and value > upper):
                return False
        for row in self._rows:
            activity = _dot(row, values)
            if activity > row.bound or (row.equal and activity < row.bound):
                return False
        return True

    def dual_bound(self, multipliers: Sequence[Fraction]) -> Fraction | None:
        """Exact upper bound on the objective from row multipliers; None if they prove nothing.

        Weak duality: with y >= 0 on rows with <=, and r = c - y A, no feasible x has c x > y b + sum of u r
            over
        the columns with r > 0. Columns without an upper bound need r <= 0.
        """
        bound = Fraction(0)
        for row, multiplier in zip(self._rows, multipliers, strict=True):
            if multiplier < 0 and not row.equal:
                return None
            bound += multiplier * row.bound
        for rest, upper in zip(self.reduced_costs(multipliers), self._upper, strict=True):
            if rest > 0:
                if upper is None:
                    return None
                bound += rest * upper
        return bound

    def reduced_costs(self, multipliers: Sequence[Fraction]) -> list[Fraction]:
        """The costs minus y A, for row multipliers y."""
        reduced = [Fraction(c) for c in self._cost]
        for row, multiplier in zip(self._rows, multipliers, strict=True):
            if multiplier:
                for column, value in zip(row.column.tolist(), row.value.tolist(), strict=True):
                    reduced[column] -= multiplier * value
        return reduced

    def _load(self) -> Any:
        """The HiGHS model with all rows; right-hand sides scaled to at most 1."""
        if self._solver is None:
            finite = [u for u in self._upper if u] + [abs(row.bound) for row in self._rows if row.bound]
            self._scale = float(max(finite, default=1))
            solver = new_solver()
            solver.setOptionValue("primal_feasibility_tolerance", 1e-9)
            solver.setOptionValue("dual_feasibility_tolerance", 1e-9)
            count = self.num_columns
            empty = np.zeros(0)
            upper = np.array([solver.inf if u is None else u / self._scale for u in self._upper])
            solver.addCols(
                count,
                -np.array(self._cost, dtype=np.float64),
                np.zeros(count),
                upper,
                0,
                np.zeros(count, dtype=np.int32),
                empty.astype(np.int32),
                empty,
            )
            self._solver = solver
        if self._loaded < len(self._rows):
            fresh = self._rows[self._loaded :]
            bound = np.array([row.bound / self._scale for row in fresh])
            equal = np.array([row.equal for row in fresh])
            sizes = np.array([len(row.column) for row in fresh], dtype=np.int64)
            self._solver.addRows(
                len(fresh),
                np.where(equal, bound, -self._solver.inf),
                bound,
                int(sizes.sum()),
                first_rows(sizes).astype(np.int32),
                np.concatenate([row.column for row in fresh]).astype(np.int32),
                np.concatenate([row.value for row in fresh]).astype(np.float64),
            )
            self._loaded = len(self._rows)
        return self._solver

    def _basis(self) -> tuple[list[int], list[int], dict[int, int]] | None:
        """Basic columns, tight rows, and the values of columns that rest on their upper bound."""
        import highspy

        solver = self._load()
        basis = solver.getBasis()
        if not basis.valid:
            return None
        basic = highspy.HighsBasisStatus.kBasic
        columns = [j for j, status in enumerate(basis.col_status) if status == basic]
        rows = [i for i, status in enumerate(basis.row_status) if status != basic]
        if len(columns) != len(rows):
            return None
        fixed: dict[int, int] = {}
        for j, status in enumerate(basis.col_status):
            upper = self._upper[j]
            if status == highspy.HighsBasisStatus.kUpper and upper is not None:
                fixed[j] = upper
        return columns, rows, fixed

    def _basis_solver(self, columns: list[int], rows: list[int], *, transpose: bool) -> Any:
        """A float solver for the system of basic columns and tight rows, through HiGHS's factorisation."""
        solver = self._load()
        _, order = solver.getBasicVariables()
        place = np.array(order, dtype=np.int64)
        where = np.full(self.num_columns, -1, dtype=np.int64)
        where[place[place >= 0]] = np.flatnonzero(place >= 0)
        at_column, at_row = where[columns], np.array(rows, dtype=np.int64)
        size = len(self._rows)

        def solve(right: NDArray[np.float64]) -> NDArray[np.float64]:
            padded = np.zeros(size)
            padded[at_column if transpose else at_row] = right
            method = solver.getBasisTransposeSolve if transpose else solver.getBasisSolve
            result = np.asarray(method(padded)[1])
            return result[at_row if transpose else at_column]

        return solve


def _dot(row: Constraint, values: Sequence[Fraction]) -> Fraction:
    terms = zip(row.column.tolist(), row.value.tolist(), strict=True)
    return sum((value * values[column] for column, value in terms if values[column]), Fraction(0))


def _objects(values: Sequence[int]) -> NDArray[np.object_]:
    result: NDArray[np.object_] = np.empty(len(values), dtype=np.object_)
    result[:] = values
    return result


def certified_multipliers(
    program: LinearProgram, multipliers: NDArray[np.float64], *, payer: Sequence[int | None]
) -> list[Fraction] | None:
    """Multipliers that prove an upper bound, from ones that are only nearly right; None where they cannot be repaired.

    A dual solution in floats violates its own constraints in the last digits. Rounded to fractions and scaled up until
    every column without an upper bound is paid for, it proves a bound that is exact, if slightly weak.

    Args:
        program: Its rows with ``payer`` are capacities or equations with bound 0; the others have bound 0.
        multipliers: Row multipliers in floats.
        payer: For each column the row that may absorb what the column lacks, or None: a capacity with coefficient 1
            in it, or an equation with a positive one, which is raised before all else. Columns without one are paid
            for by scaling all multipliers up.
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
