"""Fewest rounds per chunk of S steps, whatever the number of chunks, by a linear program proved in fractions.

Chunks may be cut at will and steps may have any fraction of a round: what a rank sends of a block in a step, it had
before, and what it has came to it. An instance is then a point of the program, divided by its number of chunks, so
fewer rounds per chunk than the optimum are impossible in S steps for any number of chunks. The program is convex, so
symmetries may be imposed without loss. The bound on the collective itself (:func:`coppice.bounds.bound`), whatever the
steps, is often the stronger one where there are many; the larger of both counts.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.planners.synthesis.sccl.commodities import Commodity
from coppice.planners.synthesis.sccl.model import StepModel

MOST_COLUMNS = 60_000


def fewest_rounds_per_chunk(
    model: StepModel, steps: int, *, time_limit_s: float | None = None
) -> Fraction | None:
    """No schedule of so many steps has fewer rounds per chunk; None where the program is too large or out of time.

    Args:
        steps: As many as the distances ask for, or more.
        time_limit_s: Give up after so many seconds.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.synthesis.sccl.model import model_of
        >>> from coppice.planners.synthesis.sccl.routes import find_routes
        >>> from coppice.topology.presets import preset
        >>> box = preset("dgx-1v")
        >>> model = model_of(Problem(box, "all_gather"), find_routes(box))
        >>> fewest_rounds_per_chunk(model, 2), fewest_rounds_per_chunk(model, 3)
        (Fraction(3, 2), Fraction(7, 6))
    """
    if not model.blocks:
        return Fraction(0)
    program = _RoundsProgram(model, steps)
    if program.columns > MOST_COLUMNS:
        return None
    solver = LinearProgram([-1] * steps + [0] * (program.columns - steps), program.upper)
    solver.add_rows(program.rows)
    if solver.solve(time_limit=time_limit_s) is None:
        return None
    vertex = solver.exact_vertex()
    return None if vertex is None else -vertex.objective


class _RoundsProgram:
    """Columns: rounds of each step, then for each representative what it sends and what each rank has."""

    def __init__(self, model: StepModel, steps: int) -> None:
        self.model, self.steps = model, steps
        self.columns = steps
        self.upper: list[int | None] = [None] * steps
        self.rows: list[Constraint] = []
        self._send: dict[
            tuple[int, int], list[tuple[int, int]]
        ] = {}  # route, step: column, weight of the block
        for block in model.representatives(model.images):
            self._block(block)
        self._groups()

    def _column(self, upper: int | None) -> int:
        self.upper.append(upper)
        self.columns += 1
        return self.columns - 1

    def _row(self, entries: dict[int, int], bound: int = 0) -> None:
        self.rows.append(
            Constraint(
                column=np.fromiter(entries, dtype=np.int32, count=len(entries)),
                value=np.fromiter(entries.values(), dtype=np.int64, count=len(entries)),
                bound=bound,
            )
        )

    def _block(self, block: Commodity) -> None:
        model, steps = self.model, self.steps
        span = model.span(block, steps)
        has: dict[tuple[int, int], int] = {}

        def where(rank: int, step: int) -> int | None:
            """The column of what a rank has after a step; -1: all; None: nothing."""
            earliest, latest = span[rank]
            if rank == block.source or (rank in block.targets and step >= steps):
                return -1
            if step < earliest or earliest > latest:
                return None
            step = min(step, latest)
            if (rank, step) not in has:
                has[rank, step] = self._column(1)
            return has[rank, step]

        coming: dict[tuple[int, int], list[int]] = {}
        for window in model.windows(block, steps):
            src, dst = model.routes.src[window.route], model.routes.dst[window.route]
            for step in range(window.first, window.last + 1):
                column = self._column(1)
                self._send.setdefault((window.route, step), []).append((column, block.weight))
                coming.setdefault((dst, step), []).append(column)
                owned = where(src, step - 1)
                if owned is not None and owned >= 0:
                    self._row({column: 1, owned: -1})
        for rank, (earliest, latest) in enumerate(span):
            if rank == block.source or earliest > latest:
                continue
            for step in range(earliest, latest + 1):
                now, before = where(rank, step), where(rank, step - 1)
                entries = dict.fromkeys(coming.get((rank, step), ()), -1)
                if before is not None:
                    entries[before] = -1
                bound = 0
                if now is not None and now >= 0:
                    entries[now] = entries.get(now, 0) + 1
                else:
                    bound = -1
                self._row({column: value for column, value in entries.items() if value}, bound)

    def _groups(self) -> None:
        unit = self.model.routes.unit
        for group, sources in self.model.groups(self.model.images):
            for step in range(1, self.steps + 1):
                entries = {step - 1: -group.rate * unit.denominator}
                for element in sources:
                    for route in element:
                        for column, weight in self._send.get((route, step), ()):
                            entries[column] = entries.get(column, 0) + weight * unit.numerator
                if len(entries) > 1:
                    self._row(entries)
