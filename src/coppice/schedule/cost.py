"""Latency of a plan, and how large a message must be for it to reach its rate.

Model (a prediction, in floating point; nothing here decides optimality). A message is cut into m pieces that
follow each other down a chain of h hops. A hop costs the latencies of its links plus a fixed overhead per
hop, and the piece's share of the bandwidth time. With alpha = mean cost of a hop on the chain and B =
bandwidth time of the whole message (M x inv_rate / shards), which all trees of a forest spend at the same
time,

    T(m) = (m + h - 1) (alpha + B / m),   least for m = sqrt((h - 1) B / alpha):   T = (sqrt(B) + sqrt((h - 1)
    alpha))^2

and T = h (alpha + B) where even one piece is too many to pipeline, or T = alpha + B on a chain of one hop.
The chain is the one of largest latency: the deepest path of the slowest tree, in an all-reduce up the slowest
reduce tree and down the slowest broadcast tree of one root, in a schedule the longest chain of dependent
transfers. Sharing of links beyond their capacity, protocol efficiency and limits of channels are not
modelled.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.schedule import Schedule, hops_of, routed
from coppice.schedule.shape import children, parent_rows, rank_depths, sums_to_root, tree_maxima

__all__ = ["HOP_OVERHEAD_US", "PipelineModel", "forest_pipeline", "schedule_pipeline", "tree_latencies_us"]

HOP_OVERHEAD_US = 1.0
"""Default cost in microseconds of one hop between GPUs beyond its links: software and memory."""


@dataclass(frozen=True, kw_only=True)
class PipelineModel:
    """Chain that decides how a plan's pipeline fills, and what follows from it.

    Attributes:
        hops: Hops of the chain, h.
        latency_us: Latency of the whole chain in microseconds, h x alpha.
        us_per_byte: Bandwidth time of one byte of M in microseconds.
    """

    hops: int
    latency_us: float
    us_per_byte: float

    def time_us(self, size_bytes: float) -> float:
        """Predicted time for a message of M = ``size_bytes`` with the best number of pieces.

        Examples:
            >>> PipelineModel(hops=2, latency_us=8.0, us_per_byte=1e-3).time_us(9000)
            25.0
        """
        bandwidth = size_bytes * self.us_per_byte
        if self.hops == 0:
            return bandwidth
        alpha = self.latency_us / self.hops
        if (self.hops - 1) * bandwidth <= alpha:
            return self.hops * (alpha + bandwidth)
        return (sqrt(bandwidth) + sqrt((self.hops - 1) * alpha)) ** 2

    def size_bytes_at(self, share: float) -> float:
        """Message size M in bytes from which the plan runs at ``share`` of its rate.

        Args:
            share: Part of the rate, more than 0 and less than 1.

        Raises:
            InputError: If ``share`` is not between 0 and 1.

        Examples:
            >>> round(PipelineModel(hops=1, latency_us=10.0, us_per_byte=1e-3).size_bytes_at(0.5))
            10000
        """
        if not 0 < share < 1:
            msg = f"expected a share of the rate between 0 and 1, found {share}: give 0.5, say."
            raise InputError(msg)
        if self.hops == 0 or self.latency_us == 0:
            return 0.0
        if self.us_per_byte == 0:
            return inf
        alpha = self.latency_us / self.hops
        if self.hops == 1:
            return alpha * share / (1 - share) / self.us_per_byte
        pipelined = (self.hops - 1) * alpha * share / (1 - sqrt(share)) ** 2
        if (self.hops - 1) * pipelined > alpha:
            return pipelined / self.us_per_byte
        return self.hops * alpha * share / (1 - self.hops * share) / self.us_per_byte


def tree_latencies_us(
    forest: Forest, *, hop_overhead_us: float = HOP_OVERHEAD_US
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Latency of each tree in microseconds, and the hops on its slowest path.

    Args:
        forest: The trees.
        hop_overhead_us: Cost of a hop beyond its links' latencies.

    Raises:
        InputError: If the edges of the forest do not form trees.
    """
    topology = forest.topology
    path_us = hops_of(topology, forest.path_start, forest.path_nodes).latency_us(topology)
    counted = topology.rank[children(forest)] >= 0
    edge_us = path_us[forest.edge_path] + hop_overhead_us * counted
    depth_us = sums_to_root(parent_rows(forest), edge_us)
    slowest = tree_maxima(forest, depth_us)
    on_slowest = depth_us == slowest[forest.edge_tree]
    return slowest, tree_maxima(forest, np.where(on_slowest, rank_depths(forest), 0))


def forest_pipeline(
    forest: Forest, *, inv_rate: Fraction, shards: int, hop_overhead_us: float = HOP_OVERHEAD_US
) -> PipelineModel:
    """Pipeline of a forest: the chain with the largest latency.

    Args:
        forest: A verified forest.
        inv_rate: Its time per shard, 1 / (GB/s).
        shards: Number of shards in M.
        hop_overhead_us: Cost of a hop beyond its links' latencies.

    Raises:
        InputError: If the edges of the forest do not form trees.
    """
    latency, hops = tree_latencies_us(forest, hop_overhead_us=hop_overhead_us)
    nodes = forest.topology.num_nodes
    root_of = np.arange(nodes) if forest.symmetry is None else forest.symmetry.node_orbit
    chains: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for phase in Phase:
        slowest: dict[int, tuple[float, int]] = {}
        for tree in np.flatnonzero(forest.tree_phase == phase).tolist():
            root = int(root_of[forest.tree_root[tree]])
            slowest[root] = max(slowest.get(root, (0.0, 0)), (float(latency[tree]), int(hops[tree])))
        for root, (us, count) in slowest.items():
            before_us, before_count = chains[root]
            chains[root] = (before_us + us, before_count + count)
    us, count = max(chains.values(), default=(0.0, 0))
    return PipelineModel(hops=count, latency_us=us, us_per_byte=_us_per_byte(inv_rate, shards))


def schedule_pipeline(
    schedule: Schedule, *, inv_rate: Fraction, shards: int, hop_overhead_us: float = HOP_OVERHEAD_US
) -> PipelineModel:
    """Pipeline of a schedule: the longest chain of transfers that wait for each other.

    A transfer waits for earlier rows into its (chunk, source), other than those of its own step, and for the
    rows that it names.

    Args:
        schedule: A verified schedule.
        inv_rate: Its time per shard, 1 / (GB/s).
        shards: Number of shards in M.
        hop_overhead_us: Cost of a hop beyond its links' latencies.
    """
    schedule = routed(schedule)
    topology = schedule.topology
    path_us = hops_of(topology, schedule.path_start, schedule.path_nodes).latency_us(topology)
    cost = (path_us[schedule.path] + hop_overhead_us).tolist()
    start, after = schedule.after_start.tolist(), schedule.after.tolist()
    ready: dict[tuple[int, int], tuple[float, int]] = {}
    arriving: dict[tuple[int, int], tuple[float, int]] = {}
    done: list[tuple[float, int]] = []
    current = -1
    columns = (schedule.chunk, schedule.src, schedule.dst, schedule.step)
    for row, (chunk, src, dst, step) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        if step != current or step < 0:
            for buffer, chain in arriving.items():
                ready[buffer] = max(ready.get(buffer, (0.0, 0)), chain)
            arriving.clear()
            current = step
        waits = [done[earlier] for earlier in after[start[row] : start[row + 1]]]
        us, count = max([ready.get((chunk, src), (0.0, 0)), *waits])
        chain = (us + cost[row], count + 1)
        done.append(chain)
        arriving[chunk, dst] = max(arriving.get((chunk, dst), (0.0, 0)), chain)
    us, count = max(done, default=(0.0, 0))
    return PipelineModel(hops=count, latency_us=us, us_per_byte=_us_per_byte(inv_rate, shards))


def _us_per_byte(inv_rate: Fraction, shards: int) -> float:
    """1 / (GB/s) is a nanosecond per byte of a shard."""
    return float(inv_rate / shards / 1000)
