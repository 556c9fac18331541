"""Trees of a forest with single hops shifted, so that every link carries nearly no more than it can.

Where the optimum fills all links, weights at which the trees of a changed network reach it exactly are hard to find,
and need more digits than fit. A part in ten thousand below, little has to change. Trees whose roots look alike keep one
weight, and a linear program in floats finds the weights, and how much of which tree takes another way to one of its
ranks, at which least is overloaded. Its prices say which hops should go elsewhere, and where the way is cheap; these
become columns, and so on (column generation). A column has only the links that a hop leaves and enters, so thousands of
them are solved at once. In the end weights are rounded to whole units and links are counted: nothing rests on floats.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.planners.forest.damage import Damaged
from coppice.planners.forest.moved_tree import MovedTree
from coppice.planners.forest.rehanging import Rehanging
from coppice.planners.forest.reweighting import LinkUses, without_idle
from coppice.planners.forest.shift_program import ShiftProgram, TreeClasses
from coppice.rows import ranges
from coppice.schedule.forest import Forest, Phase

PATIENCE = 3
"""Rounds in which the overload has to fall by a tenth: else what was found has to do."""

FINER = 0.1
"""Share of the most that links may be overloaded which is tried for once that is reached."""

MOST_CROWDED = 256
"""Overloaded links up to which it is tried for."""

MOST_SHIFTS = 12_000
"""Shifts from which on no more are looked for."""

MOST_NEW = 3_000
"""Shifts that one round adds."""

MOST_FULL = 1_000
"""Shifts of a round from which on none are added at links that are only full."""

HEAVY = 4
"""How many times the usual weight a tree counts at most: others have room for little of a heavy one."""

MOST_TRIED = 400
"""Hops over a link that is only full which are tried in a round."""

UNITS = 2**30
"""Units of weight that an average root gets."""

MOST_MISSES = 8
"""Hops over one link for which no new way was found after which no more are tried in a round."""

MOST_HOPS = 400_000
"""Hops over full links that are looked at in a round; of those over overloaded links all are."""

_NOISE = 0.1
"""Share by which gains are changed at random."""

_WITHIN = 1 - 1e-3
"""Share of the most that links may be overloaded which leaves room for rounding."""

_PRICED = 1e-6
"""Share of the dearest price from which on a link counts as full."""

_USUAL = 1e-4
"""Share of the price of a full link that a free one costs: among ways of one price the short one is taken."""

_DEEPER = 1e-3
"""Share of the price of a full link that every hop between a new parent and the root costs: tall trees are slow."""

_GAIN = 1e-3
"""Share of its price by which a hop has to become cheaper."""

_AMPLE = 2.0
"""How many times what a link carries too much is offered to go elsewhere."""

_LEAST = 1e-3
"""Share of its capacity that is offered at a link that is only full."""

_SPREAD = 0.5
"""By how much the price of a link rises when new ways fill it: others are to go elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Another way to one rank of a tree: from a new parent, over other links."""

    tree: int
    child: int
    nodes: tuple[int, ...]  # The new path in the direction of the data
    change: tuple[tuple[int, int], ...]  # Links with how often more than before the tree uses them


class Shifting:
    """Search for weights and shifts at which no link carries more than a little too much."""

    def __init__(
        self, damaged: Damaged, rate: Fraction, *, free_roots: bool, wanted: Fraction, most: Fraction
    ) -> None:
        """Start from a forest whose trees are whole.

        Args:
            rate: In capacity units, of the trees of each root; with free roots of all trees of a phase together.
            wanted: Share of its capacity by which a link shall be overloaded at most.
            most: Share by which it may be in the end.
        """
        self.damaged, self.free_roots = damaged, free_roots
        self.wanted, self.most = float(wanted) * _WITHIN, float(most)
        forest, topology = damaged.forest, damaged.forest.topology
        self.topology = topology
        self.rehanging = Rehanging(damaged, scale=1, limit=[0] * topology.num_links)
        self.rank: list[int] = topology.rank.tolist()
        self.reduces = forest.tree_phase == Phase.REDUCE
        reduces = self.reduces[forest.edge_tree]
        self.child = np.where(reduces, forest.edge_src, forest.edge_dst)
        self.usual = np.array(self.rehanging.cost) / max(self.rehanging.cost)
        self.capacity = topology.capacity.astype(np.float64)
        self.hop_path = np.repeat(np.arange(len(forest.path_start) - 1), np.diff(forest.path_start))
        self.hop_path = self.hop_path[: len(damaged.hop_link)].astype(np.int32)
        self.by_path = np.argsort(forest.edge_path, kind="stable")
        self.path_of = forest.edge_path[self.by_path]
        self.shifts: list[Shift] = []
        self.paths: dict[int, int] = {}  # of shifts that are used
        self.known: set[tuple[int, int, tuple[tuple[int, int], ...]]] = set()
        self.above: dict[int, dict[int, list[int]]] = {}  # by tree and child, parents that shifts give it
        self.classes = TreeClasses.of(forest)
        self.program = ShiftProgram(forest, LinkUses.of(damaged), self.classes, rate, free_roots=free_roots)

    def run(self) -> Forest | None:
        """The forest with its shifts; None where no links could be brought below the most that they may carry."""
        if self._brought_below(self.wanted, self.topology.num_links) and len(self.shifts) < MOST_NEW:
            self._brought_below(self.wanted * FINER, MOST_CROWDED)
        final = self.program.least_overload(self.most)
        if final is None:
            return None
        weight, shifted = final
        return self._forest(weight[self.classes.number], shifted)

    def _brought_below(self, spare: float, most_crowded: int) -> bool:
        """Add shifts until no link is overloaded by more than a share of its capacity; whether that is reached.

        It is given up where more links are overloaded than ``most_crowded``, or hardly less than a round before.
        """
        self.program.allow(spare)
        before = [float("inf")] * PATIENCE
        while True:
            found = self.program.solve()
            if found is None:
                return False
            total = float(found.over.sum())
            if not total:
                return True
            if (
                np.count_nonzero(found.over) > most_crowded
                or len(self.shifts) > MOST_SHIFTS
                or total > 0.9 * before[-PATIENCE]
            ):
                return False
            before.append(total)
            more = self._offered(found.weight[self.classes.number], found.over, found.price)
            if not more:
                return False
            self.shifts += more
            self.program.add([((shift.tree, shift.child), shift.change) for shift in more])

    # Shifts.

    def _offered(
        self, weight: NDArray[np.float64], over: NDArray[np.float64], price: NDArray[np.float64]
    ) -> list[Shift]:
        """Ways that are cheaper than those over full links, dearest first and for as much as crosses them too much."""
        forest = self.damaged.forest
        dear = price > _PRICED * price.max()
        cost = price / price.max() + _USUAL * self.usual
        hops = self.damaged.hop_link
        each = np.where(hops >= 0, cost[np.maximum(hops, 0)], 0.0)
        paid = np.bincount(self.hop_path, weights=each, minlength=len(forest.path_start) - 1)[
            forest.edge_path
        ]
        draw = np.random.default_rng(len(self.shifts))
        usual, crowded = float(np.median(weight[weight > 0])), int(np.count_nonzero(over))
        costs: list[float] = cost.tolist()
        onto = np.array([self._cheapest_ways(costs, reduces=each) for each in (False, True)])
        gain = paid - onto[self.reduces[forest.edge_tree].astype(np.int8), self.child]
        may = (gain > _GAIN * paid) & (weight[forest.edge_tree] > 0)
        gain *= 1 - _NOISE * draw.random(len(gain))  # else all would be ranks that come first
        found: list[Shift] = []
        for link, rows in sorted(
            self._rows_over(dear, over, may, gain, draw), key=lambda pair: -over[pair[0]]
        ):
            wanted = max(_AMPLE * over[link], _LEAST * self.capacity[link])
            if over[link]:
                wanted = max(wanted, MOST_FULL * usual / crowded)
            misses = 0
            for row in rows[: MOST_NEW if over[link] else MOST_TRIED].tolist():
                if (
                    wanted <= 0
                    or len(found) >= (MOST_NEW if over[link] else MOST_FULL)
                    or misses > MOST_MISSES
                ):
                    break
                shift = self._cheaper(row, costs)
                if shift is None:
                    misses += 1
                    continue
                found.append(shift)
                units = float(weight[shift.tree])
                wanted -= min(units, HEAVY * usual)
                for other, times in shift.change:
                    if times > 0:
                        costs[other] += _SPREAD * (1 + costs[other]) * times * units / self.capacity[other]
        return found

    def _cheapest_ways(self, costs: Sequence[float], *, reduces: bool) -> list[float]:
        """What the cheapest way to each node from another rank costs."""
        around = self.rehanging.entering if reduces else self.rehanging.leaving
        heap = [(0.0, int(node), int(node)) for node in self.topology.rank_nodes]
        ways: list[dict[int, float]] = [{} for _ in costs]  # from the two ranks that are nearest
        found = [float("inf")] * self.topology.num_nodes
        while heap:
            paid, node, source = heapq.heappop(heap)
            if source in ways[node] or len(ways[node]) == 2:
                continue
            ways[node][source] = paid
            if node != source:
                found[node] = min(found[node], paid)
                if self.rank[node] >= 0:
                    continue
            for other, link in around[node]:
                if source != other and len(ways[other]) < 2:
                    heapq.heappush(heap, (paid + costs[link], other, source))
        return found

    def _rows_over(
        self,
        wanted: NDArray[np.bool_],
        over: NDArray[np.float64],
        may: NDArray[np.bool_],
        gain: NDArray[np.float64],
        draw: np.random.Generator,
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """Rows that may change, by each of the wanted links that their paths use; those that gain most come first."""
        links = self.damaged.hop_link
        hops = np.flatnonzero(np.append(wanted, [False, False])[links])  # the last two are no links
        if len(hops) > MOST_HOPS:
            crowded = np.append(over > 0, [False, False])[links[hops]]
            hops = hops[crowded | (draw.random(len(hops)) < MOST_HOPS / len(hops))]
        paths = self.hop_path[hops]
        first, last = (np.searchsorted(self.path_of, paths, side=side) for side in ("left", "right"))
        rows = self.by_path[ranges(first, last - first)]
        crosses = np.repeat(links[hops], last - first)[may[rows]]
        rows = rows[may[rows]]
        order = np.lexsort((-gain[rows], crosses))
        crosses, rows = crosses[order], rows[order]
        ends = np.flatnonzero(np.diff(crosses)) + 1
        starts = [0, *ends.tolist()] if len(rows) else []
        return [
            (int(crosses[start]), part) for start, part in zip(starts, np.split(rows, ends), strict=False)
        ]

    def _cheaper(self, row: int, costs: Sequence[float]) -> Shift | None:
        """The cheapest other way to the rank of an edge, where it is cheaper and not known already."""
        forest = self.damaged.forest
        number, child = int(forest.edge_tree[row]), int(self.child[row])
        tree = self.rehanging.tree(number)
        old = self.rehanging.links_of(int(tree.path[child]))
        most = sum(costs[link] for link in old) * (1 - _GAIN)
        around = self.rehanging.leaving if tree.reduces else self.rehanging.entering
        best: dict[int, float] = {child: 0.0}
        origin: dict[int, tuple[int, int]] = {}
        hung: set[int] = set()  # ranks whose place in the tree is in their price
        heap = [(0.0, child)]
        while heap:
            paid, node = heapq.heappop(heap)
            if paid > best[node]:
                continue
            if node != child and self.rank[node] >= 0:
                if node in hung:
                    return self._shift(number, child, node, origin, old, reduces=tree.reduces)
                hung.add(node)
                hops = self._depth(tree, number, node, child)
                best[node] = paid + hops * _DEEPER
                if hops >= 0 and best[node] < most:
                    heapq.heappush(heap, (best[node], node))
                continue
            for other, link in around[node]:
                there = paid + costs[link]
                if there < most and other not in hung and there < best.get(other, most):
                    best[other], origin[other] = there, (node, link)
                    heapq.heappush(heap, (there, other))
        return None

    def _depth(self, tree: MovedTree, number: int, node: int, child: int) -> int:
        """Hops between a rank and the root, -1 if it hangs below the child, or would with some of the shifts."""
        above = self.above.get(number)
        if above is not None:
            pending, seen = [node], {node}
            while pending:
                each = pending.pop()
                if each == child:
                    return -1
                for other in (int(tree.parent[each]), *above.get(each, ())):
                    if other >= 0 and other not in seen:
                        seen.add(other)
                        pending.append(other)
        hops = 0
        while node != tree.root:
            if node == child:
                return -1
            node = int(tree.parent[node])
            hops += 1
        return hops

    def _shift(
        self,
        number: int,
        child: int,
        parent: int,
        origin: dict[int, tuple[int, int]],
        old: Sequence[int],
        *,
        reduces: bool,
    ) -> Shift | None:
        """The way that a search found; None where it is known."""
        nodes, links = [parent], []
        while nodes[-1] != child:
            node, link = origin[nodes[-1]]
            nodes.append(node)
            links.append(link)
        change = Counter(links)
        change.subtract(old)
        key = number, child, tuple(sorted((link, times) for link, times in change.items() if times))
        if key in self.known:
            return None
        self.known.add(key)
        self.above.setdefault(number, {}).setdefault(child, []).append(parent)
        return Shift(tree=number, child=child, nodes=tuple(nodes[::-1] if reduces else nodes), change=key[2])

    # The result.

    def _forest(self, weight: NDArray[np.float64], shifted: NDArray[np.float64]) -> Forest:
        """The trees in whole units, each cut into as many as its shifts need.

        Shifts of different ranks of a tree are used together: no two of them make a cycle, see :meth:`_depth`.
        """
        rehanging = self.rehanging
        units, scale = self._whole(weight)
        rest = units.tolist()
        by_tree: dict[int, dict[int, list[tuple[int, Shift]]]] = {}
        for shift, share in zip(self.shifts, (shifted * scale).astype(np.int64).tolist(), strict=True):
            if share > 0:
                by_tree.setdefault(shift.tree, {}).setdefault(shift.child, []).append((share, shift))
        rehanging.split = []
        for number, by_child in by_tree.items():
            cut: dict[
                int, list[tuple[int, Shift]]
            ] = {}  # where a shift begins and ends in the weight of the tree
            ends = {0}
            for child, some in by_child.items():
                at = 0
                for share, shift in some:
                    at = min(at + share, rest[number])
                    cut.setdefault(child, []).append((at, shift))
                    ends.add(at)
            old = rehanging.tree(number)
            for start, end in pairwise(sorted(ends)):
                new = replace(old, weight=end - start, parent=old.parent.copy(), path=old.path.copy())
                for child, some in cut.items():
                    for until, shift in some:
                        if until >= end:
                            new.parent[child] = shift.nodes[-1 if old.reduces else 0]
                            new.path[child] = self._path(shift)
                            break
                rehanging.split.append(new)
            rest[number] -= max(ends)
        rehanging.trees = {}
        return without_idle(rehanging.forest(), rest)

    def _path(self, shift: Shift) -> int:
        """Row of a shift's path."""
        if id(shift) not in self.paths:
            self.paths[id(shift)] = self.rehanging.add_path(list(shift.nodes))
        return self.paths[id(shift)]

    def _whole(self, weight: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
        """Weights in whole units whose sums at the roots are what they have to be, and units for one of before."""
        forest = self.damaged.forest
        nodes, at = np.unique(forest.tree_root, return_inverse=True)
        phases, of_phase = np.unique(forest.tree_phase, return_inverse=True)
        group = at * len(phases) + of_phase
        given = np.bincount(group, weights=weight).reshape(len(nodes), -1).mean(axis=1)
        if not self.free_roots:
            given[:] = given.mean()
        scale = UNITS / float(given.mean())
        wanted = np.repeat(np.rint(given * scale), len(phases)).astype(np.int64)
        units = np.floor(np.maximum(weight, 0.0) * scale).astype(np.int64)
        sums = np.zeros(len(wanted), dtype=np.int64)
        np.add.at(sums, group, units)
        heaviest = np.lexsort((units, group))[np.cumsum(np.bincount(group)) - 1]
        units[heaviest] += wanted - sums
        return units, scale
