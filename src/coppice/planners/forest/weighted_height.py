"""Forests of bounded height with weights of a linear program, found by column generation.

Of all trees of at most so many hops those are wanted, with shares of each root's data, whose busiest link is as little
loaded as can be: a linear program with a column for each tree. Its dual prices say what a byte on each link costs, and
a tree that costs less than what its root pays is worth a column (Dantzig and Wolfe, Operations Research 8, 1960; for
packings of trees Barahona, Math. Programming 95, 2003). The cheapest tree of bounded height is hard to find, so it is
grown, nearest ranks first and farthest first: what the program finds is a packing, and no bound.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.lp.solver import new_solver, run_interruptibly
from coppice.bounds.network import Network
from coppice.bounds.problem import Problem
from coppice.planners.forest.bounded_height import (
    BoundedTrees,
    Costs,
    Tree,
    TreeGrowth,
    edges_of,
    in_phases,
)
from coppice.planners.forest.packed import PackedTrees

_GAIN = 1e-4
"""Share of the busiest link's load that counts as a gain."""
_PATIENCE = 12
"""Rounds in a row that gain nothing, after which the weights are as good as they get."""
_KEPT = 0.7
"""Share of the mean price in the next one: trees are grown for both, since prices of a round alone swing."""
_FREE = 1e-4
"""Share of the mean price that every link costs at least, so that no tree makes detours for nothing."""
_SHARES = (60, 24, 12, 8, 4)
"""Equal shares into which a root's data may be cut; the first number is taken whose trees are few enough."""


def weighted_trees(
    problem: Problem, *, height: int, inv_rate: Fraction, most_grown: int, most_edges: int
) -> BoundedTrees | None:
    """Trees of at most so many hops in different weights, whose busiest link is as little loaded as was found.

    Args:
        problem: Equal shares, or a root.
        height: Hops from a root to any rank at most; in an all-reduce in each phase.
        inv_rate: The bound of a phase in ns per byte of a shard: nothing better is looked for.
        most_grown: Trees that are grown at most in each phase.
        most_edges: Edges of the forest's trees of a phase at most.

    Returns:
        The trees; None where some rank is farther away than ``height``, or trees have too many edges.

    Examples:
        >>> from coppice.bounds import bound
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("mi250"), collective="all_gather")
        >>> rate = bound(problem).inv_rate
        >>> found = weighted_trees(problem, height=6, inv_rate=rate, most_grown=1000, most_edges=100_000)
        >>> found.inv_rate < 1.2 * rate
        True
    """

    def pack(network: Network) -> tuple[PackedTrees, float] | None:
        growth = TreeGrowth(problem, network, height, trees=1, inv_rate=inv_rate)
        return _ColumnGeneration(growth, most_grown).packed(float(inv_rate), most_edges)

    return in_phases(problem, pack)


class _ColumnGeneration:
    """Columns of the program of one phase."""

    def __init__(self, growth: TreeGrowth, most_grown: int) -> None:
        self.growth, self.left = growth, most_grown
        self.trees: list[Tree] = []
        self.loads: list[NDArray[np.float64]] = []
        self.number: list[int] = []  # of the root of each tree
        self.known: set[tuple[int, bytes]] = set()

    def packed(self, enough: float, most_edges: int) -> tuple[PackedTrees, float] | None:
        """The trees in whole shares, and for how long the busiest link is busy."""
        links = len(self.growth.load)
        if self.growth.height < 1 or not self._grow(np.ones(links) / links, 0):
            return None
        program = _HeightProgram(links, len(self.growth.roots))
        mean, best = np.zeros(links), inf
        taken, turn, idle = 0, 0, 0
        while True:
            program.add(self.loads[taken:], self.number[taken:])
            taken, turn = len(self.trees), turn + 1
            weight, price = program.solve()
            idle = idle + 1 if program.busy > best * (1 - _GAIN) else 0
            best = program.busy
            if best <= enough * (1 + _GAIN) or self.left <= 0 or idle == _PATIENCE:
                break
            mean = _KEPT * mean + (1 - _KEPT) * price
            self._grow(price, turn)
            self._grow(mean / mean.sum(), turn)
            if len(self.trees) == taken:
                break
        return self._in_shares(weight, most_edges)

    def _grow(self, price: NDArray[np.float64], turn: int) -> bool:
        """Add the cheapest tree of each root, where it is a new one; False where there is none."""
        growth = self.growth
        length = (price + _FREE * price.mean())[growth.orbit] * growth.share
        costs = growth.costs(length)
        for number, root in enumerate(growth.roots):
            best: tuple[float, Tree, NDArray[np.float64]] | None = None
            for far in (None, turn, turn + growth.topology.num_ranks // 2):
                self.left -= 1
                tree = growth.tree(root, costs, far)
                if tree is None:
                    continue
                tree = rehung(tree, costs, root, growth.height)
                load = growth.load_of(tree)
                if best is None or price @ load < best[0]:
                    best = float(price @ load), tree, load
            if best is None:
                return False
            known = number, best[1][np.argsort(best[1][:, 1])].tobytes()
            if known not in self.known:
                self.known.add(known)
                self.trees.append(best[1])
                self.loads.append(best[2])
                self.number.append(number)
        return True

    def _in_shares(self, weight: NDArray[np.float64], most_edges: int) -> tuple[PackedTrees, float] | None:
        """The weights in whole shares, by largest remainders, in as many shares as edges allow."""
        growth, number = self.growth, np.array(self.number)
        images = 1 if growth.symmetry is None else growth.symmetry.order
        for shares in _SHARES:
            count = np.zeros(len(weight), dtype=np.int64)
            for root in range(len(growth.roots)):
                mine = np.flatnonzero(number == root)
                exact = weight[mine] * shares
                whole = np.floor(exact + 1e-9).astype(np.int64)
                order = np.argsort(whole - exact, kind="stable")
                whole[order[: shares - int(whole.sum())]] += 1
                count[mine] = whole
            kept = np.flatnonzero(count)
            if len(kept) * images * (growth.topology.num_ranks - 1) > most_edges:
                continue
            load = sum(int(count[each]) * self.loads[each] for each in kept)
            every = np.repeat(kept, count[kept]).tolist()
            roots = [growth.roots[self.number[each]] for each in every]
            packed = growth.columns(roots, [self.trees[each] for each in every])
            return packed, float(np.max(load)) / shares
        return None


def rehung(tree: Tree, costs: Costs, root: int, height: int) -> Tree:
    """The tree with ranks below other ones where that is cheaper and no rank is too far from the root.

    Examples:
        >>> cost = np.array([[np.inf, 1, 3], [np.inf, np.inf, 1], [np.inf, np.inf, np.inf]])
        >>> arcs = np.array([[-1, 0, 1], [-1, -1, 2], [-1, -1, -1]])
        >>> rehung(np.array([[0, 1, 0], [0, 2, 1]]), (cost, arcs), 0, 2).tolist()
        [[0, 1, 0], [1, 2, 2]]
    """
    cost, arc_of = costs
    src, dst = np.ascontiguousarray(tree[:, :2].T, dtype=np.int32)
    return edges_of(*_core.rehung_low_tree(len(cost), cost.reshape(-1), src, dst, root, height), arc_of)


class _HeightProgram:
    """The program: weights of trees, and the load of the busiest link, which is least."""

    solver: Any

    def __init__(self, links: int, roots: int) -> None:
        self.links, self.roots = links, roots
        self.busy = inf
        solver = self.solver = new_solver()
        none, nothing = np.zeros(0, dtype=np.int32), np.zeros(0)
        starts = np.zeros(links + roots, dtype=np.int32)
        lower = np.concatenate([np.full(links, -solver.inf), np.ones(roots)])
        upper = np.concatenate([np.zeros(links), np.ones(roots)])
        solver.addRows(links + roots, lower, upper, 0, starts, none, nothing)
        rows = np.arange(links, dtype=np.int32)
        solver.addCol(1.0, 0.0, solver.inf, links, rows, np.full(links, -1.0))

    def add(self, loads: list[NDArray[np.float64]], number: list[int]) -> None:
        """Add trees: the load of each link, and whose they are."""
        for load, root in zip(loads, number, strict=True):
            used = np.flatnonzero(load)
            rows = np.append(used, self.links + root).astype(np.int32)
            self.solver.addCol(0.0, 0.0, self.solver.inf, len(rows), rows, np.append(load[used], 1.0))

    def solve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Weights of the trees, and prices of the links."""
        run_interruptibly(self.solver)
        found = self.solver.getSolution()
        value, dual = np.array(found.col_value), np.array(found.row_dual)
        self.busy = float(value[0])
        return value[1:], np.maximum(-dual[: self.links], 0.0)
