"""Trees and rings of equal shares for RCCL on one box, with multiplicities that minimise the busiest link.

A forest branches and a ring does not, so that the rings are found anew for what a plan performs, on its topology
(:func:`coppice.planners.ring.best.best_ring`). Each is repeated in proportion to its share of the best mixture, and
what is lost against that mixture is counted exactly.

An all-reduce uses every edge of a tree both ways, so that only unordered pairs of GPUs count, each with the lesser rate
of its two directions. A set of n trees is improved by exchanges: an edge of a busiest pair leaves its tree, and an edge
over a less loaded pair joins the two parts again. Where no exchange helps, edges move between pairs of equal load for
a while, with a fixed seed. The root is the GPU from which the tree is least deep among those that may be it: a GPU
with c children below a parent has c + 1 neighbours, the root has no parent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.ring.best import RingPlan, best_ring
from coppice.schedule.plan import Plan
from coppice.topology.model import NodeKind, Topology

MOST_RINGS = 64
"""Half of the channels that RCCL has, since it doubles them."""


@dataclass(frozen=True, kw_only=True)
class RcclRings:
    """Rings of equal shares."""

    orders: tuple[tuple[int, ...], ...]  # Ranks of each ring, in order
    inv_rate: Fraction  # Time that the busiest link needs per GB of a shard, exact, 1 / (GB/s)
    best_inv_rate: Fraction  # The same for the best mixture of rings, with any shares
    detours: int  # Hops between GPUs without a link of their own, for which RCCL finds a path by itself

    @property
    def text(self) -> str:
        """The value of ``NCCL_RINGS``."""
        return "|".join(" ".join(map(str, order)) for order in self.orders)


def rccl_rings(plan: Plan, *, rings: int | None = None) -> RcclRings:
    """Rings of equal shares for the collective of a plan.

    Args:
        rings: Number of rings; None takes the number up to 64 that loses least, the smallest of several.
    """
    _check(plan)
    if rings is not None and not 1 <= rings <= MOST_RINGS:
        raise InputError(f"expected 1 .. {MOST_RINGS} rings, found {rings}.")
    found = best_ring(plan.problem)
    if found is None:
        raise InputError(
            f"no ring goes through all GPUs of {plan.topology.name} over its links: export to rccl-trees."
        )
    made = list(_growing(found, MOST_RINGS if rings is None else rings))
    return made[-1] if rings is not None else min(made, key=lambda each: each.inv_rate)


def _check(plan: Plan) -> None:
    topology, collective = plan.topology, plan.problem.collective
    if not collective.made_of_trees:
        raise InputError(
            f"RCCL runs no rings for {collective}: plan all_reduce, all_gather, reduce_scatter, broadcast or reduce."
        )
    if plan.problem.weights is not None:
        raise InputError("rings of RCCL are for blocks of equal size, found weights: plan without `weights`.")
    check_one_box(topology, "NCCL_RINGS")


def check_one_box(topology: Topology, variable: str) -> None:
    """Refuse a topology that is not a single box with all its GPUs.

    Args:
        variable: Variable of RCCL that is made for it, for messages.
    """
    hosts = set(topology.host[topology.rank_nodes].tolist())
    if len(hosts) != 1:
        raise InputError(
            f"{variable} is for one box, found {len(hosts)} hosts in {topology.name}: plan one box."
        )
    gpus = int((topology.kind == NodeKind.GPU).sum())
    if gpus != topology.num_ranks:
        raise InputError(
            f"{variable} needs all {gpus} GPUs of the box to take part, found {topology.num_ranks}: plan all."
        )


def _growing(found: RingPlan, most: int) -> Iterator[RcclRings]:
    """One ring, two, and so on: the next is the one that lacks most of its share."""
    topology, problem = found.problem.topology, found.problem
    ranks = topology.num_ranks
    hops = _hops(problem.collective, ranks)
    taken = [0] * len(found.orders)
    loads: Counter[tuple[int, int]] = Counter()
    orders: list[tuple[int, ...]] = []
    detours = 0
    for count in range(1, most + 1):
        at = max(range(len(taken)), key=lambda j: found.weights[j] * count - taken[j])
        taken[at] += 1
        orders.append(found.orders[at])
        # The hop back to where a rooted ring begins carries nothing.
        used = found.paths[at] if problem.root is None else _used_paths(found, at)
        detours += sum(1 for path in found.paths[at] if len(path) > 2)
        for path in used:
            loads.update(pairwise(path))
        inv_rate = max(
            (
                hops * load / topology.gb_per_s(topology.link_index[link]) / count
                for link, load in loads.items()
            ),
            default=Fraction(0),
        )
        yield RcclRings(
            orders=tuple(orders), inv_rate=inv_rate, best_inv_rate=found.inv_rate, detours=detours
        )


def _hops(collective: Collective, ranks: int) -> Fraction:
    """What a hop of a ring carries, in shards."""
    if collective is Collective.ALL_REDUCE:
        return Fraction(2 * (ranks - 1), ranks)
    return Fraction(ranks - 1) if collective.sharded else Fraction(1)


def _used_paths(found: RingPlan, at: int) -> tuple[tuple[int, ...], ...]:
    """Paths that a broadcast or a reduction uses: all but the one into the root, or out of it."""
    paths = found.paths[at]
    return paths[:-1] if found.problem.collective is Collective.BROADCAST else paths[1:]


_SEED = 1
_SIDEWAYS = 400
"""Exchanges without gain in a row before the search ends, times the number of GPUs over 8."""

Pair = tuple[int, int]

Edges = set[Pair]


def packed_trees(
    ranks: int, rates: Mapping[Pair, Fraction], *, trees: int, children: int, goal: Fraction = Fraction(0)
) -> tuple[tuple[tuple[int, ...], ...], Fraction] | None:
    """Trees, and the time per GB of the busiest pair under all of them.

    Args:
        rates: Rate of each pair (a, b), a < b, in GB/s: the lesser of its two directions.
        goal: A time with which the search is content.

    Returns:
        Parent of each GPU, tree by tree, -1 for the root, and the time in 1 / (GB/s), exact; None where the pairs do
        not connect the GPUs within the limit.

    Examples:
        >>> rates = {(a, b): Fraction(10) for a in range(4) for b in range(a + 1, 4)}
        >>> made, inv_rate = packed_trees(4, rates, trees=2, children=3)
        >>> len(made), inv_rate  # two trees of three edges use each of the six pairs once
        (2, Fraction(1, 20))
    """
    search = _RuleSearch(ranks, rates, children=children, trees=trees)
    if not search.start():
        return None
    search.improve(goal)
    best = search.best
    return tuple(_rooted(edges, ranks, children) for edges in best), search.best_time


def depth_of(parents: tuple[int, ...]) -> int:
    """Height of the tree in edges.

    >>> depth_of((-1, 0, 1, 0))
    2
    """
    deepest = 0
    for rank in range(len(parents)):
        steps, at = 0, rank
        while parents[at] >= 0:
            at, steps = parents[at], steps + 1
        deepest = max(deepest, steps)
    return deepest


class _RuleSearch:
    def __init__(self, ranks: int, rates: Mapping[Pair, Fraction], *, children: int, trees: int) -> None:
        self.ranks, self.rates, self.count = ranks, dict(rates), trees
        self.most = children + 1
        self.random = random.Random(_SEED)
        self.near: list[list[int]] = [[] for _ in range(ranks)]
        for a, b in rates:
            self.near[a].append(b)
            self.near[b].append(a)
        self.load = dict.fromkeys(rates, 0)
        self.cost = {pair: 1 / float(rate) for pair, rate in rates.items()}
        self.trees: list[Edges] = []
        self.degrees: list[list[int]] = []
        self.best: list[Edges] = []
        self.best_time = Fraction(0)

    def start(self) -> bool:
        """Trees one after the other, each grown from another GPU over the least loaded pairs."""
        for at in range(self.count):
            edges = self.grown(at % self.ranks)
            if edges is None:
                return False
            self.trees.append(edges)
            degrees = [0] * self.ranks
            for a, b in edges:
                self.load[a, b] += 1
                degrees[a] += 1
                degrees[b] += 1
            self.degrees.append(degrees)
        return True

    def grown(self, root: int) -> Edges | None:
        depth = {root: 0}
        degrees = [0] * self.ranks
        edges: Edges = set()
        while len(depth) < self.ranks:
            options = [
                ((self.load[_pair(a, b)] + 1) * self.cost[_pair(a, b)], depth[a], a, b)
                for a in depth
                if degrees[a] < self.most - (a == root)
                for b in self.near[a]
                if b not in depth
            ]
            if not options:
                return None
            _, _, a, b = min(options)
            depth[b] = depth[a] + 1
            degrees[a] += 1
            degrees[b] += 1
            edges.add(_pair(a, b))
        return edges

    def improve(self, goal: Fraction) -> None:
        """Exchange until the goal is reached, or nothing is gained for long."""
        self.keep()
        patience = _SIDEWAYS * max(1, self.ranks // 8)
        idle = 0
        before = self.level()
        while idle < patience and self.best_time > goal:
            self.exchange()
            now = self.level()
            idle = 0 if now < before else idle + 1
            if now < before:
                before = now
                self.keep()

    def keep(self) -> None:
        time = max(
            (Fraction(load) / self.rates[pair] for pair, load in self.load.items()), default=Fraction(0)
        )
        time /= self.count
        if not self.best or time < self.best_time:
            self.best, self.best_time = [set(edges) for edges in self.trees], time

    def level(self) -> tuple[float, int]:
        """Load of the busiest pair, and how many are as busy."""
        loads = [load * self.cost[pair] for pair, load in self.load.items()]
        most = max(loads)
        return most, sum(1 for load in loads if load > most * (1 - 1e-9))

    def exchange(self) -> None:
        """Move an edge off a busiest pair; otherwise any edge to a pair that is then no busier than it was."""
        most, _ = self.level()
        busy = [pair for pair, load in self.load.items() if load * self.cost[pair] > most * (1 - 1e-9)]
        pair = self.random.choice(busy)
        users = [at for at, edges in enumerate(self.trees) if pair in edges]
        self.random.shuffle(users)
        for at in users:
            if self.replace(at, pair, below=most * (1 - 1e-9)):
                return
        at = self.random.randrange(self.count)
        pair = self.random.choice(sorted(self.trees[at]))
        self.replace(at, pair, below=most * (1 - 1e-9))

    def replace(self, at: int, old: Pair, *, below: float) -> bool:
        edges, degrees = self.trees[at], self.degrees[at]
        side = _side(edges - {old}, old[0], self.ranks)
        degrees[old[0]] -= 1
        degrees[old[1]] -= 1
        options = [
            ((self.load[pair] + 1) * self.cost[pair], self.random.random(), pair)
            for pair in self.load
            if pair != old
            and side[pair[0]] != side[pair[1]]
            and max(degrees[pair[0]], degrees[pair[1]]) < self.most
            and (self.load[pair] + 1) * self.cost[pair] < below
        ]
        new = min(options)[2] if options else old
        degrees[new[0]] += 1
        degrees[new[1]] += 1
        if new == old:
            return False
        edges.remove(old)
        edges.add(new)
        self.load[old] -= 1
        self.load[new] += 1
        return True


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def _neighbours(edges: Edges, ranks: int) -> list[list[int]]:
    near: list[list[int]] = [[] for _ in range(ranks)]
    for a, b in sorted(edges):
        near[a].append(b)
        near[b].append(a)
    return near


def _side(edges: Edges, start: int, ranks: int) -> list[bool]:
    near = _neighbours(edges, ranks)
    reached = [False] * ranks
    reached[start] = True
    stack = [start]
    while stack:
        for rank in near[stack.pop()]:
            if not reached[rank]:
                reached[rank] = True
                stack.append(rank)
    return reached


def _rooted(edges: Edges, ranks: int, children: int) -> tuple[int, ...]:
    near = _neighbours(edges, ranks)
    found = [_parents(near, root) for root in range(ranks) if len(near[root]) <= children]
    return min(found, key=lambda parents: (depth_of(parents), parents))


def _parents(near: list[list[int]], root: int) -> tuple[int, ...]:
    parents = [-1] * len(near)
    stack = [root]
    while stack:
        above = stack.pop()
        for rank in near[above]:
            if rank != parents[above]:
                parents[rank] = above
                stack.append(rank)
    return tuple(parents)
