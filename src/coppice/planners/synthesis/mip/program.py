"""Mixed-integer programs for HiGHS that keep the incumbent, whatever ends the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.display import Brief

_SEEDS = 2**31 - 1
_FEASIBILITY = 1e-9


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """Limits of a search."""

    seconds: float | None = None  # Time for it; None: without limit
    # Nodes of the search tree: unlike seconds, they stop at the same place on any machine. None: all.
    nodes: int | None = None
    gap: float = 1e-4  # A solution that is proved to be within this share of the optimum is good enough
    seed: int = 0  # Of the solver


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MixedSolution(Brief):
    """Result of a search."""

    values: NDArray[np.float64] | None  # Of the columns, the best found; None where none was
    objective: float  # Its objective
    bound: float  # No solution has an objective below it, as far as floats prove
    infeasible: bool  # It is proved that there is no solution
    optimal: bool  # The best found is optimal within the gap that was asked for
    interrupted: bool  # Ctrl-C ended the search

    @property
    def gap(self) -> float | None:
        """Relative optimality gap; None where nothing is found or proved."""
        if self.values is None or not math.isfinite(self.bound):
            return None
        if abs(self.objective) < _FEASIBILITY:
            return 0.0
        return max(0.0, (self.objective - self.bound) / abs(self.objective))


class MixedProgram:
    """Minimise ``cost @ x`` over rows and bounds, with some x integral.

    Examples:
        >>> program = MixedProgram()
        >>> x, y = program.column(cost=-3, upper=4, whole=True), program.column(cost=-2)
        >>> program.row({x: 2, y: 1}, most=7)
        >>> program.row({x: 1, y: 3}, most=9)
        >>> found = program.solve(SearchLimits())
        >>> found.values.round(6).tolist(), found.optimal
        ([3.0, 1.0], True)
    """

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._rows: list[tuple[Mapping[int, float], float, float]] = []
        self._known: set[tuple[frozenset[tuple[int, float]], float, float]] = set()

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self._cost)

    @property
    def num_rows(self) -> int:
        """Number of distinct rows."""
        return len(self._rows)

    def column(
        self, *, cost: float = 0.0, lower: float = 0.0, upper: float = math.inf, whole: bool = False
    ) -> int:
        """Add a variable; return its number."""
        self._cost.append(cost)
        self._lower.append(lower)
        self._upper.append(upper)
        self._whole.append(whole)
        return len(self._cost) - 1

    def row(self, terms: Mapping[int, float], *, least: float = -math.inf, most: float = math.inf) -> None:
        """Add ``least <= sum of terms <= most``, unless it is there already."""
        key = (frozenset(terms.items()), least, most)
        if terms and key not in self._known:
            self._known.add(key)
            self._rows.append((terms, least, most))

    def solve(
        self,
        limits: SearchLimits,
        *,
        # A solution that is known, from which HiGHS works out what is missing
        start: Mapping[int, float] | None = None,
        # Called with the objective of each better solution, from another thread
        on_solution: Callable[[float], None] | None = None,
    ) -> MixedSolution:
        """Search from ``start``, values of some columns, until a limit or Ctrl-C."""
        import highspy

        solver = self._loaded(limits)
        cost = np.array(self._cost, dtype=np.float64)
        best: list[tuple[float, NDArray[np.float64]]] = []
        whole = any(self._whole)
        if whole:

            def keep(event: Any) -> None:
                values = np.array(event.data_out.mip_solution, dtype=np.float64)
                value = float(cost @ values)
                best[:] = [(value, values)]
                if on_solution is not None:
                    on_solution(value)

            solver.cbMipImprovingSolution += keep
        if start and whole:
            columns = np.array(sorted(start), dtype=np.int32)
            solver.setSolution(
                len(columns), columns, np.array([start[column] for column in columns.tolist()], dtype=float)
            )
        try:
            run_interruptibly(solver)
        except KeyboardInterrupt:
            # What the solver itself holds may still be changing.
            objective, values = best[0] if best else (math.inf, None)
            return MixedSolution(
                values=values,
                objective=objective,
                bound=-math.inf,
                infeasible=False,
                optimal=False,
                interrupted=True,
            )
        status, info = solver.getModelStatus(), solver.getInfo()
        feasible = info.primal_solution_status == highspy.kSolutionStatusFeasible
        optimal = status == highspy.HighsModelStatus.kOptimal
        values = np.asarray(solver.getSolution().col_value) if feasible else None
        objective = math.inf if values is None else float(cost @ values)
        if (
            start
            and values is not None
            and not math.isclose(objective, info.objective_function_value, rel_tol=1e-6, abs_tol=1e-6)
        ):
            # HiGHS 1.16 takes the objective of what its presolve makes of the start for that of the start itself.
            return self.solve(limits, on_solution=on_solution)
        bound = float(info.mip_dual_bound) if whole else (objective if optimal else -math.inf)
        return MixedSolution(
            values=values,
            objective=objective,
            bound=bound,
            infeasible=status == highspy.HighsModelStatus.kInfeasible,
            optimal=optimal,
            interrupted=False,
        )

    def _loaded(self, limits: SearchLimits) -> Any:
        """A solver with the program."""
        import highspy

        solver = new_solver()
        solver.setOptionValue("random_seed", limits.seed % _SEEDS)
        solver.setOptionValue("mip_rel_gap", limits.gap)
        if limits.seconds is not None:
            solver.setOptionValue("time_limit", max(limits.seconds, 0.0))
        if limits.nodes is not None:
            solver.setOptionValue("mip_max_nodes", limits.nodes)
        columns = self.num_columns
        empty = np.zeros(0)
        solver.addCols(
            columns,
            np.array(self._cost, dtype=np.float64),
            np.array(self._lower, dtype=np.float64),
            np.array(self._upper, dtype=np.float64),
            0,
            np.zeros(columns, dtype=np.int32),
            empty.astype(np.int32),
            empty,
        )
        whole = np.flatnonzero(self._whole).astype(np.int32)
        if len(whole):
            solver.changeColsIntegrality(
                len(whole), whole, np.full(len(whole), highspy.HighsVarType.kInteger)
            )
        sizes = np.array([len(terms) for terms, _, _ in self._rows], dtype=np.int64)
        first = np.cumsum(sizes) - sizes
        solver.addRows(
            len(self._rows),
            np.array([least for _, least, _ in self._rows], dtype=np.float64),
            np.array([most for _, _, most in self._rows], dtype=np.float64),
            int(sizes.sum()),
            first.astype(np.int32),
            _flat((terms.keys() for terms, _, _ in self._rows), np.int32),
            _flat((terms.values() for terms, _, _ in self._rows), np.float64),
        )
        return solver


def _flat(parts: Iterable[Iterable[float]], kind: type) -> NDArray[Any]:
    return np.fromiter((value for part in parts for value in part), dtype=kind)
