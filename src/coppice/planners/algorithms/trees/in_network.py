"""Algorithms with switch multicast and reduction, along trees of ranks and switches: NCCL's NVLS, NVLSTree, CollNet.

The data is cut into slices, one for each *head*. Inside every box its ranks bring a slice to the head of that slice;
the heads of a slice in all boxes add it up among themselves; the result goes back the same way.

               inside a box                          between the boxes
    nvls            added and copied in the box's switch   in a switch of the network
    nvls-tree       the same                               two complementary binary trees of the heads
    collnet-direct  straight to and from the head          in a switch of the network
    collnet-chain   along a chain to and from the head     in a switch of the network

Member j of every box is the head of slice j, if it reaches the network where that is needed. In one box of g ranks,
nvls takes two hops up (all to the switch, the sum to the head) and two down; every rank sends (g - 1)/g M to be added
and its slice M/g to be copied, M in all where a ring sends 2 (g - 1)/g M, and receives as much. With h heads, the
network takes M/h from each and gives it back: two messages per slice. nvls-tree passes each slice up and down trees of
depth ceil(lg m) for m boxes instead. The time depends on the topology.

NCCL 2.30: src/transport/nvls.cc and coll_net.cc; the network's switches are those of SHARP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.boxes import boxes
from coppice.planners.algorithms.parts.trees import depths, pair_of_trees
from coppice.schedule.forest import Forest, Phase
from coppice.topology.model import Topology
from coppice.topology.routing import Router

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


Inside = Callable[["_SwitchedBoxes", int, int], list[Edge]]
"""Edges that bring a slice from the members of a box to its head: (cluster, box, head)."""


class _SwitchedBoxes:
    """The boxes of a topology, and the switches that serve them."""

    def __init__(self, topology: Topology, *, nvls: bool) -> None:
        self.topology = topology
        self.router = Router(topology)
        nodes = topology.rank_nodes.tolist()
        self.boxes = [[nodes[rank] for rank in box] for box in _boxes(topology, nvls=nvls)]
        self.size = len(self.boxes[0])
        self.even = all(len(box) == self.size for box in self.boxes)

    @property
    def several(self) -> bool:
        """There is something between boxes."""
        return len(self.boxes) > 1

    def switches(self, box: int) -> list[int]:
        """Switches of a box that copy and add, and that all its members are linked with."""
        members = self.boxes[box]
        host = self.topology.host
        near = meeting_points(self.topology, members, inside=True)
        return [switch for switch in near if not self.several or host[switch] == host[members[0]]]

    def heads(self, member: int) -> list[int]:
        """Member ``member`` of every box."""
        return [box[member] for box in self.boxes]


@lru_cache(maxsize=8)
def _cluster(topology: Topology, *, nvls: bool) -> _SwitchedBoxes:
    return _SwitchedBoxes(topology, nvls=nvls)


def _boxes(topology: Topology, *, nvls: bool) -> tuple[tuple[int, ...], ...]:
    """Ranks by host. Ranks without hosts are alone, or for NVLS in one box where one switch serves them all."""
    ranks = tuple(range(topology.num_ranks))
    hosts = set(topology.host[topology.rank_nodes].tolist())
    if -1 in hosts:
        served = nvls and meeting_points(topology, topology.rank_nodes.tolist(), inside=True)
        return (ranks,) if served or len(ranks) == 1 else tuple((rank,) for rank in ranks)
    if len(hosts) == 1:
        return (ranks,)
    return boxes(topology) if len(hosts) < len(ranks) else tuple((rank,) for rank in ranks)


def _switched(cluster: _SwitchedBoxes, box: int, head: int) -> list[Edge]:
    """Up to the box's switch and from there to the head; several switches take turns."""
    members = cluster.boxes[box]
    if len(members) == 1:
        return []
    switches = cluster.switches(box)
    switch = switches[head % len(switches)]
    at = members[head]
    return [*((node, switch) for node in members if node != at), (switch, at)]


def _straight(cluster: _SwitchedBoxes, box: int, head: int) -> list[Edge]:
    """All members straight to the head."""
    members = cluster.boxes[box]
    at = members[head]
    return [cluster.router.node_path(node, at) for node in members if node != at]


def _chained(cluster: _SwitchedBoxes, box: int, head: int) -> list[Edge]:
    """Along the chain of the members that begins at the head."""
    members = cluster.boxes[box]
    chain = members[head:] + members[:head]
    return [cluster.router.node_path(chain[n], chain[n - 1]) for n in range(len(chain) - 1, 0, -1)]


def _slices(cluster: _SwitchedBoxes) -> dict[int, list[int]]:
    """Heads that meet in switches of the network, with these switches."""
    found = {
        member: meeting_points(cluster.topology, cluster.heads(member)) for member in range(cluster.size)
    }
    return {member: switches for member, switches in found.items() if switches}


def _through_network(cluster: _SwitchedBoxes, inside: Inside) -> Forest:
    """Slices that are added up in the network."""
    topology = cluster.topology
    rows = ForestRows(topology, Collective.ALL_REDUCE)
    slices = _slices(cluster)
    shares = lcm(*(len(switches) for switches in slices.values()))
    for member, switches in slices.items():
        into = [edge for box in range(len(cluster.boxes)) for edge in inside(cluster, box, member)]
        for switch in switches:
            heads = cluster.heads(member)
            up, down = upward(topology, switch, heads) or [], downward(topology, switch, heads) or []
            weight = shares // len(switches)
            rows.add(Phase.REDUCE, switch, into + up, weight)
            rows.add(Phase.BROADCAST, switch, down + _mirrored(cluster, into), weight)
    return rows.forest()


def _through_trees(cluster: _SwitchedBoxes, inside: Inside) -> Forest:
    """Slices that heads add up along two binary trees of boxes, half of the data in each; one box needs none."""
    rows = ForestRows(cluster.topology, Collective.ALL_REDUCE)
    for member in range(cluster.size):
        heads = cluster.heads(member)
        for parents in pair_of_trees(len(heads)):
            depth = depths(parents)
            up: list[Edge] = []
            for box in sorted(range(len(heads)), key=lambda box: -depth[box]):
                up += inside(cluster, box, member)
                if parents[box] >= 0:
                    up.append(cluster.router.node_path(heads[box], heads[parents[box]]))
            root = heads[parents.index(-1)]
            rows.add(Phase.REDUCE, root, up)
            rows.add(Phase.BROADCAST, root, _mirrored(cluster, up))
    return rows.forest()


def _mirrored(cluster: _SwitchedBoxes, edges: list[Edge]) -> list[Edge]:
    """The way back: edges reversed, and default routes where a link has no reverse."""
    links = cluster.topology.link_index
    back = []
    for edge in reversed(edges):
        path = edge[::-1]
        whole = all(hop in links for hop in pairwise(path))
        back.append(path if whole else cluster.router.node_path(path[0], path[-1]))
    return back


def _in_one_box(case: AlgorithmCase) -> Forest:
    """NVLS all-gather and reduce-scatter: block r is copied, or added, in the switch for rank r."""
    cluster = _cluster(case.topology, nvls=True)
    rows = ForestRows(case.topology, case.collective)
    for head, node in enumerate(cluster.boxes[0] if case.size > 1 else ()):
        edges = _switched(cluster, 0, head)
        if case.collective is Collective.REDUCE_SCATTER:
            rows.add(Phase.REDUCE, node, edges)
        else:
            rows.add(Phase.BROADCAST, node, _mirrored(cluster, edges))
    return rows.forest()


def _needs(name: str, *, nvls: bool, network: bool) -> Callable[[AlgorithmCase], str | None]:
    """The missing switch, in words."""

    def needs(case: AlgorithmCase) -> str | None:
        if case.size == 1:
            return None
        cluster = _cluster(case.topology, nvls=nvls)
        where = case.topology.name
        if not cluster.even:
            sizes = sorted({len(box) for box in cluster.boxes})
            return (
                f"{name} needs boxes of equal size, found {sizes} ranks on {where}: choose another algorithm."
            )
        if nvls:
            for box, members in enumerate(cluster.boxes):
                if len(members) > 1 and not cluster.switches(box):
                    first = case.topology.node_ids[members[0]]
                    return (
                        f"{name} needs a switch with multicast and aggregate next to all GPUs of a box, "
                        f"found none at {first} on {where}: set both flags, or choose another algorithm."
                    )
        if nvls and cluster.size == 1:
            return f"{name} needs boxes of 2 or more ranks, found single ones on {where}: choose another algorithm."
        if network and not nvls and not cluster.several:
            return f"{name} needs several boxes, found one on {where}: choose another algorithm."
        if network and cluster.several and not _slices(cluster):
            return (
                f"{name} needs a switch with multicast and aggregate between the boxes, found none on {where}: "
                "set both flags on the network's switches, or choose another algorithm."
            )
        if case.collective is not Collective.ALL_REDUCE and cluster.several:
            found = len(cluster.boxes)
            return f"{name} performs {case.collective} in one box, found {found}: choose another algorithm."
        return None

    return needs


def _all_reduce(name: str, inside: Inside, *, network: bool, summary: str, source: str) -> Algorithm:
    nvls = inside is _switched

    def build(case: AlgorithmCase) -> Forest:
        if case.size == 1:
            return ForestRows(case.topology, case.collective).forest()
        cluster = _cluster(case.topology, nvls=nvls)
        try:
            if network and cluster.several:
                return _through_network(cluster, inside)
            return _through_trees(cluster, inside)
        except UnreachableError as error:
            raise UnreachableError(f"algorithm {name} does not fit {case.topology.name}: {error}") from None

    return Algorithm(
        name=name,
        collective=Collective.ALL_REDUCE,
        build=build,
        summary=summary,
        source=source,
        needs=_needs(name, nvls=nvls, network=network),
        topological=True,
    )


_NVLS = _all_reduce(
    "nvls",
    _switched,
    network=True,
    summary="added and copied in the switch of the box, between boxes in the network's switches",
    source="NCCL 2.17 and later",
)

ALGORITHMS = (
    _all_reduce(
        "collnet-chain",
        _chained,
        network=True,
        summary="chains in the boxes to heads, whose slices the network's switches add up",
        source="NCCL 2.6 and later, with SHARP",
    ),
    _all_reduce(
        "collnet-direct",
        _straight,
        network=True,
        summary="straight to heads in the boxes, whose slices the network's switches add up",
        source="NCCL 2.14 and later, with SHARP",
    ),
    _NVLS,
    *(
        replace(
            _NVLS, collective=collective, build=_in_one_box, needs=_needs("nvls", nvls=True, network=False)
        )
        for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    ),
    _all_reduce(
        "nvls-tree",
        _switched,
        network=False,
        summary="added and copied in the switches of the boxes, two binary trees of heads between them",
        source="NCCL 2.18 and later",
    ),
)
