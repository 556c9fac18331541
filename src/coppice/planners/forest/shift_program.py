"""The linear program of shifts: weights of alike trees, how much of single trees goes another way, and overloads.

Rows: one of each link; equations that hold the weights of the trees of a root to its rate, and rates to what is wanted;
and one of each rank of a tree with shifts, that no more of it is shifted than there is. It is solved in floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.planners.forest.reweighting import LinkUses
from coppice.rows import offsets
from coppice.schedule.forest import Forest
from coppice.topology.symmetry import looks

MOST_LOOKS = 32
"""Looks of roots that are told apart at most."""

MOST_TREES = 8
"""Trees of a root that are told apart at most."""

MOST_STEPS = 4_000
"""Steps of the simplex method after which it is given up."""

NOTHING = 1e-9
"""Share of the widest link that counts as nothing, as it does for HiGHS."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeClasses:
    """Trees that keep one weight: as many-th trees of a phase of roots that look alike."""

    number: NDArray[np.int64]  # Class of each tree
    look: NDArray[np.int64]  # Look of each node

    @classmethod
    def of(cls, forest: Forest) -> TreeClasses:
        """The classes of a forest's trees."""
        look = looks(forest.topology, most=MOST_LOOKS)
        order = np.lexsort((np.arange(forest.num_trees), forest.tree_phase, forest.tree_root))
        root, phase = forest.tree_root[order], forest.tree_phase[order]
        new = np.append(True, (np.diff(root) != 0) | (np.diff(phase) != 0))
        place = np.arange(len(order)) - np.flatnonzero(new)[np.cumsum(new) - 1]
        each = np.empty(len(order), dtype=np.int64)
        each[order] = np.minimum(place, MOST_TREES - 1)
        keys = np.stack([look[forest.tree_root], forest.tree_phase.astype(np.int64), each])
        return cls(number=np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1), look=look)


@dataclass(frozen=True, eq=False, kw_only=True)
class ShiftSolution:
    """Weights in capacity units."""

    weight: NDArray[np.float64]  # Of a tree of each class, what is shifted included
    over: NDArray[np.float64]  # What each link carries too much, 0 where it is next to nothing
    price: NDArray[np.float64]  # What a unit less on each link would save of that


class ShiftProgram:
    """The program, to which shifts are added as they are found."""

    solver: Any

    def __init__(
        self,
        forest: Forest,
        uses: LinkUses,
        classes: TreeClasses,
        rate: Fraction,
        *,
        free_roots: bool,
    ) -> None:
        """Make the program without shifts.

        Args:
            rate: In capacity units, of the trees of each root; with free roots of all trees of a phase together.
        """
        topology = forest.topology
        self.classes, self.links = classes, topology.num_links
        self.trees = int(classes.number.max()) + 1
        nodes = topology.rank_nodes
        kinds, kind = np.unique(classes.look[nodes], return_inverse=True)
        self.roots = len(kinds)
        self.scale = float(topology.capacity.max())
        self.capacity = topology.capacity / self.scale
        self.spare = 0.0
        self.row_of: dict[tuple[int, int], int] = {}  # row of each rank of a tree with shifts
        solver = self.solver = new_solver()
        for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            solver.setOptionValue(option, NOTHING)
        solver.setOptionValue("run_crossover", "off")
        solver.setOptionValue("simplex_iteration_limit", MOST_STEPS)
        infinite = solver.inf
        free = self.trees + self.roots
        cost = np.concatenate([np.zeros(free), np.ones(self.links)])
        none = np.zeros(0, dtype=np.int32)
        size = len(cost)
        solver.addCols(
            size,
            cost,
            np.zeros(size),
            np.full(size, infinite),
            0,
            np.zeros(size, dtype=np.int32),
            none,
            none * 0.0,
        )
        load = np.bincount(
            uses.link.astype(np.int64) * self.trees + classes.number[uses.tree],
            minlength=self.links * self.trees,
        ).reshape(self.links, self.trees)
        link, tree = np.nonzero(load)
        each = np.arange(self.links)
        self._add_rows(
            np.concatenate([link, each]),
            np.concatenate([tree, free + each]),
            np.concatenate([load[link, tree].astype(np.float64), -np.ones(self.links)]),
            np.full(self.links, -infinite),
            self.capacity,
        )
        first = {int(k): int(nodes[np.flatnonzero(kind == k)[0]]) for k in range(self.roots)}
        for k, node in first.items():
            for phase in np.unique(forest.tree_phase).tolist():
                mine = np.flatnonzero((forest.tree_root == node) & (forest.tree_phase == phase))
                which, count = np.unique(classes.number[mine], return_counts=True)
                self._equation([*which.tolist(), self.trees + k], [*count.tolist(), -1], 0.0)
        wanted = float(rate) / self.scale
        if free_roots:
            self._equation(list(range(self.trees, free)), np.bincount(kind).tolist(), wanted)
        else:
            for k in range(self.roots):
                self._equation([self.trees + k], [1], wanted)

    def _add_rows(
        self,
        row: NDArray[np.integer],
        column: NDArray[np.integer],
        value: NDArray[np.float64],
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
    ) -> None:
        order = np.argsort(row, kind="stable")
        starts = offsets(np.bincount(row, minlength=len(upper)))[:-1].astype(np.int32)
        self.solver.addRows(
            len(upper), lower, upper, len(row), starts, column[order].astype(np.int32), value[order]
        )

    def _equation(self, columns: Sequence[int], values: Sequence[int], right: float) -> None:
        self._add_rows(
            np.zeros(len(columns), dtype=np.int64),
            np.array(columns),
            np.array(values, dtype=np.float64),
            np.array([right]),
            np.array([right]),
        )

    def add(self, shifts: Sequence[tuple[tuple[int, int], Sequence[tuple[int, int]]]]) -> None:
        """Add shifts: the tree and its rank, and the links with how often more the tree uses them then."""
        new = [hop for hop in dict.fromkeys(hop for hop, _ in shifts) if hop not in self.row_of]
        if new:
            first = self.solver.getNumRow()
            self.row_of.update({hop: first + place for place, hop in enumerate(new)})
            self._add_rows(
                np.arange(len(new)),
                self.classes.number[[tree for tree, _ in new]],
                -np.ones(len(new)),
                np.full(len(new), -self.solver.inf),
                np.zeros(len(new)),
            )
        row = [
            np.array([*(link for link, _ in change), self.row_of[hop]], dtype=np.int32)
            for hop, change in shifts
        ]
        value = [np.array([*(times for _, times in change), 1], dtype=np.float64) for _, change in shifts]
        starts = offsets(np.array([len(each) for each in row]))[:-1].astype(np.int32)
        size = len(shifts)
        self.solver.addCols(
            size,
            np.zeros(size),
            np.zeros(size),
            np.full(size, self.solver.inf),
            int(sum(len(each) for each in row)),
            starts,
            np.concatenate(row),
            np.concatenate(value),
        )

    def allow(self, spare: float) -> None:
        """Let links be overloaded by this share of their capacity for nothing."""
        self.spare = spare
        for link, limit in enumerate((self.capacity * (1 + spare)).tolist()):
            self.solver.changeRowBounds(link, -self.solver.inf, limit)

    def solve(self) -> ShiftSolution | None:
        """Weights with least overload in all; None where HiGHS finds none."""
        values = self._solved(interior=True)  # its prices are no extremes
        if values is None:
            return None
        free = self.trees + self.roots
        over = values[free : free + self.links]
        price = -np.asarray(self.solver.getSolution().row_dual)[: self.links]
        return ShiftSolution(
            weight=values[: self.trees] * self.scale,
            over=np.where(over > NOTHING, over * self.scale, 0.0),
            price=np.maximum(price, 0.0),
        )

    def least_overload(self, most: float) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Weights, and what is shifted, where the most overloaded link is least so; None beyond a share of ``most``."""
        solver, free = self.solver, self.trees + self.roots
        for link in range(self.links):
            solver.changeColBounds(free + link, 0.0, 0.0)
        lower = self.spare - most  # the share of its capacity that every link keeps free of what it may carry
        every = np.arange(self.links, dtype=np.int32)
        solver.addCols(
            1, -np.ones(1), np.array([lower]), np.array([self.spare]), self.links, np.zeros(1, dtype=np.int32), every,
            self.capacity,
        )  # fmt: skip
        values = self._solved(interior=False)  # a vertex has few shifts
        if values is None:
            solver.setOptionValue("run_crossover", "on")
            solver.setOptionValue("simplex_iteration_limit", 10 * MOST_STEPS)
            values = self._solved(interior=True)
        if values is None or values[-1] < lower - NOTHING:
            return None
        return values[: self.trees] * self.scale, values[free + self.links : -1] * self.scale

    def _solved(self, *, interior: bool) -> NDArray[np.float64] | None:
        """Values of the columns, by the interior point method or the simplex method; None where it finds none."""
        import highspy

        self.solver.setOptionValue("solver", "ipm" if interior else "simplex")
        run_interruptibly(self.solver)
        status, found = highspy.HighsModelStatus, self.solver.getModelStatus()
        # The interior point method may stop just short of its tolerance, which is near enough for floats.
        if found != status.kOptimal and not (interior and found == status.kUnknown):
            return None
        return np.asarray(self.solver.getSolution().col_value)
