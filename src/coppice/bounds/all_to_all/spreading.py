"""All-to-all on large networks without symmetry: by paths, or by shortest-path trees where these cannot be stored.

Sources are taken in blocks. A block's routing is moved part of the way to shortest paths under lengths that
grow steeply with the load (Frank-Wolfe steps in turn over the blocks, on the soft maximum of the loads); the
lengths of a sweep also prove a bound. At the end a linear program mixes the trees that each block has kept;
the mix gets integer weights and its loads are counted exactly.

All-to-all on large networks without symmetry: reroute demands over paths until the busiest links are even. The native
core moves flow from longer paths to shortest ones under lengths that grow steeply with the load, sweep by sweep
(cpp/flow/path_flow.h); the same lengths bound what any routing reaches. The steepness follows the gap that is left: the
soft maximum of the loads is within log(links) / steepness of the largest. In the end the parts become integers and the
loads are counted exactly, and the bound is proved by integer lengths.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from math import log

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.all_to_all.distances import cut_lengths, distances, integer_lengths, length_bound
from coppice.bounds.all_to_all.routes import FlowRoute, reduced_routes
from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.display import Brief
from coppice.topology.model import Topology

_BLOCKS = 32
_SWEEPS = 60
_TREES = 12
_GRID = 2**20
_GOOD_ENOUGH = 1e-4
_DENSE = 2**20
_BUSY = 0.8


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TreeMix(Brief):
    """Shortest-path trees of some source ranks, and the share of the demand on each."""

    ranks: NDArray[np.int64]  # Source ranks
    # Per tree: `last_link[i, v]` is the link over which `ranks[i]` reaches node v, or -1
    last_link: list[NDArray[np.int32]]
    weights: list[int]  # Integer weight of each tree; they sum to 2**20


@dataclass(frozen=True, eq=False, kw_only=True)
class Spread:
    """A routing by mixes of shortest-path trees and the link lengths that bound it."""

    reached: Fraction  # Time per unit of demand of the routing, in 1 / (GB/s)
    length: list[int]  # Integer link lengths that prove the best bound found
    mixes: list[TreeMix]  # One mix for each block of ranks
    sweeps: int  # Sweeps over all blocks


class _SourceBlock:
    """The routing of some source ranks in floats."""

    def __init__(self, ranks: NDArray[np.int64], num_links: int) -> None:
        self.ranks = ranks
        self.trees: list[NDArray[np.int32]] = []
        self.loads: list[NDArray[np.int64]] = []
        self.parts: list[float] = []
        self.load = np.zeros(num_links)

    def move(self, tree: NDArray[np.int32], load: NDArray[np.int64], part: float) -> None:
        """Send ``part`` of everything along ``tree``; the lightest tree goes where there are too many."""
        self.parts = [p * (1 - part) for p in self.parts] + [part]
        self.trees.append(tree)
        self.loads.append(load)
        if len(self.trees) > _TREES:
            lightest = min(range(len(self.parts)), key=self.parts.__getitem__)
            for column in (self.trees, self.loads, self.parts):
                del column[lightest]
            total = sum(self.parts)
            self.parts = [p / total for p in self.parts]
        self.load = np.zeros(len(self.load))
        for p, one in zip(self.parts, self.loads, strict=True):
            self.load += p * one

    def rounded(self) -> tuple[TreeMix, NDArray[np.int64]]:
        """The mix with integer weights, and its exact loads times 2**20."""
        weights = [round(p * _GRID) for p in self.parts]
        weights[max(range(len(weights)), key=weights.__getitem__)] += _GRID - sum(weights)
        kept = [k for k, weight in enumerate(weights) if weight > 0]
        load = np.zeros(len(self.load), dtype=np.int64)
        for k in kept:
            load += weights[k] * self.loads[k]
        mix = TreeMix(
            ranks=self.ranks,
            last_link=[self.trees[k] for k in kept],
            weights=[weights[k] for k in kept],
        )
        return mix, load


def spread(topology: Topology, demand: NDArray[np.int64], *, time_limit: float) -> Spread:
    """Route ``demand`` (rank to rank, all reachable) for about ``time_limit`` seconds.

    Args:
        demand: Integers >= 0 with a zero diagonal; the sum stays below 2**40.
        time_limit: Seconds, roughly; at least one sweep is done.
    """
    deadline = time.monotonic() + time_limit
    capacity = topology.capacity.astype(np.float64)
    rng = np.random.default_rng(0)
    ranks = np.arange(topology.num_ranks)
    blocks = [
        _SourceBlock(part, topology.num_links) for part in np.array_split(ranks, min(len(ranks), _BLOCKS))
    ]
    usage = np.zeros(topology.num_links)
    best = cut_lengths(topology, demand)
    for sweep in range(_SWEEPS):
        steepness = min(8.0 * 1.4**sweep, 300.0)
        started = time.monotonic()
        mean = np.zeros(topology.num_links)
        for block in blocks:
            if sweep and time.monotonic() > deadline:
                break
            length = _lengths(usage, capacity, steepness)
            mean += length / float(length @ capacity)
            tree = shortest_path_links(topology, block.ranks, _whole(length), rng)
            load = tree_loads(topology, block.ranks, tree, demand)
            change = (load - block.load) / capacity
            part = _best_part(usage, change, steepness) if block.trees else 1.0
            before = block.load
            block.move(tree, load, part)
            usage = np.maximum(usage + (block.load - before) / capacity, 0)
        integers = integer_lengths(mean)
        best = max(best, (length_bound(topology, demand, integers), integers), key=lambda pair: pair[0])
        time_now = usage.max() * topology.denominator
        if time_now <= float(best[0]) * (1 + _GOOD_ENOUGH):
            break
        if 2 * time.monotonic() - started > deadline:
            break
    lengths = _rebalance(topology, blocks, time_limit=max(deadline - time.monotonic(), 1.0))
    if lengths is not None:
        best = max(best, (length_bound(topology, demand, lengths), lengths), key=lambda pair: pair[0])
    rounded = [block.rounded() for block in blocks]
    total = np.sum([load for _, load in rounded], axis=0)
    worst = max(Fraction(load, b) for load, b in zip(total.tolist(), topology.capacity.tolist(), strict=True))
    return Spread(
        reached=worst * topology.denominator / _GRID,
        length=best[1],
        mixes=[mix for mix, _ in rounded],
        sweeps=sweep + 1,
    )


def _rebalance(topology: Topology, blocks: list[_SourceBlock], *, time_limit: float) -> list[int] | None:
    """Give all blocks the parts that together are best for their trees; returns the lengths of that dual."""
    count = sum(len(block.trees) for block in blocks)
    loads = np.array([load for block in blocks for load in block.loads])  # tree, link
    owner = np.repeat(np.arange(len(blocks)), [len(block.trees) for block in blocks])
    usage = np.sum([block.load for block in blocks], axis=0) / topology.capacity
    busy = np.flatnonzero(usage >= (0 if loads.size <= _DENSE else _BUSY) * usage.max())
    program = LinearProgram([1] + [0] * count, [None] * (1 + count))
    rows = []
    for e in busy.tolist():
        used = np.flatnonzero(loads[:, e])
        rows.append(
            Constraint(
                column=(1 + used).astype(np.int32), value=loads[used, e], bound=int(topology.capacity[e])
            )
        )
    for b in range(len(blocks)):
        own = 1 + np.flatnonzero(owner == b)
        column = np.concatenate([[0], own]).astype(np.int32)
        rows.append(Constraint(column=column, value=np.array([1] + [-1] * len(own), dtype=np.int64)))
    program.add_rows(rows)
    vertex = program.solve(time_limit=time_limit)
    if vertex is None or vertex.objective <= 0:
        return None
    parts = np.maximum(vertex.values[1:], 0)
    mixes = [parts[owner == b] / max(float(parts[owner == b].sum()), 1e-300) for b in range(len(blocks))]
    total = np.zeros(topology.num_links)
    for b, mix in enumerate(mixes):
        total += mix @ loads[owner == b]
    if (total / topology.capacity).max() < usage.max():
        for block, mix in zip(blocks, mixes, strict=True):
            block.parts = mix.tolist()
    length = np.zeros(topology.num_links)
    length[busy] = np.maximum(program.float_multipliers()[: len(busy)], 0)
    return integer_lengths(length)


def _lengths(
    usage: NDArray[np.float64], capacity: NDArray[np.float64], steepness: float
) -> NDArray[np.float64]:
    """Gradient of the soft maximum of the usage: it falls off steeply from the worst link."""
    worst = float(usage.max())
    if worst <= 0:
        return 1 / capacity
    return np.exp(np.maximum(steepness * (usage / worst - 1), -16)) / capacity


def _whole(length: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.maximum(np.array(integer_lengths(length), dtype=np.int64), 1)


def shortest_path_links(
    topology: Topology, ranks: NDArray[np.int64], length: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int32]:
    """Last link of a shortest path from each of ``ranks`` to each node; -1 where there is none.

    Args:
        length: Integers >= 1 per link.
    """
    sources = topology.rank_nodes[ranks]
    reach = distances(topology, sources, length)
    order = np.argsort(topology.dst, kind="stable")
    tail, head, weight = topology.src[order], topology.dst[order], length[order]
    heads, starts = np.unique(head, return_index=True)
    tight = reach[:, tail] + weight == reach[:, head]
    bits = int(topology.num_links).bit_length()
    key = (rng.integers(0, 2**30, size=tight.shape) << bits) | order
    key[~tight] = -1
    chosen = np.maximum.reduceat(key, starts, axis=1)
    result = np.full(reach.shape, -1, dtype=np.int32)
    result[:, heads] = np.where(chosen >= 0, chosen & ((1 << bits) - 1), -1)
    result[np.arange(len(sources)), sources] = -1
    return result


def tree_loads(
    topology: Topology, ranks: NDArray[np.int64], last_link: NDArray[np.int32], demand: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Load of each link when each of ``ranks`` sends its row of ``demand`` along its tree."""
    nodes = topology.num_nodes
    amount = np.zeros((len(ranks), nodes), dtype=np.int64)
    amount[:, topology.rank_nodes] = demand[ranks]
    up = np.where(last_link >= 0, topology.src[last_link], np.arange(nodes)[None, :])
    depth = _depths(last_link, up)
    loads = np.zeros(topology.num_links, dtype=np.int64)
    for level in range(int(depth.max()), 0, -1):
        i, v = np.nonzero(depth == level)
        moved = amount[i, v]
        np.add.at(amount, (i, up[i, v]), moved)
        np.add.at(loads, last_link[i, v], moved)
    return loads


def _depths(last_link: NDArray[np.int32], up: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number of links from the root to each node of each tree (0 for nodes without one)."""
    depth = (last_link >= 0).astype(np.int32)
    at = up.copy()
    row = np.arange(len(up))[:, None]
    while True:
        more = last_link[row, at] >= 0
        if not more.any():
            return depth
        depth += more
        at = up[row, at]


def _best_part(usage: NDArray[np.float64], change: NDArray[np.float64], steepness: float) -> float:
    """The step p in 0 .. 1 that makes the soft maximum of usage + p change least (ternary search)."""
    worst = float(usage.max())

    def soft_maximum(part: float) -> float:
        value = steepness * ((usage + part * change) / worst - 1)
        top = float(value.max())
        return top + float(np.log(np.exp(np.maximum(value - top, -40)).sum()))

    low, high = 0.0, 1.0
    for _ in range(24):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if soft_maximum(a) <= soft_maximum(b):
            high = b
        else:
            low = a
    return (low + high) / 2


_PATHS_GOOD_ENOUGH = 2.5e-3
_SWEEPS_PER_LOOK = 4
_GENTLE = 8.0
_STEEPEST = 20_000.0


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PathMix(Brief):
    """A routing by paths with the link lengths that bound it."""

    reached: Fraction  # Time per unit of demand of the routing, in 1 / (GB/s)
    length: list[int]  # Integer link lengths that prove the best bound found
    sweeps: int  # Sweeps over all sources
    rank: NDArray[np.int32]  # Source rank of each path; paths lie by source and target
    target: NDArray[np.int32]  # Target node of each path
    share: NDArray[np.int64]  # Its integer weight; those of one source and target sum to 2**20
    start: NDArray[np.int64]  # Path i has the links `link[start[i]:start[i + 1]]`
    link: NDArray[np.int32]  # Links of the paths

    def routes(self, topology: Topology) -> dict[int, list[FlowRoute]]:
        """Paths by source rank."""
        found: dict[int, list[FlowRoute]] = {}
        source, head = topology.rank_nodes.tolist(), topology.dst[self.link].tolist()
        start, share = self.start.tolist(), self.share.tolist()
        for i, (rank, target) in enumerate(zip(self.rank.tolist(), self.target.tolist(), strict=True)):
            nodes = (source[rank], *head[start[i] : start[i + 1]])
            found.setdefault(rank, []).append(FlowRoute(target, nodes, share[i]))
        return {rank: reduced_routes(own) for rank, own in found.items()}


def route_by_paths(topology: Topology, demand: NDArray[np.int64], *, time_limit: float) -> PathMix:
    """Route ``demand`` (rank to rank, all reachable) for about ``time_limit`` seconds.

    Args:
        demand: Integers >= 0 with a zero diagonal; the sum stays below 2**40.
        time_limit: Seconds, roughly; at least one sweep is done. It ends earlier within 0.25% of its bound.
    """
    deadline = time.monotonic() + time_limit
    wanted = np.zeros((topology.num_ranks, topology.num_nodes), dtype=np.int64)
    wanted[:, topology.rank_nodes] = demand
    flow = _core.PathFlow(
        topology.num_nodes,
        topology.src,
        topology.dst,
        topology.capacity,
        topology.rank_nodes.astype(np.int32),
        wanted.ravel(),
    )
    proved, length = cut_lengths(topology, demand)
    bound = float(proved) / topology.denominator
    best: NDArray[np.float64] | None = None
    steepness, sweeps = _GENTLE, 0
    while True:
        flow.sweep(steepness)
        sweeps += 1
        late = time.monotonic() > deadline
        if sweeps % _SWEEPS_PER_LOOK and not late:
            continue
        lengths = flow.lengths(steepness)
        found = flow.bound(lengths)
        if found > bound:
            bound, best = found, lengths
        gap = flow.worst() / bound - 1
        if gap <= _PATHS_GOOD_ENOUGH or late:
            break
        # as steep as the gap warrants, and never twice as steep as before
        steepness = min(max(steepness, log(topology.num_links) / (2 * gap)), 2 * steepness, _STEEPEST)
    if best is not None:
        integers = integer_lengths(best)
        length = max((proved, length), (length_bound(topology, demand, integers), integers))[1]
    source, target, part, start, link = flow.paths()
    share = _integer_shares(source, target, part)
    kept = share > 0
    size = np.diff(start)
    link, size = link[np.repeat(kept, size)], size[kept]
    source, target, share = source[kept], target[kept], share[kept]
    load = np.zeros(topology.num_links, dtype=np.int64)
    np.add.at(load, link, np.repeat(share * wanted[source, target], size))
    worst = max(map(Fraction, load.tolist(), topology.capacity.tolist()))
    return PathMix(
        reached=worst * topology.denominator / _GRID,
        length=length,
        sweeps=sweeps,
        rank=source,
        target=target,
        share=share,
        start=np.concatenate([[0], np.cumsum(size)]),
        link=link,
    )


def _integer_shares(
    source: NDArray[np.int32], target: NDArray[np.int32], part: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Parts as integers of which those of one source and target sum to 2**20: the largest takes up the rounding."""
    fresh = np.flatnonzero(np.diff(source, prepend=-1) | np.diff(target, prepend=-1))
    share: NDArray[np.int64] = np.rint(part * _GRID).astype(np.int64)
    group = np.zeros(len(part), dtype=np.int64)
    group[fresh] = 1
    group = np.cumsum(group) - 1
    largest = np.lexsort((share, group))[np.append(fresh[1:], len(part)) - 1]
    share[largest] += _GRID - np.add.reduceat(share, fresh)
    return share
