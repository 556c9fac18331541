"""Plan a large network with one fault from the plan of the network without it.

A thousand equal GPUs are planned by symmetry in a tenth of a second, with trees as low as they can be. One slow link
breaks that: no two trees need be alike any more. But the trees of the whole network still nearly fit. So the network
without its fault is guessed (:mod:`coppice.topology.healthy`) and planned, what the fault broke is hung somewhere else,
and all trees get weights at which the links are filled exactly (:mod:`coppice.planners.forest.reweighting`). What does
not reach the bound in the end is not taken; the trees are then packed one by one.

Where the bound leaves nearly no room on any link of any GPU, packing them one by one may take hours, as every tree has
to fit all others. Trees that lose up to a part in a thousand are taken there
(:mod:`coppice.planners.forest.shifting`), and who reads the plan is told how much they lose, as the verifier counts it.

A fault in one direction of a link often costs nothing more where it is taken for one in both, which leaves more alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from coppice.bounds.optimum import bound_of
from coppice.bounds.partition import is_even_both_ways
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.forest.damage import Damaged, damaged_by
from coppice.planners.forest.moved_tree import MovedTree
from coppice.planners.forest.rehanging import Rehanging
from coppice.planners.forest.reweighting import Reweighting
from coppice.planners.forest.shifting import Shifting
from coppice.schedule.forest import Forest, expanded
from coppice.schedule.loads import forest_loads
from coppice.schedule.shape import shape
from coppice.topology.healthy import without_fault
from coppice.topology.operations import slower_both_ways
from coppice.topology.symmetry import find_symmetry

TALLER = Fraction(5, 4)
"""How tall trees are on average at most, beside those of the network without its fault, where low ones are wanted."""

WANTED = Fraction(1, 1000)
"""Share of the rate that trees shall lose at most where those that lose nothing are hard to find."""

LOSSY = Fraction(1, 4)
"""Share of it that they may lose in the end: a slower plan is of more use than none."""

FULL = Fraction(199, 200)
"""Share of what links bring to ranks above which they have no room for trees that are packed one by one."""

MOST_PACKED = 300_000
"""Ranks times links up to which trees are packed one by one all the same."""

MOST_ALIKE = 8
"""Order of the symmetry above which the network with its fault is planned as it is."""


def forest_after_fault(
    problem: Problem,
    best: Fraction,
    plan: Callable[[Problem], Forest],
    plan_alike: Callable[[Problem], Forest] | None = None,
    *,
    low: bool = False,
    lossy: bool = False,
) -> Forest | None:
    """Trees that take no longer than ``best`` on a large network with one fault; None where none are found.

    Args:
        best: Time per shard, in 1 / (GB/s), that trees can reach.
        plan: Plans a network.
        plan_alike: Plans the network without its fault so that its trees differ little, None does as ``plan``.
        low: Take no trees that are much taller than those of the network without its fault.
        lossy: Take trees that are slower by a share of :data:`LOSSY` where all links are full.
    """
    if problem.root is not None or problem.weights is not None or not best:
        return None
    topology = problem.topology
    if not is_even_both_ways(topology):
        forest = _as_slow_both_ways(problem, best, plan, worst=best * (1 + WANTED if lossy else 1))
        if forest is not None:
            return forest
    if find_symmetry(topology).order > MOST_ALIKE:
        return None
    healthy = without_fault(topology)
    if healthy is None or find_symmetry(healthy).order == 1:
        return None
    whole = expanded((plan_alike or plan)(replace(problem, topology=healthy)))
    return forest_from(whole, problem, best, low=low, lossy=lossy)


def forest_from(
    whole: Forest,
    problem: Problem,
    best: Fraction,
    *,
    low: bool = False,
    lossy: bool = False,
    tallest: int | None = None,
) -> Forest | None:
    """Trees that take no longer than ``best`` on a network with faults, from those of the network without them.

    Args:
        whole: Trees of the network without its faults, written out; nodes have the same names.
        problem: A collective without a root or weights on the network as it is now.
        best: Time per shard, in 1 / (GB/s), that trees can reach.
        low: As in :func:`forest_after_fault`.
        lossy: As there.
        tallest: Hops that a tree that is changed may have at most; None is any number.
    """
    topology = problem.topology
    index = topology.node_index
    where = np.array(
        [index.get(name, topology.num_nodes) for name in whole.topology.node_ids], dtype=np.int32
    )
    damaged, _ = damaged_by(whole, topology, where)
    full = lossy and is_full(problem, best) and topology.num_ranks * topology.num_links > MOST_PACKED
    mended = _mended(damaged, best, problem, quickly=full, tallest=tallest)
    if mended is None:
        return None
    rate = topology.denominator / best
    total, at_root = None, dict.fromkeys(topology.rank_nodes.tolist(), rate)
    if problem.collective is Collective.ALL_REDUCE:
        total, at_root = rate, {}
    if full:
        found = Shifting(mended, rate, free_roots=not at_root, wanted=WANTED, most=LOSSY).run()
        return found if found is not None and forest_loads(found).inv_rate <= best * (1 + LOSSY) else None
    found = Reweighting(mended, total, at_root, tallest=tallest).run()
    if found is None or (low and not _are_low(found, whole)):
        return None
    return found if forest_loads(found).inv_rate == best else None


def is_full(problem: Problem, best: Fraction) -> bool:
    """Whether trees that take no longer than ``best`` leave nearly no room on links to ranks.

    Every tree enters all ranks but its root, which takes a link there; of an all-reduce both trees of a root do.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> ring = Problem(preset("ring", gpus=4), Collective.ALL_GATHER)
        >>> is_full(ring, bound_of(ring).inv_rate), is_full(ring, 2 * bound_of(ring).inv_rate)
        (True, False)
    """
    topology, ranks = problem.topology, problem.topology.num_ranks
    trees = len(problem.phases) * problem.collective.shards(ranks, problem.weights) / best
    carried = int(topology.capacity_in[topology.rank_nodes].sum())
    return trees * (ranks - 1) * topology.denominator >= FULL * carried


def _are_low(forest: Forest, whole: Forest) -> bool:
    """Whether trees are at most twice as tall as those of a whole network, and little taller on average."""
    found, usual = shape(forest), shape(whole)
    return found.max_height <= 2 * usual.max_height and found.mean_height <= TALLER * usual.mean_height


def _as_slow_both_ways(
    problem: Problem, best: Fraction, plan: Callable[[Problem], Forest], *, worst: Fraction
) -> Forest | None:
    """Trees that leave the faster direction of a link as idle as the slower one, where that costs nothing."""
    less = replace(problem, topology=slower_both_ways(problem.topology))
    try:
        if bound_of(less).inv_rate != best:
            return None
    except UnreachableError:
        return None
    forest = replace(expanded(plan(less)), topology=problem.topology)
    return forest if forest_loads(forest).inv_rate <= worst else None


def _mended(
    damaged: Damaged, best: Fraction, problem: Problem, *, quickly: bool, tallest: int | None = None
) -> Damaged | None:
    """The forest with what the fault broke hung somewhere else; links may carry too much."""
    if not len(damaged.broken):
        return damaged
    topology = damaged.forest.topology
    shard = Fraction(
        damaged.forest.total_weight, problem.collective.shards(topology.num_ranks, problem.weights)
    )
    each = best * shard / topology.denominator
    limit = [int(c * each) for c in topology.capacity.tolist()]
    quick = Mending(damaged, scale=1, limit=limit)
    if quickly and quick.hang_below_others():
        return _again(quick)
    attempt = Rehanging(damaged, scale=1, limit=limit, tallest=tallest)
    return _again(attempt) if attempt.mend() else None


def _again(attempt: Rehanging) -> Damaged:
    """The forest that an attempt made, and its loads."""
    topology = attempt.topology
    return damaged_by(attempt.forest(), topology, np.arange(topology.num_nodes, dtype=np.int32))[0]


class Mending(Rehanging):
    """One attempt to make all trees whole again, full links or not."""

    def hang_below_others(self) -> bool:
        """Hang what hangs on links that are gone below ranks that it does not reach, full or not; whether all does.

        Quicker than :meth:`mend`, and over full links where there are no others, which get dearer. A subtree that no
        rank reaches otherwise is entered at a child of its top.
        """
        by_tree: dict[int, list[int]] = {}
        for row in self.damaged.broken.tolist():
            tree, child = self._child(row)
            by_tree.setdefault(int(self.damaged.forest.edge_tree[row]), []).append(child)
            self.use(self.links_of(int(tree.path[child])), -tree.weight)
        for number, children in by_tree.items():
            tree = self.trees[number]
            tree.detached.update(children)
            waiting = 0
            while children and waiting < len(children):
                child = children.pop(0)
                if not (self._hung(tree, child) or self._entered_below(tree, child)):
                    children.append(child)
                    waiting += 1
                    continue
                waiting = 0
                tree.detached.discard(child)
            if children:
                return False
        return True

    def _hung(self, tree: MovedTree, child: int) -> bool:
        """Hang a rank whose hop is not counted to the rest of its tree; whether there is a way."""
        nodes = self._way_to(tree, child)
        if nodes is None:
            return False
        self.use(self._links(nodes), tree.weight)
        tree.parent[child] = nodes[-1 if tree.reduces else 0]
        tree.path[child] = self.add_path(nodes)
        return True

    def _entered_below(self, tree: MovedTree, child: int) -> bool:
        """Hang a child of a rank to the rest of the tree, and the rank to that child; whether there is a way."""
        for kid in sorted(tree.below(child), key=lambda kid: (kid - child) % len(tree.parent)):
            old = int(tree.path[kid])
            turned = self._path(old)[::-1]
            if len(self._links(turned)) == len(turned) - 1 and self._hung(tree, kid):
                self.use(self.links_of(old), -tree.weight)
                self.use(self._links(turned), tree.weight)
                tree.parent[child], tree.path[child] = kid, self.add_path(turned)
                return True
        return False

    def _way_to(self, tree: MovedTree, child: int) -> list[int] | None:
        """The cheapest path to a rank from one that is connected to the root without it."""
        around = self.leaving if tree.reduces else self.entering
        best, origin, tried = {child: 0.0}, dict[int, int](), set[int]()
        heap = [(0.0, child)]
        while heap:
            paid, node = heapq.heappop(heap)
            if paid > best[node]:
                continue
            if node != child and self.rank[node] >= 0:
                if node in tried:
                    path = [node]
                    while path[-1] != child:
                        path.append(origin[path[-1]])
                    return path[::-1] if tree.reduces else path
                tried.add(node)
                depth = tree.depth(node)
                if depth >= 0:
                    best[node] = paid + depth * self.deeper
                    heapq.heappush(heap, (best[node], node))
                continue
            for other, link in around[node]:
                there = paid + self.price(link)
                if other not in tried and there < best.get(other, float("inf")):
                    best[other], origin[other] = there, node
                    heapq.heappush(heap, (there, other))
        return None
