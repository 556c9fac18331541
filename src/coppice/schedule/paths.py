"""Paths of transfers: default routes where none is named, and the physical links that a path takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology
from coppice.topology.routing import Router

__all__ = ["PathHops", "hops_of", "routed"]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class PathHops(Brief):
    """Links of each path.

    Attributes:
        path: Path of each hop (int64), ascending.
        link: Link of each hop, or -1 where the topology has none between the two nodes (int64).
        src: Node that the hop leaves (int32).
        dst: Node that the hop enters (int32).
        num_paths: Number of paths.
    """

    path: NDArray[np.int64]
    link: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    num_paths: int

    def latency_us(self, topology: Topology) -> NDArray[np.float64]:
        """Sum of the link latencies of each path in microseconds."""
        total = np.zeros(self.num_paths, dtype=np.float64)
        np.add.at(total, self.path, topology.latency_us[self.link])
        return total


def hops_of(topology: Topology, path_start: NDArray[np.integer], path_nodes: NDArray[np.int32]) -> PathHops:
    """The hops of a table of paths, each path having two nodes or more.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.topology.model import Link, Node
        >>> line = Topology.of("line", [Node(id="a"), Node(id="b"), Node(id="c")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(1)),
        ...                     Link(src="b", dst="c", gb_per_s=Fraction(1))])
        >>> hops_of(line, np.array([0, 3]), np.array([0, 1, 2])).link.tolist()
        [0, 2]
    """
    lengths = np.diff(path_start)
    path_of_node = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    last = np.zeros(len(path_nodes), dtype=np.bool_)
    last[path_start[1:] - 1] = True
    src = path_nodes[~last]
    first = np.zeros(len(path_nodes), dtype=np.bool_)
    first[path_start[:-1]] = True
    dst = path_nodes[~first]
    key = src.astype(np.int64) * topology.num_nodes + dst
    link_key = topology.src.astype(np.int64) * topology.num_nodes + topology.dst
    order = np.argsort(link_key, kind="stable")
    link_key = link_key[order]
    place = np.searchsorted(link_key, key)
    link = np.full(len(key), -1, dtype=np.int64)
    inside = place < len(link_key)
    found = np.flatnonzero(inside)[link_key[place[inside]] == key[inside]]
    link[found] = order[place[found]]
    return PathHops(path=path_of_node[~last], link=link, src=src, dst=dst, num_paths=len(lengths))


def routed(schedule: Schedule, *, relay_gpus: bool = False, seed: int = 0) -> Schedule:
    """The schedule with a path for every transfer; the same schedule where all have one.

    A transfer that names no path takes the topology's default route. All that two ranks exchange in steps takes one
    route, so that what is sent in a step stays one message. Without steps, the chunks of a slot count as channels of
    their pair of ranks, and spread over paths that are equally good.

    Args:
        schedule: A schedule with well-formed columns.
        relay_gpus: Where no path of switches and NICs exists, other ranks may pass data on.
        seed: Another choice among equally good routes, as another hash of the flows would make; 0 is the default.

    Raises:
        UnreachableError: If no such path leads from a sender to its receiver.
    """
    open_rows = np.flatnonzero(schedule.path < 0)
    if not len(open_rows):
        return schedule
    first_of_slot = np.searchsorted(schedule.chunk_slot, schedule.chunk_slot)
    channel = np.arange(schedule.num_chunks) - first_of_slot
    channel_of = np.where(schedule.step[open_rows] < 0, channel[schedule.chunk[open_rows]], 0)
    # Sorted by receiver, as the router searches once for each. Pairs are numbered, so that no key leaves 64 bits.
    ranks, channels = schedule.topology.num_ranks, int(channel.max()) + 1
    pair = schedule.dst[open_rows].astype(np.int64) * ranks + schedule.src[open_rows]
    pairs, pair_of = np.unique(pair, return_inverse=True)
    keys, row_of = np.unique(pair_of * channels + channel_of, return_inverse=True)
    receiver, sender = np.divmod(pairs[keys // channels], ranks)
    router = Router(schedule.topology, relay_gpus=relay_gpus, seed=seed)
    start, nodes = router.paths(sender, receiver, keys % channels)
    path = schedule.path.copy()
    path[open_rows] = len(schedule.path_start) - 1 + row_of.reshape(-1)
    return replace(
        schedule,
        path=path,
        path_start=np.concatenate([schedule.path_start, schedule.path_start[-1] + start[1:]]),
        path_nodes=np.concatenate([schedule.path_nodes, nodes]),
    )
