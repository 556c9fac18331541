"""Aggregation trees: the default routes of a group's ranks towards one root.

Every node passes what it has towards the root over the first link of its default route there, so that each node has one
parent. A rank sends one stream. A switch that adds sends one stream, however many come in; any other node sends on what
comes in. The result goes back over the same links: a switch that adds also copies, any other gets a copy for each
stream that it sent up. So a link carries as many streams in one direction as in the other, and counts with the rate of
its slower direction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from coppice.errors import InputError, UnreachableError
from coppice.topology.model import NodeKind, Topology
from coppice.topology.routing import Router


class AddingNetwork:
    """A topology's links, routes and aggregating switches, as placement needs them."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology  # The topology
        self.router = Router(topology)  # Its default routing
        kinds = topology.kind.tolist()
        featured = (topology.aggregate & topology.multicast).tolist()
        # Nodes that have it: the topology says that they add and copy
        self.given = frozenset(v for v, kind in enumerate(kinds) if kind != NodeKind.GPU and featured[v])
        # Nodes that can be given the feature, in id order
        self.switches = [v for v, kind in enumerate(kinds) if kind == NodeKind.SWITCH and v not in self.given]
        capacities = topology.capacity.tolist()
        rates: dict[tuple[int, int], int] = {}
        for (a, b), link in topology.link_index.items():
            key = (min(a, b), max(a, b))
            rates[key] = min(rates.get(key, capacities[link]), capacities[link])
        self._one_way = {
            (min(a, b), max(a, b)) for a, b in topology.link_index if (b, a) not in topology.link_index
        }
        # Links as pairs of nodes, the smaller id first, each with the rate of its slower direction
        self.edges = sorted(rates)
        self.edge_index = {edge: at for at, edge in enumerate(self.edges)}
        self.whole = lcm(*rates.values())  # A multiple of all rates
        # `whole` over the rate, of each of them: the time of a byte in `nanoseconds`
        self.cost = [self.whole // rates[edge] for edge in self.edges]
        self.nanoseconds = Fraction(topology.denominator, self.whole)  # The unit of costs
        self.ranks: list[int] = topology.rank_nodes.tolist()  # Node of each rank
        to: list[list[int]] = [[] for _ in kinds]
        for a, b in topology.link_index:
            to[a].append(b)
        # What has one way out needs no routing; a rank passes nothing on.
        # The switch or NIC that a node has its only link to, or None
        self.only_neighbour = [
            each[0] if len(each) == 1 and topology.rank[each[0]] < 0 else None for each in to
        ]

    def edge(self, a: int, b: int) -> int:
        """The number of the link between two nodes."""
        key = (min(a, b), max(a, b))
        if key in self._one_way:
            ids = self.topology.node_ids
            raise InputError(
                f"expected links in both directions, found {ids[a]} and {ids[b]} linked one way: a sum comes back over "
                f"the links that it was made on."
            )
        return self.edge_index[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregationTree:
    """An aggregation tree: the default routes of some ranks towards one root."""

    root: int  # Its node
    nodes: tuple[int, ...]  # Switches and NICs in it, children before parents, the root last
    parent: tuple[int, ...]  # Position of the parent of each of `nodes`; -1 of the root
    edge: tuple[int, ...]  # Link to the parent; -1 of the root
    direct: tuple[int, ...]  # How many ranks send to each of them
    rank_edges: tuple[int, ...]  # Links of the ranks, one stream each


def build_tree(network: AddingNetwork, members: Sequence[int], root: int) -> AggregationTree | None:
    """Build the tree of a group of ranks towards a node, or None where one of them has no route there.

    Args:
        members: Nodes of the ranks; the root may be one of them, and adds what the others send.
        root: A switch, a NIC or a rank's node.
    """
    router, parents = network.router, {root: -1}
    try:
        for member in members:
            node = member
            while node not in parents:
                only = network.only_neighbour[node]
                parents[node] = router.node_path(node, root)[1] if only is None else only
                node = parents[node]
    except UnreachableError:
        return None
    depth = _depths(parents)
    is_member = set(members)
    inner = sorted((v for v in parents if v == root or v not in is_member), key=lambda v: (-depth[v], v))
    place = {v: at for at, v in enumerate(inner)}
    direct = [0] * len(inner)
    rank_edges = []
    for member in members:
        if member != root:
            direct[place[parents[member]]] += 1
            rank_edges.append(network.edge(member, parents[member]))
    return AggregationTree(
        root=root,
        nodes=tuple(inner),
        parent=tuple(place[parents[v]] if v != root else -1 for v in inner),
        edge=tuple(network.edge(v, parents[v]) if v != root else -1 for v in inner),
        direct=tuple(direct),
        rank_edges=tuple(rank_edges),
    )


def _depths(parents: Mapping[int, int]) -> dict[int, int]:
    """Depth of each node of a tree."""
    depth = {-1: -1}
    for node in parents:
        way = []
        while node not in depth:
            way.append(node)
            node = parents[node]
        for each in reversed(way):
            depth[each] = depth[parents[each]] + 1
    return depth


def stream_counts(tree: AggregationTree, featured: Collection[int]) -> dict[int, int]:
    """Count the streams in each direction on every link of a tree."""
    coming = list(tree.direct)
    found = dict.fromkeys(tree.rank_edges, 1)
    for at, node in enumerate(tree.nodes[:-1]):
        out = 1 if node in featured else coming[at]
        coming[tree.parent[at]] += out
        found[tree.edge[at]] = out
    return found


def busiest(
    costs: Sequence[int], loads: Iterable[Mapping[int, int]], sizes: Sequence[int]
) -> tuple[int, int]:
    """Find the largest cost of a link under several loads, and the first link that has it.

    Args:
        costs: Of a byte on each link.
        loads: Streams on links, of each group.
    """
    total: dict[int, int] = {}
    for streams, size in zip(loads, sizes, strict=True):
        for edge, count in streams.items():
            total[edge] = total.get(edge, 0) + count * size
    cost, place = max((costs[edge] * load, -edge) for edge, load in total.items())
    return cost, -place
