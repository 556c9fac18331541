"""All-to-all on large networks without symmetry: reroute demands over paths until the busiest links are even.

The native core moves flow from longer paths to shortest ones under lengths that grow steeply with the load, sweep by
sweep (cpp/flow/path_flow.h); the same lengths bound what any routing reaches. The steepness follows the gap that is
left: the soft maximum of the loads is within log(links) / steepness of the largest. In the end the parts become
integers and the loads are counted exactly, and the bound is proved by integer lengths.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from math import log

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.all_to_all.distances import cut_lengths, integer_lengths, length_bound
from coppice.bounds.all_to_all.routes import FlowRoute, reduced_routes
from coppice.display import Brief
from coppice.topology.model import Topology

_GRID = 2**20
_GOOD_ENOUGH = 2.5e-3
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
        if gap <= _GOOD_ENOUGH or late:
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
