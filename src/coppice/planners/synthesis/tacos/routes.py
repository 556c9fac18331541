"""Routes from rank to rank, and how long a chunk occupies each of their links.

TACOS knows direct links only. Here a path through switches and NICs is a route as well, and every link that it takes
is a port that serves one chunk at a time: all routes out of a GPU share its port of the switch, all routes into it
another one, and the uplinks of a leaf are shared by whoever crosses them. A link is held for its own latency and the
chunk's bytes at its own rate, so the fast port in front of a slow one is free again early (cut-through); a chunk has
come after the latencies of all links and its bytes at the slowest rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.rows import offsets
from coppice.schedule.schedule import hops_of
from coppice.topology.model import Topology
from coppice.topology.routing import Router

MOST_ROUTES = 2**20
WAYS = 4
"""Equally good paths between two ranks that are routes of their own."""
MANY_RANKS = 128
"""From more ranks than that on, one path between two ranks has to do."""
SUM_LIMIT = 2**61


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ChunkRoutes(Brief):
    """Routes between ranks with the transfer time of a chunk."""

    src: NDArray[np.int32]  # Rank that each leaves (int32)
    dst: NDArray[np.int32]  # Rank that each enters (int32)
    duration: NDArray[np.int64]  # From the start to the arrival of a chunk (int64, in units of `unit`)
    port_start: NDArray[np.int64]  # Ports of route k are `port[port_start[k] : port_start[k + 1]]` (int64)
    port: NDArray[np.int32]  # Links that it takes (int32)
    hold: NDArray[np.int64]  # How long a chunk holds each of them (int64)
    num_ports: int  # Number of links
    path_nodes: NDArray[np.int32]  # Its nodes: those of route k begin at `port_start[k] + k` (int32)
    # Microseconds of a unit of time for a chunk of the given size; without one, seconds per (GB of chunk)
    unit: Fraction
    exact: bool  # Times are exact, and not rounded up to a grid

    @property
    def path_start(self) -> NDArray[np.int64]:
        """First node position of each route."""
        return self.port_start + np.arange(len(self.port_start))

    def turned(self) -> ChunkRoutes:
        """Reverse routes on the transposed network; paths stay as they are."""
        return ChunkRoutes(
            src=self.dst,
            dst=self.src,
            duration=self.duration,
            port_start=self.port_start,
            port=self.port,
            hold=self.hold,
            num_ports=self.num_ports,
            path_nodes=self.path_nodes,
            unit=self.unit,
            exact=self.exact,
        )


def chunk_routes_of(topology: Topology, chunk_bytes: int | None, transfers: int) -> ChunkRoutes:
    """Routes of a topology.

    Args:
        chunk_bytes: Size of a chunk; None is the limit of large ones, where latency does not count.
        transfers: How many transfers may follow one another, at most; their times add up to less than 2^61.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> star = chunk_routes_of(preset("star", gpus=3, gb_per_s=25), None, 100)
        >>> star.src.tolist(), star.duration.tolist(), str(star.unit)
        ([0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 1, 1], '1/25')
    """
    src, dst = _pairs(topology)
    ways = WAYS if topology.num_ranks <= MANY_RANKS and (topology.rank < 0).any() else 1
    if len(src) > MOST_ROUTES:
        raise InputError(
            f"tacos matches up to {MOST_ROUTES:,} routes between ranks, found {len(src):,}: use fewer ranks."
        )
    way = np.tile(np.arange(ways), len(src))
    start, nodes = Router(topology).paths(np.repeat(src, ways), np.repeat(dst, ways), way)
    start, nodes = _distinct(start, nodes)
    hops = hops_of(topology, start, nodes)
    port_start = offsets(np.diff(start) - 1)
    duration, hold, unit, exact = _times(topology, hops.link, port_start, chunk_bytes, transfers)
    return ChunkRoutes(
        src=topology.rank[nodes[start[:-1]]],
        dst=topology.rank[nodes[start[1:] - 1]],
        duration=duration,
        port_start=port_start,
        port=hops.link.astype(np.int32),
        hold=hold,
        num_ports=topology.num_links,
        path_nodes=nodes,
        unit=unit,
        exact=exact,
    )


def _pairs(topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranks that a link joins, or a path through nodes without a rank; by receiver."""
    rank = topology.rank
    reached: dict[int, set[int]] = {}  # node without a rank: ranks that lead to it

    into: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        into[b].append(a)

    def sources(node: int) -> set[int]:
        """Ranks from which only nodes without a rank lie in between."""
        if node in reached:
            return reached[node]
        seen, queue, found = {node}, [node], set[int]()
        while queue:
            for before in into[queue.pop()]:
                if rank[before] >= 0:
                    found.add(int(rank[before]))
                elif before not in seen:
                    seen.add(before)
                    queue.append(before)
        reached[node] = found
        return found

    pairs = []
    for receiver, node in enumerate(topology.rank_nodes.tolist()):
        ends: set[int] = set()
        for before in into[node]:
            ends |= {int(rank[before])} if rank[before] >= 0 else sources(before)
        pairs += [(sender, receiver) for sender in sorted(ends - {receiver})]
    columns = np.array(sorted(pairs, key=lambda pair: (pair[1], pair[0])), dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _distinct(
    start: NDArray[np.int64], nodes: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Each path once, by sender and receiver."""
    paths = {tuple(nodes[a:b].tolist()) for a, b in zip(start[:-1].tolist(), start[1:].tolist(), strict=True)}
    listed = sorted(paths, key=lambda path: (path[0], path[-1], path))
    return (
        offsets(np.array([len(path) for path in listed], dtype=np.int64)),
        np.array([node for path in listed for node in path], dtype=np.int32),
    )


def _times(
    topology: Topology,
    link: NDArray[np.int64],
    port_start: NDArray[np.int64],
    chunk_bytes: int | None,
    transfers: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Fraction, bool]:
    """Duration of each route and hold of each of its ports in whole units, the unit, and whether they are exact."""
    rates = [Fraction(c, topology.denominator) for c in topology.capacity.tolist()]
    if chunk_bytes is None:
        latency = [Fraction(0)] * len(rates)
        serving = [1 / rate for rate in rates]
    else:
        latency = [Fraction(str(us)) for us in topology.latency_us.tolist()]
        serving = [chunk_bytes / (1000 * rate) for rate in rates]
    longest = max((a + b for a, b in zip(latency, serving, strict=True)), default=Fraction(1))
    hops = int(np.diff(port_start).max(initial=1))
    most_units = SUM_LIMIT // (max(transfers, 1) * hops)
    common = lcm(*(each.denominator for each in (*latency, *serving)))
    exact = longest * common <= most_units
    unit = Fraction(1, common) if exact else longest / min(most_units // 2, 2**40)
    own = np.array([ceil((a + b) / unit) for a, b in zip(latency, serving, strict=True)], dtype=np.int64)
    wait = np.array([ceil(each / unit) for each in latency], dtype=np.int64)
    hold = own[link]
    serve = hold - wait[link]
    first = port_start[:-1]
    duration = np.add.reduceat(wait[link], first) + np.maximum.reduceat(serve, first) if len(link) else hold
    shared = int(np.gcd.reduce(np.concatenate([duration, hold, wait[wait > 0]]))) if len(link) else 1
    return duration // shared, hold // shared, unit * shared, exact
