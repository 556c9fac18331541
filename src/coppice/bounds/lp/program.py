"""Linear programs over integers, solved in floats by HiGHS and then proved exactly.

The program is: maximise c x subject to rows a x <= b or a x = b and 0 <= x <= u. HiGHS finds a basis; the
vertex of that basis and its dual multipliers are then computed as fractions and checked against every row and
column. A vertex that passes is optimal, whatever happened in floats: primal and dual are feasible and their
objectives equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.refinement import SquareSystem, solve_exactly
from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.display import Brief
from coppice.rows import first_rows


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Constraint(Brief):
    """``sum of value * x[column] <= bound`` (``= bound`` where ``equal``); columns are distinct."""

    column: NDArray[np.int32]
    value: NDArray[np.int64]
    bound: int = 0
    equal: bool = False


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FloatVertex(Brief):
    """Solution of HiGHS in floats: values of the columns and the objective."""

    values: NDArray[np.float64]
    objective: float


@dataclass(frozen=True, kw_only=True)
class Basis:
    """A vertex given by its tight constraints."""

    columns: tuple[int, ...]  # Columns that rest on no bound of theirs, or happen to
    rows: tuple[int, ...]  # As many rows that hold with equality
    at_upper: tuple[int, ...]  # Columns that rest on their upper bound; the others are 0


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactVertex:
    """An optimal vertex with its proof."""

    values: list[Fraction]  # Value of each column
    multipliers: list[Fraction]  # Multiplier of each row (>= 0 on rows with <=)
    objective: Fraction  # c x, equal to the dual objective


class LinearProgram:
    """Maximise ``cost @ x`` over ``0 <= x <= upper`` and the rows added so far.

    Examples:
        >>> program = LinearProgram([1, 1], [None, None])
        >>> program.add_rows([Constraint(column=np.array([0, 1], dtype=np.int32), value=np.array([3, 1]), bound=2),
        ...                   Constraint(column=np.array([0, 1], dtype=np.int32), value=np.array([1, 2]), bound=3)])
        >>> round(program.solve().objective, 6)
        1.6
        >>> program.exact_vertex().objective
        Fraction(8, 5)
    """

    def __init__(
        self, cost: Sequence[int], upper: Sequence[int | None], *, unit: Sequence[float] | None = None
    ) -> None:
        """Make a program without rows.

        Args:
            upper: Upper bound of each column, None for none.
            unit: What values of each column are about as large as, where columns differ much: HiGHS counts in these
                units, rounded to powers of two, and in such of the rows that their largest entry is 1. None: HiGHS gets
                the numbers as they are.
        """
        self._cost = list(cost)
        self._upper = list(upper)
        self._rows: list[Constraint] = []
        self._loaded = 0
        self._scale = 0.0
        self._solver: Any = None
        self._unit = None if unit is None else np.exp2(np.round(np.log2(np.array(unit, dtype=np.float64))))
        self._row_unit: list[float] = []
        paid = (
            1.0
            if self._unit is None
            else max(abs(c) * u for c, u in zip(cost, self._unit.tolist(), strict=True))
        )
        self._cost_unit = 1.0 if self._unit is None or not paid else 1 / paid

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
        """Append rows; a basis of the solver stays valid."""
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
        if self._unit is not None:
            values = values * self._unit
        objective = -solver.getInfo().objective_function_value * self._scale / self._cost_unit
        return FloatVertex(values=values, objective=objective)

    def float_multipliers(self) -> NDArray[np.float64]:
        """Row multipliers of the last optimum, in floats and >= 0 on rows with <=."""
        multipliers = -np.asarray(self._load().getSolution().row_dual)
        if self._unit is None:
            return multipliers
        return np.asarray(multipliers * np.array(self._row_unit) / self._cost_unit)

    def exact_vertex(self, *, max_bits: int = 2048) -> ExactVertex | None:
        """Vertex of the last basis in fractions, with its dual; None unless both are feasible.

        Args:
            max_bits: Give up where a number needs more bits than this.
        """
        basis = self.basis()
        if basis is None:
            return None

        def solve(system: SquareSystem, *, transpose: bool) -> list[Fraction] | None:
            solver = self._basis_solver(list(basis.columns), list(basis.rows), transpose=transpose)
            return solve_exactly(system, solver, max_bits=max_bits)

        return self.vertex_of(basis, solve)

    def vertex_of(self, basis: Basis, solve: Callable[..., list[Fraction] | None]) -> ExactVertex | None:
        """Vertex of a basis in fractions, with its dual; None unless both are feasible.

        Args:
            basis: Which columns are free, and which rows are tight.
            solve: Solves its system, or with ``transpose`` the transposed one.
        """
        columns, rows = basis.columns, basis.rows
        if len(columns) != len(rows):
            return None
        fixed = {j: self._upper[j] or 0 for j in basis.at_upper}
        position = np.full(self.num_columns, -1, dtype=np.int64)
        position[list(columns)] = np.arange(len(columns))
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
        system = SquareSystem(row=table[:, 0], column=table[:, 1], value=table[:, 2], right=_objects(right))
        primal = solve(system, transpose=False)
        if primal is None:
            return None
        paid = _objects([self._cost[column] for column in columns])
        turned = SquareSystem(row=table[:, 1], column=table[:, 0], value=table[:, 2], right=paid)
        dual = solve(turned, transpose=True)
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

    def scales(self) -> tuple[list[Fraction], list[Fraction], Fraction]:
        """Scale of each column, factor of each row, and divisor of right-hand sides, as given to HiGHS."""
        self._load()
        ones = np.ones(self.num_columns) if self._unit is None else self._unit
        return (
            [Fraction(u) for u in ones.tolist()],
            [Fraction(u) for u in self._row_unit],
            Fraction(self._scale),
        )

    def basis(self) -> Basis | None:
        """The basis of the last solution; None where there is none."""
        import highspy

        solver = self._load()
        found = solver.getBasis()
        if not found.valid:
            return None
        basic, upper = highspy.HighsBasisStatus.kBasic, highspy.HighsBasisStatus.kUpper
        return Basis(
            columns=tuple(j for j, status in enumerate(found.col_status) if status == basic),
            rows=tuple(i for i, status in enumerate(found.row_status) if status != basic),
            at_upper=tuple(
                j
                for j, status in enumerate(found.col_status)
                if status == upper and self._upper[j] is not None
            ),
        )

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
            unit = np.ones(count) if self._unit is None else self._unit
            upper = np.array([solver.inf if u is None else u / self._scale for u in self._upper]) / unit
            solver.addCols(
                count,
                -np.array(self._cost, dtype=np.float64) * unit * self._cost_unit,
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
            self._row_unit += [self._unit_of(row) for row in fresh]
            row_unit = np.array(self._row_unit[self._loaded :])
            bound = np.array([row.bound / self._scale for row in fresh]) * row_unit
            equal = np.array([row.equal for row in fresh])
            sizes = np.array([len(row.column) for row in fresh], dtype=np.int64)
            self._solver.addRows(
                len(fresh),
                np.where(equal, bound, -self._solver.inf),
                bound,
                int(sizes.sum()),
                first_rows(sizes).astype(np.int32),
                np.concatenate([row.column for row in fresh]).astype(np.int32),
                self._scaled_values(fresh, row_unit),
            )
            self._loaded = len(self._rows)
        return self._solver

    def _unit_of(self, row: Constraint) -> float:
        """The factor of a row that makes its largest entry 1 or nearly so, a power of two."""
        if self._unit is None or not len(row.column):
            return 1.0
        return float(np.exp2(-np.floor(np.log2(np.abs(row.value * self._unit[row.column]).max()))))

    def _scaled_values(
        self, rows: Sequence[Constraint], row_unit: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The entries of rows as HiGHS counts them."""
        values = np.concatenate([row.value for row in rows]).astype(np.float64)
        if self._unit is None:
            return values
        columns = np.concatenate([row.column for row in rows])
        return np.asarray(
            values * self._unit[columns] * np.repeat(row_unit, [len(row.column) for row in rows])
        )

    def _basis_solver(self, columns: list[int], rows: list[int], *, transpose: bool) -> Any:
        """A float solver for the system of basic columns and tight rows, through HiGHS's factorisation."""
        solver = self._load()
        _, order = solver.getBasicVariables()
        place = np.array(order, dtype=np.int64)
        where = np.full(self.num_columns, -1, dtype=np.int64)
        where[place[place >= 0]] = np.flatnonzero(place >= 0)
        at_column, at_row = where[columns], np.array(rows, dtype=np.int64)
        size = len(self._rows)
        unit = np.ones(len(columns)) if self._unit is None else self._unit[columns]
        row_unit = np.array(self._row_unit)[rows]

        def solve(right: NDArray[np.float64]) -> NDArray[np.float64]:
            padded = np.zeros(size)
            if transpose:
                padded[at_column] = right * unit
                return np.asarray(np.asarray(solver.getBasisTransposeSolve(padded)[1])[at_row] * row_unit)
            padded[at_row] = right * row_unit
            return np.asarray(np.asarray(solver.getBasisSolve(padded)[1])[at_column] * unit)

        return solve


def _dot(row: Constraint, values: Sequence[Fraction]) -> Fraction:
    terms = zip(row.column.tolist(), row.value.tolist(), strict=True)
    return sum((value * values[column] for column, value in terms if values[column]), Fraction(0))


def _objects(values: Sequence[int]) -> NDArray[np.object_]:
    result: NDArray[np.object_] = np.empty(len(values), dtype=np.object_)
    result[:] = values
    return result


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
