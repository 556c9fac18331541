"""The physical links of paths: a table of node sequences becomes a table of link ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.topology.model import Topology

__all__ = ["Hops", "hops_of"]


@dataclass(frozen=True, eq=False, slots=True)
class Hops:
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


def hops_of(topology: Topology, path_start: NDArray[np.integer], path_nodes: NDArray[np.int32]) -> Hops:
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
    return Hops(path=path_of_node[~last], link=link, src=src, dst=dst, num_paths=len(lengths))
