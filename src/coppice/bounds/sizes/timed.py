"""A network in which everything takes time: links with exact rates and latencies, and what messages cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import ceil, floor, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.topology.model import Topology

FINEST = 10**6
"""Units of time in a nanosecond at most; a latency that needs more is rounded down, so that bounds stay true."""
MOST_UNITS = 2**40 - 1
"""Units that the way through all nodes may take: a distance can be the latency of a link."""


@dataclass(frozen=True, kw_only=True)
class MessageCosts:
    """What a message takes beyond the rates of its links; every figure is a least one.

    The defaults are the links alone, which no software is faster than.
    """

    name: str = ""  # Such as the protocol, for words about a bound
    start_us: float = 0.0  # Before the first message
    message_us: float = 0.0  # For each message, where a rank sends it
    crossing_us: float = 0.0  # More for each message that leaves its box
    links: bool = True  # Latencies of links count, beside these
    expansion: Fraction = Fraction(1)  # Bytes on the wire for a byte of data
    gpu_gb_per_s: Fraction | None = None  # Data that a rank sends at most, whatever its links
    burst_bytes: int = 0  # Bytes that a link lets through at once after a rest
    workers: int = 0  # Messages that a rank handles at a time; 0: any number
    send_us: float = 0.0  # Part of `message_us` for which a message occupies a worker of its sender
    receive_us: float = 0.0  # Likewise of its receiver


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedNetwork:
    """Links as columns: exact rates in data bytes per nanosecond, latencies in whole units."""

    topology: Topology
    num_nodes: int  # Those of the topology come first
    tail: NDArray[np.int32]
    head: NDArray[np.int32]
    capacity: NDArray[np.int64]  # `capacity[e] * scale` is the rate of link e in bytes of data per nanosecond
    scale: Fraction
    latency: NDArray[np.int64]  # `latency[e] / units` nanoseconds
    units: int
    burst_bytes: Fraction = Fraction(0)  # Bytes of data that each link lets through at once

    @classmethod
    def of(cls, topology: Topology, costs: MessageCosts) -> TimedNetwork:
        """The network of a topology with what messages cost.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> network = TimedNetwork.of(preset("star", gpus=2, gb_per_s=25), MessageCosts(message_us=0.5))
            >>> [(int(a), int(b)) for a, b in zip(network.tail, network.head)], network.latency.tolist()
            ([(0, 2), (1, 2), (2, 0), (2, 1)], [500, 500, 0, 0])
        """
        exact = [exact_ns(each) if costs.links else Fraction(0) for each in topology.latency_us.tolist()]
        sends, leaves = topology.rank[topology.src] >= 0, _leaving(topology)
        message, crossing = exact_ns(costs.message_us), exact_ns(costs.crossing_us)
        if message or crossing:
            exact = [
                each + message * int(sent) + crossing * int(left)
                for each, sent, left in zip(exact, sends.tolist(), leaves.tolist(), strict=True)
            ]
        longest = topology.num_nodes * ceil(max(exact, default=Fraction(0)))
        units = min(
            lcm(1, *{each.denominator for each in exact}), FINEST, max(1, MOST_UNITS // max(1, longest))
        )
        made = cls(
            topology=topology,
            num_nodes=topology.num_nodes,
            tail=topology.src,
            head=topology.dst,
            capacity=topology.capacity,
            scale=1 / (topology.denominator * costs.expansion),
            latency=np.array([floor(each * units) for each in exact], dtype=np.int64),
            units=units,
            burst_bytes=costs.burst_bytes / costs.expansion,
        )
        return made if costs.gpu_gb_per_s is None else made.limited(costs.gpu_gb_per_s)

    def limited(self, gb_per_s: Fraction) -> TimedNetwork:
        """The same with a link before the links out of every rank that sends no more than this."""
        ranks = self.topology.rank_nodes
        port = np.arange(self.num_nodes, dtype=np.int32)
        port[ranks] = self.num_nodes + np.arange(len(ranks), dtype=np.int32)
        scale = Fraction(1, lcm(self.scale.denominator, gb_per_s.denominator))
        times = self.scale / scale
        return replace(
            self,
            num_nodes=self.num_nodes + len(ranks),
            tail=np.concatenate([port[self.tail], ranks.astype(np.int32)]),
            head=np.concatenate([self.head, port[ranks]]),
            capacity=np.concatenate([self.capacity * int(times), np.full(len(ranks), int(gb_per_s / scale))]),
            scale=scale,
            latency=np.concatenate([self.latency, np.zeros(len(ranks), dtype=np.int64)]),
        )

    def reversed(self) -> TimedNetwork:
        """The network in which every link leads the other way."""
        return replace(self, tail=self.head, head=self.tail)

    def merged(self, nodes: Sequence[int]) -> TimedNetwork:
        """The same with one more node, the last, to which all links into given nodes lead; none leads out of these.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> network = TimedNetwork.of(preset("path", gpus=3), MessageCosts()).merged([1, 2])
            >>> [(int(a), int(b)) for a, b in zip(network.tail, network.head)]
            [(0, 3)]
        """
        inside = np.zeros(self.num_nodes, dtype=np.bool_)
        inside[list(nodes)] = True
        kept = ~inside[self.tail]
        head = np.where(inside[self.head], np.int32(self.num_nodes), self.head)
        return replace(
            self,
            num_nodes=self.num_nodes + 1,
            tail=self.tail[kept],
            head=head[kept],
            capacity=self.capacity[kept],
            latency=self.latency[kept],
        )

    def joint(self, opens: Mapping[int, int]) -> TimedNetwork:
        """The same with one more node, the last, from which the links out of all given nodes lead.

        Args:
            opens: Units of time after which the links out of each of them are of use.

        Examples:
            >>> from coppice.topology.presets import preset
            >>> network = TimedNetwork.of(preset("path", gpus=3), MessageCosts()).joint({0: 0, 1: 5, 2: 9})
            >>> [(int(a), int(b)) for a, b in zip(network.tail, network.head)], network.latency.tolist()
            ([(3, 1), (3, 0), (3, 2), (3, 1)], [0, 5, 5, 9])
        """
        after = np.full(self.num_nodes, -1, dtype=np.int64)
        for node, units in opens.items():
            after[node] = units
        moved = after[self.tail]
        return replace(
            self,
            num_nodes=self.num_nodes + 1,
            tail=np.where(moved >= 0, np.int32(self.num_nodes), self.tail),
            latency=self.latency + np.maximum(moved, 0),
        )


def nearest(
    tail: NDArray[np.int32], head: NDArray[np.int32], latency: NDArray[np.int64], starts: Sequence[int]
) -> dict[int, int]:
    """Units from the nearest of some nodes to each that can be reached (Dijkstra)."""
    out: dict[int, list[tuple[int, int]]] = {}
    for a, b, units in zip(tail.tolist(), head.tolist(), latency.tolist(), strict=True):
        out.setdefault(a, []).append((b, units))
    found: dict[int, int] = {}
    heap = [(0, node) for node in starts]
    heapify(heap)
    while heap:
        so_far, node = heappop(heap)
        if node in found:
            continue
        found[node] = so_far
        for after, units in out.get(node, ()):
            if after not in found:
                heappush(heap, (so_far + units, after))
    return found


def exact_ns(microseconds: float) -> Fraction:
    """Nanoseconds of a time, as the decimal that it was written as.

    >>> exact_ns(0.3)
    Fraction(300, 1)
    """
    return 1000 * Fraction(str(microseconds))


def _leaving(topology: Topology) -> NDArray[np.bool_]:
    """Links out of boxes, each message to another box crossing at least one, and none crossing two.

    A GPU without a box is one of its own.
    A route could pass through a box where its switches and NICs are joined to two nodes outside or more; links out of
    such parts of a box do not count.
    """
    host, src, dst, rank = topology.host, topology.src, topology.dst, topology.rank
    leaving = (host[src] >= 0) & (host[dst] != host[src])
    within = (host[src] >= 0) & (host[src] == host[dst]) & (rank[src] < 0) & (rank[dst] < 0)
    part = np.arange(topology.num_nodes)
    before = None
    while before is None or (before != part).any():  # the least node of each part of a box
        before = part.copy()
        np.minimum.at(part, dst[within], before[src[within]])
        np.minimum.at(part, src[within], before[dst[within]])
    outside: dict[int, set[int]] = {}
    for a, b in ((src, dst), (dst, src)):
        joins = (host[a] >= 0) & (host[b] != host[a]) & (rank[a] < 0)
        for inner, outer in zip(part[a[joins]].tolist(), b[joins].tolist(), strict=True):
            outside.setdefault(inner, set()).add(outer)
    passable = np.array([len(outside.get(int(each), ())) > 1 for each in part], dtype=np.bool_)
    counted: NDArray[np.bool_] = leaving & ((rank[src] >= 0) | ~passable[src])
    return counted | ((rank[src] >= 0) & (host[src] < 0))
