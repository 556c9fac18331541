"""How rings share the work: the linear program over the rings found, and exact weights from its solution.

With v[j] the rate of ring j, the rates that fit are those with ``sum over j of counts[j, e] * v[j] <=
capacity[e]`` on every link; the best sharing maximises their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.display import Brief
from coppice.errors import CoppiceError
from coppice.planners.ring.model import worst_time
from coppice.topology.model import Topology

__all__ = ["Mix", "best_mix"]

_DENOMINATORS = (*range(1, 97), 105, 112, 120, 126, 128, 144, 168, 180, 192, 210, 240, 252, 256, 315, 10**6)
_LARGEST_COMMON = 2**40


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Mix(Brief):
    """The best sharing of the work among given rings.

    Attributes:
        counts: Traffic of each ring on each link.
        program: The linear program, solved.
        shares: Share of each ring; the sum is 1.
        level: Worst link load over capacity, per unit of traffic.
        prices: Price of each link; only rings whose traffic costs less than 1 can lower the level.
    """

    counts: NDArray[np.int64]
    program: LinearProgram
    shares: NDArray[np.float64]
    level: float
    prices: NDArray[np.float64]

    def exact(self, topology: Topology) -> tuple[list[int], Fraction]:
        """Whole-number weights of the least exact worst load, small numbers preferred.

        Returns:
            The weights (coprime, some perhaps 0), and their
            :func:`~coppice.planners.ring.model.worst_time`.
        """
        chosen = np.flatnonzero(self.shares > 1e-9)
        distinct = _alike(self.counts[chosen], topology.capacity)[0]
        loads = (distinct[:, :-1] / distinct[:, -1:]).T
        grids = [np.rint(self.shares[chosen] * denominator).astype(np.int64) for denominator in _DENOMINATORS]
        tried = [
            (float((grid @ loads).max()) / int(grid.sum()), grid.tolist()) for grid in grids if grid.any()
        ]
        least = min(level for level, _ in tried)
        best = next(grid for level, grid in tried if level <= least * (1 + 1e-12))
        weights = [0] * len(self.shares)
        for ring, weight in zip(chosen.tolist(), best, strict=True):
            weights[ring] = weight
        if least > self.level * (1 + 1e-12):
            weights = self._vertex() or weights
        return weights, worst_time(self.counts, weights, topology)

    def _vertex(self) -> list[int] | None:
        """The weights of the exact optimal vertex, or None where they are unwieldy."""
        vertex = self.program.exact_vertex()
        if vertex is None:
            return None
        common = lcm(*(value.denominator for value in vertex.values))
        return None if common > _LARGEST_COMMON else [int(value * common) for value in vertex.values]


def best_mix(counts: NDArray[np.int64], capacity: NDArray[np.int64]) -> Mix:
    """The shares of least worst link load, by HiGHS.

    Args:
        counts: ``counts[j, e]``: traffic of ring j on link e; each ring has some.
        capacity: Capacity of each link.

    Raises:
        CoppiceError: If HiGHS finds no optimum.
    """
    kinds, kind, size = _alike(counts, capacity)
    used = np.flatnonzero(kinds[:, :-1].any(axis=1))
    program = LinearProgram([1] * len(counts), [None] * len(counts))
    rows: list[Constraint] = []
    for *loads, room in kinds[used].tolist():
        value = np.array(loads, dtype=np.int64)
        column = np.flatnonzero(value)
        rows.append(Constraint(column=column.astype(np.int32), value=value[column], bound=room))
    program.add_rows(rows)
    vertex = program.solve()
    if vertex is None or vertex.objective <= 0:
        msg = "the linear program over rings was not solved: report this topology."
        raise CoppiceError(msg)
    price = np.zeros(len(kinds))
    price[used] = np.maximum(program.float_multipliers(), 0.0)
    return Mix(
        counts=counts,
        program=program,
        shares=np.maximum(vertex.values, 0.0) / vertex.objective,
        level=1 / vertex.objective,
        prices=(price / size)[kind],
    )


def _alike(
    counts: NDArray[np.int64], capacity: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Links that all rings use alike as one row (counts, capacity): rows, row of each link, links of each."""
    table = np.ascontiguousarray(np.vstack([counts, capacity]).T)
    number: dict[bytes, int] = {}
    kind = np.array([number.setdefault(row.tobytes(), len(number)) for row in table], dtype=np.int64)
    first = np.unique(kind, return_index=True)[1]
    return table[first], kind, np.bincount(kind)
