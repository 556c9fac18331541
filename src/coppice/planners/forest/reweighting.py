"""The trees of a forest at new weights, so that they fill the links of a changed network exactly.

A forest that fitted a network nearly fits it after a fault: what a slow link cannot carry, a slight change of all
weights makes room for elsewhere. A linear program finds the weights at which least is overloaded; its prices say over
which links the trees on overloaded ones should go instead; those trees join the program, and so on (column generation)
until nothing is overloaded. An all-reduce may change how much is reduced to each rank, other collectives only how much
of a shard takes which of its trees.

**Alike trees share a variable.** Two trees are alike where as many links of each kind carry them, two links where they
have one rate and carry as many trees of each kind: the coarsest such partition is stable (an equitable partition of
the program), and then averages over its classes lose nothing (Grohe, Kersting, Mladenov, Selman, Dimension reduction
via colour refinement, 2014). A thousand trees become a few dozen variables. Sums of random numbers tell classes apart;
should two sums agree by chance, the loads, which are counted in the end, do not fit and the forest is not taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.planners.forest.damage import Damaged, damaged_by
from coppice.planners.forest.moved_tree import MovedTree
from coppice.planners.forest.rehanging import Rehanging
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase

MOST_ROUNDS = 60
"""Linear programs after which no weights are looked for any more."""

PATIENCE = 8
"""Rounds in which the overload has to fall."""

FEW_ROUNDS = 12
"""The same for large forests, where every program takes long."""

LARGE = 2_000_000
"""Links of all trees from which on trees are added only where little is overloaded, less by half every time."""

SMALL = 200_000
"""Links of all trees up to which weights are looked for with patience."""

LITTLE = 1e-5
"""Share of all loads that is little."""

MOST_CLASSES = 1_500
"""Classes of trees up to which the linear program is solved."""

MOST_NEW = 24
"""Trees that one round adds."""

_LARGEST = 2**61

_SPREAD = 0.5
"""By how much the price of a link rises when new trees fill it: others are to go elsewhere."""

_FREE = 2**60

_SPARE = 1e-3
"""Share of the price of a full link that a free one costs: among ways of one price the short one is taken."""


@dataclass(eq=False)
class LinkUses:
    """Which links carry which trees: one entry for every link of every edge."""

    tree: NDArray[np.int64]
    link: NDArray[np.int32]

    @classmethod
    def of(cls, damaged: Damaged) -> LinkUses:
        """The entries of a forest."""
        forest, links = damaged.forest, damaged.hop_link
        lengths = np.diff(forest.path_start)
        path = np.repeat(np.arange(len(lengths)), lengths)[: len(links)]
        rows = np.bincount(forest.edge_path, minlength=len(lengths))
        taken = links >= 0
        if (rows <= 1).all():
            tree_of_path = np.full(len(lengths), -1, dtype=np.int64)
            tree_of_path[forest.edge_path] = forest.edge_tree
            tree = tree_of_path[path]
            taken &= tree >= 0
            return cls(tree[taken], links[taken])
        path, links = path[taken], links[taken]
        first = np.searchsorted(path, np.arange(len(lengths) + 1))
        count = np.diff(first)[forest.edge_path]
        at = np.repeat(first[forest.edge_path] - offsets(count)[:-1], count) + np.arange(int(count.sum()))
        return cls(np.repeat(forest.edge_tree.astype(np.int64), count), links[at])


class Reweighting:
    """Trees of a forest, and more that are grown from them, at weights that fit."""

    def __init__(
        self,
        damaged: Damaged,
        total: Fraction | None,
        at_root: dict[int, Fraction],
        *,
        tallest: int | None = None,
    ) -> None:
        """Start from a forest whose trees are whole.

        Args:
            total: Rate of all trees of a phase in capacity units, where roots are free to share it.
            at_root: Otherwise the rate of each root.
            tallest: Hops that a tree that is changed may have at most; None is any number.
        """
        self.damaged, self.total, self.at_root = damaged, total, at_root
        forest, topology = damaged.forest, damaged.forest.topology
        self.topology = topology
        self.rehanging = Rehanging(damaged, scale=1, limit=[0] * topology.num_links, tallest=tallest)
        self.capacity: list[int] = topology.capacity.tolist()
        self.over: list[float] = []
        self.usual = np.array(self.rehanging.cost) / max(self.rehanging.cost)
        self.loads = LinkUses.of(damaged)
        self.root: list[int] = forest.tree_root.tolist()
        self.phase: list[int] = forest.tree_phase.tolist()
        self.grown: list[MovedTree] = []

    def run(self) -> Forest | None:
        """The forest at weights that fit, None where none were found."""
        most = float("inf")
        reached: list[float] = []
        large = len(self.loads.tree) > SMALL
        for number in range(FEW_ROUNDS if large else MOST_ROUNDS):
            found = self._weights()
            if found is None:
                return None
            weight, over, price = found
            if not over.any():
                return self._forest(weight)
            if number == 0 and (fitted := self._fitted(weight)) is not None:
                return fitted
            little = LITTLE * float(self.topology.capacity.sum())
            if len(self.loads.tree) > LARGE and over.sum() > min(little, most / 2):
                return None
            most = float(over.sum())
            reached.append(most)
            if len(reached) > PATIENCE and most > (1 - LITTLE) * reached[-1 - PATIENCE]:
                return None
            if not self._grow(np.array([float(w) for w in weight]), over, price):
                return None
        return None

    def _fitted(self, weight: Sequence[Fraction]) -> Forest | None:
        """The trees at these weights with what crosses overloaded links moved to where there is room, if there is."""
        forest = self._forest(weight)
        if forest is None:
            return None
        scale = lcm(*(each.denominator for each in weight))
        damaged, _ = damaged_by(forest, self.topology, np.arange(self.topology.num_nodes, dtype=np.int32))
        limit = [scale * each for each in self.capacity]
        attempt = Rehanging(damaged, scale=1, limit=limit, tallest=self.rehanging.tallest)
        return attempt.forest() if attempt.run() else None

    # The linear program.

    def _classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Classes of trees, of links and of roots."""
        draw = np.random.default_rng(0)
        tree_at, link_at = self.loads.tree, self.loads.link
        nodes, root = np.unique(np.array(self.root), return_inverse=True)
        phase = np.array(self.phase, dtype=np.int64)
        given = [self.at_root.get(int(v), Fraction(0)) for v in nodes.tolist()]
        of_root = np.unique([float(each) for each in given], return_inverse=True)[1]
        of_link = np.unique(self.topology.capacity, return_inverse=True)[1]
        of_tree = phase.copy()
        while True:
            before = of_tree.max(), of_link.max(), of_root.max()
            number = [draw.random(int(most) + 1) for most in before]
            upon = np.bincount(tree_at, weights=number[1][of_link][link_at], minlength=len(root))
            of_tree = _finer(of_tree, upon + number[2][of_root][root])
            number[0] = draw.random(int(of_tree.max()) + 1)
            by = number[0][of_tree]
            of_link = _finer(
                of_link, np.bincount(link_at, weights=by[tree_at], minlength=self.topology.num_links)
            )
            of_root = _finer(of_root, np.bincount(root, weights=by, minlength=len(nodes)))
            if (of_tree.max(), of_link.max(), of_root.max()) == before:
                return of_tree, of_link, of_root

    def _weights(self) -> tuple[list[Fraction], NDArray[np.float64], NDArray[np.float64]] | None:
        """Weights of all trees with least overload, the overload of each link, and the price of each link."""
        of_tree, of_link, of_root = self._classes()
        trees, links, roots = (int(each.max()) + 1 for each in (of_tree, of_link, of_root))
        if trees > MOST_CLASSES:
            return None
        load = np.bincount(
            of_tree[self.loads.tree] * links + of_link[self.loads.link], minlength=trees * links
        )
        load = load.reshape(trees, links)
        alike = np.bincount(of_link, minlength=links)
        capacity = np.zeros(links, dtype=np.int64)
        capacity[of_link] = self.topology.capacity
        # Columns: a tree of each class, the overload of a link of each class, the rate of a root of each class.
        program = LinearProgram(
            [0] * trees + (-alike).tolist() + [0] * roots, [None] * (trees + links + roots)
        )
        rows = [
            _row([*carried.tolist(), trees + k], [*load[carried, k].tolist(), -int(alike[k])], int(c * n))
            for k, (c, n) in enumerate(zip(capacity.tolist(), alike.tolist(), strict=True))
            for carried in [np.flatnonzero(load[:, k])]
        ]
        nodes, root = np.unique(np.array(self.root), return_inverse=True)
        size = np.bincount(of_root, minlength=roots)
        for kind in range(roots):
            node = int(np.flatnonzero(of_root == kind)[0])
            here = np.flatnonzero(root == node)
            for phase in np.unique(np.array(self.phase)[here]).tolist():
                mine = here[np.array(self.phase)[here] == phase]
                which, count = np.unique(of_tree[mine], return_counts=True)
                rows.append(
                    _row([*which.tolist(), trees + links + kind], [*count.tolist(), -1], 0, equal=True)
                )
            if self.total is None:
                rate = self.at_root[int(nodes[node])]
                rows.append(_row([trees + links + kind], [rate.denominator], rate.numerator, equal=True))
        if self.total is not None:
            every = list(range(trees + links, trees + links + roots))
            rows.append(
                _row(every, (size * self.total.denominator).tolist(), self.total.numerator, equal=True)
            )
        program.add_rows(rows)
        if program.solve() is None:
            return None
        exact = program.exact_vertex()
        if exact is None:
            return None
        over = np.array([float(each) for each in exact.values[trees : trees + links]])
        price = np.array([float(each) for each in exact.multipliers[:links]])
        return [exact.values[kind] for kind in of_tree.tolist()], over[of_link], price[of_link]

    # More trees.

    def _grow(
        self, weight: NDArray[np.float64], over: NDArray[np.float64], price: NDArray[np.float64]
    ) -> bool:
        """Add trees that take less of what is dear than those on overloaded links do; whether there are any."""
        rehanging, loads = self.rehanging, self.loads
        rehanging.limit = [_FREE] * self.topology.num_links
        rehanging.room = [_FREE] * self.topology.num_links
        rehanging.set_cost((price / price.max() + _SPARE * self.usual).tolist())
        self.over = over.tolist()
        crowded = over > 0
        entries = np.flatnonzero(crowded[loads.link])
        carried, use = np.unique(loads.tree[entries], return_counts=True)
        first = np.lexsort((carried, -use * weight[carried]))
        more: list[NDArray[np.int32]] = []
        for tree in carried[first].tolist():
            if len(more) >= MOST_NEW or not weight[tree]:
                break
            if not any(
                self.over[link] > 0 for link in loads.link[entries[loads.tree[entries] == tree]].tolist()
            ):
                continue
            links = self._cheaper(tree, float(weight[tree]))
            if links is not None:
                more.append(links)
        if not more and len(loads.tree) <= SMALL:
            more = [links for tree in carried[first].tolist() if (links := self._anew(tree)) is not None]
        numbers = np.repeat(
            np.arange(len(self.root) - len(more), len(self.root)), [len(each) for each in more]
        )
        loads.tree = np.concatenate([loads.tree, numbers])
        loads.link = np.concatenate([loads.link, *more])
        return bool(more)

    def _cheaper(self, tree: int, weight: float) -> NDArray[np.int32] | None:
        """Add a tree that is as another one, with what hangs over crowded links hung where that is cheaper."""
        rehanging, given = self.rehanging, self.damaged.forest.num_trees
        cost, over = rehanging.cost, self.over
        old = rehanging.tree(tree) if tree < given else self.grown[tree - given]
        new = replace(old, weight=1, parent=old.parent.copy(), path=old.path.copy(), detached=set())
        moved = False
        for child in old.children.tolist():
            gone = rehanging.links_of(int(new.path[child]))
            if not any(over[link] > 0 for link in gone):
                continue
            new.detached.add(child)
            found = rehanging.search(new, child, banned=-1)
            paid = 0.0
            if found is not None:
                paid = sum(cost[link] for link in found.gained) - sum(cost[link] for link in found.freed)
            if found is None or paid >= sum(cost[link] for link in gone) * (1 - _SPARE):
                new.detached.discard(child)
                continue
            rehanging.hang(new, child, found, 0)
            moved = True
            for links, units in ((gone, -weight), (found.gained, weight), (found.freed, -weight)):
                for link in links:
                    over[link] += units
                    if units > 0:  # others are to take other links
                        cost[link] *= 1 + _SPREAD * units / self.capacity[link]
        if not moved:
            return None
        return self._added(new)

    def _anew(self, tree: int) -> NDArray[np.int32] | None:
        """Add a tree of the root of another one that is grown from nothing, where that is cheaper and low enough."""
        rehanging, given = self.rehanging, self.damaged.forest.num_trees
        old = rehanging.tree(tree) if tree < given else self.grown[tree - given]
        new = replace(old, weight=1, parent=old.parent.copy(), path=old.path.copy(), detached=set())
        if not rehanging.regrow(new):
            return None
        children = new.children.tolist()
        if rehanging.tallest is not None and max(new.depth(v) for v in children) > rehanging.tallest:
            return None
        before, now = (
            sum(rehanging.cost[link] for v in children for link in rehanging.links_of(int(each.path[v])))
            for each in (old, new)
        )
        if now >= before * (1 - _SPARE):
            return None
        return self._added(new)

    def _added(self, new: MovedTree) -> NDArray[np.int32]:
        """Keep a new tree; the links of all its edges."""
        self.grown.append(new)
        self.root.append(new.root)
        self.phase.append(int(Phase.REDUCE if new.reduces else Phase.BROADCAST))
        paths = (self.rehanging.links_of(int(new.path[v])) for v in new.children.tolist())
        return np.array([link for path in paths for link in path], dtype=np.int32)

    def _forest(self, weight: Sequence[Fraction]) -> Forest | None:
        """The trees that have a weight, in whole units."""
        scale = lcm(*(each.denominator for each in weight))
        if scale * sum(weight) * self.topology.num_ranks >= _LARGEST:
            return None
        whole = [int(each * scale) for each in weight]
        given = self.damaged.forest.num_trees
        self.rehanging.split = [
            replace(tree, weight=units)
            for tree, units in zip(self.grown, whole[given:], strict=True)
            if units
        ]
        self.rehanging.trees = {}
        return without_idle(self.rehanging.forest(), whole[:given])


def without_idle(forest: Forest, weight: Sequence[int]) -> Forest:
    """The forest with given weights of its first trees, without those of none."""
    units = forest.tree_weight.copy()
    units[: len(weight)] = weight
    keep = units > 0
    counts = np.diff(forest.tree_start)
    rows = np.repeat(keep, counts)
    return replace(
        forest,
        tree_root=forest.tree_root[keep],
        tree_weight=units[keep],
        tree_phase=forest.tree_phase[keep],
        tree_start=offsets(counts[keep]),
        edge_src=forest.edge_src[rows],
        edge_dst=forest.edge_dst[rows],
        edge_path=forest.edge_path[rows],
    )


def _finer(kind: NDArray[np.int64], sums: NDArray[Any]) -> NDArray[np.int64]:
    """Classes within which sums agree, too; sums of one value in another order may differ in their last digits."""
    order = np.lexsort((sums, kind))
    a, b = sums[order[:-1]], sums[order[1:]]
    new = (kind[order[:-1]] != kind[order[1:]]) | (b - a > 1e-9 * np.maximum(1.0, np.abs(a)))
    finer = np.empty(len(kind), dtype=np.int64)
    finer[order] = np.concatenate([[0], np.cumsum(new)])
    return finer


def _row(columns: Sequence[int], values: Sequence[int], bound: int, *, equal: bool = False) -> Constraint:
    return Constraint(
        column=np.array(columns, dtype=np.int32),
        value=np.array(values, dtype=np.int64),
        bound=bound,
        equal=equal,
    )
