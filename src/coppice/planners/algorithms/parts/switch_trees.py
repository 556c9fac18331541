"""Trees with switches as vertices: collect them, and route them through a network of switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.schedule.forest import Forest, Phase
from coppice.topology.model import Topology

Edge = tuple[int, ...]
"""Nodes of the path of a tree edge, from the sender to the receiver."""


@dataclass
class ForestRows:
    """Builder of a forest."""

    topology: Topology  # Where they live
    collective: Collective  # What they implement
    _roots: list[int] = field(default_factory=list)
    _weights: list[int] = field(default_factory=list)
    _phases: list[Phase] = field(default_factory=list)
    _ends: list[int] = field(default_factory=lambda: [0])
    _edges: list[int] = field(default_factory=list)
    _paths: dict[Edge, int] = field(default_factory=dict)

    def add(self, phase: Phase, root: int, edges: Iterable[Edge], weight: int = 1) -> None:
        """Add a tree; its edges are in dataflow order."""
        self._roots.append(root)
        self._weights.append(weight)
        self._phases.append(phase)
        self._edges += [self._paths.setdefault(edge, len(self._paths)) for edge in edges]
        self._ends.append(len(self._edges))

    def forest(self) -> Forest:
        """Build the forest."""
        paths = list(self._paths)
        row = np.array(self._edges, dtype=np.int32)
        first = np.array([path[0] for path in paths], dtype=np.int32)
        last = np.array([path[-1] for path in paths], dtype=np.int32)
        return Forest(
            topology=self.topology,
            collective=self.collective,
            tree_root=np.array(self._roots, dtype=np.int32),
            tree_weight=np.array(self._weights, dtype=np.int64),
            tree_phase=np.array(self._phases, dtype=np.int8),
            tree_start=np.array(self._ends, dtype=np.int64),
            edge_src=first[row],
            edge_dst=last[row],
            edge_path=row,
            path_start=np.cumsum([0, *(len(path) for path in paths)], dtype=np.int64),
            path_nodes=np.array([node for path in paths for node in path], dtype=np.int32),
        )


def upward(topology: Topology, root: int, sources: Sequence[int]) -> list[Edge] | None:
    """Edges from ``sources`` to the switch ``root``, reducing where paths meet.

    Paths have as few links as possible, then as wide ones, and lead through switches and NICs only. Data is added at
    the root and at switches that can; elsewhere paths run beside each other.

    Returns:
        Edges from the far ends to the root, or None where some source has no path.
    """
    return _joined(topology, topology.src, topology.dst, topology.aggregate, root, sources)


def downward(topology: Topology, root: int, sinks: Sequence[int]) -> list[Edge] | None:
    """Edges from ``root`` to ``sinks``, nearest first, with multicast at capable switches."""
    edges = _joined(topology, topology.dst, topology.src, topology.multicast, root, sinks)
    return None if edges is None else [edge[::-1] for edge in reversed(edges)]


def _joined(
    topology: Topology,
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    able: NDArray[np.bool_],
    root: int,
    sources: Sequence[int],
) -> list[Edge] | None:
    following, level = _towards(topology, src, dst, root)
    if any(source not in following for source in sources):
        return None
    entered: Counter[int] = Counter()
    used: set[int] = set()
    for source in sources:
        node = source
        while node != root and node not in used:
            used.add(node)
            node = following[node]
            entered[node] += 1
    joints = {node for node in used if able[node] and entered[node] > 1 and topology.rank[node] < 0} | {root}
    edges = []
    for start in sorted((joints | set(sources)) - {root}, key=lambda node: (-level[node], node)):
        path = [start, following[start]]
        while path[-1] not in joints:
            path.append(following[path[-1]])
        edges.append(tuple(path))
    return edges


def _towards(
    topology: Topology, src: NDArray[np.int32], dst: NDArray[np.int32], root: int
) -> tuple[dict[int, int], dict[int, int]]:
    """The next node on the way to ``root``, and the number of links to it, for every node that has a way."""
    into: dict[int, list[tuple[int, int]]] = {}
    for a, b, capacity in zip(src.tolist(), dst.tolist(), topology.capacity.tolist(), strict=True):
        into.setdefault(b, []).append((-capacity, a))
    following: dict[int, int] = {}
    level = {root: 0}
    front = [root]
    while front:
        offers: dict[int, tuple[int, int]] = {}
        for node in front:
            if node != root and topology.rank[node] >= 0:
                continue
            for width, before in into.get(node, ()):
                if before not in level:
                    offers[before] = min(offers.get(before, (width, node)), (width, node))
        for before, (_, node) in offers.items():
            following[before] = node
            level[before] = level[node] + 1
        front = sorted(offers)
    return following, level


def meeting_points(topology: Topology, members: Sequence[int], *, inside: bool = False) -> list[int]:
    """Capable switches nearest to all ``members`` together, in both directions.

    Args:
        inside: Only switches that all members are linked with directly.
    """
    able = np.flatnonzero((topology.rank < 0) & topology.multicast & topology.aggregate)
    links = topology.link_index
    if inside:
        return [
            switch
            for switch in able.tolist()
            if all((node, switch) in links and (switch, node) in links for node in members)
        ]
    found: dict[int, int] = {}
    for switch in able.tolist():
        _, up = _towards(topology, topology.src, topology.dst, switch)
        _, down = _towards(topology, topology.dst, topology.src, switch)
        if all(node in up and node in down for node in members):
            found[switch] = sum(up[node] + down[node] for node in members)
    return [switch for switch, far in found.items() if far == min(found.values())]
