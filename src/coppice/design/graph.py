"""Graphs of direct-connect networks: nodes with ports joined by links, and Cayley graphs.

Every node has ``degree`` ports out and as many in. A self-loop takes a port of each kind and carries nothing; parallel
links are separate cables that add up. Where the construction of a graph tells an abelian group of automorphisms, the
graph carries it: all nodes that the group maps to each other see the same network, and schedules are computed for one
of them. Node ``x * block + b`` is then the image of node b under element x, elements being numbers in mixed radix
with the last digit fastest.

Translations are automorphisms that map every node to every other one, so that what one node receives decides the
schedule of all. Rings, circulants, tori, hypercubes, Hamming graphs and complete (bipartite) graphs are of this kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError, UnreachableError
from coppice.rows import sorted_rows
from coppice.topology.model import Node, NodeKind, Topology, assign_ranks

MAX_NODES = 2**16
MAX_LINKS = 2**22


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Graph(Brief):
    """Links in compressed-row form; build one with :meth:`of`."""

    name: str  # What it is, such as the recipe that builds it
    degree: int  # Ports of each node in each direction, self-loops counted
    start: NDArray[np.int64]  # Links that leave node v are rows `start[v] .. start[v + 1] - 1` (int64).
    dst: NDArray[np.int32]  # Node that each row enters (int32), ascending within a node
    count: NDArray[np.int64]  # Parallel links of each row (int64, positive)
    # Cyclic factors of the group of automorphisms that is known; empty where none is
    orders: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for column in (self.start, self.dst, self.count):
            column.setflags(write=False)

    @classmethod
    def of(
        cls,
        name: str,
        num_nodes: int,  # Nodes are 0 .. num_nodes - 1.
        src: Iterable[int] | NDArray[np.integer],
        dst: Iterable[int] | NDArray[np.integer],
        *,
        # Ports of a node; None takes the largest number of links that leave or enter one
        degree: int | None = None,
        # Group of automorphisms, as the head of this file describes. Not checked here.
        orders: tuple[int, ...] = (),
    ) -> Graph:
        """Build a graph from directed links.

        Examples:
            >>> ring = Graph.of("ring", 3, [0, 1, 2], [1, 2, 0], orders=(3,))
            >>> ring.num_nodes, ring.num_links, ring.degree
            (3, 3, 1)
        """
        tails, heads = (
            np.asarray(ends if isinstance(ends, np.ndarray) else list(ends)) for ends in (src, dst)
        )
        tails, heads = tails.astype(np.int64), heads.astype(np.int64)
        if not 1 <= num_nodes <= MAX_NODES or len(tails) > MAX_LINKS:
            raise InputError(
                f"expected 1 .. {MAX_NODES:,} nodes and at most {MAX_LINKS:,} links, "
                f"found {num_nodes:,} and {len(tails):,}: choose a smaller graph."
            )
        if len(tails) != len(heads) or (len(tails) and not _within(tails, heads, num_nodes)):
            raise InputError(
                f"expected links between nodes 0 .. {num_nodes - 1}, found others: mend the ends."
            )
        ports = max(int(np.bincount(ends, minlength=num_nodes).max(initial=0)) for ends in (tails, heads))
        if degree is not None and ports > degree:
            raise InputError(
                f"expected at most {degree} links per node and direction, found {ports}: give it more ports."
            )
        key, count = np.unique(tails * num_nodes + heads, return_counts=True)
        return cls(
            name=name,
            degree=ports if degree is None else degree,
            start=np.searchsorted(key, np.arange(num_nodes + 1) * num_nodes).astype(np.int64),
            dst=(key % num_nodes).astype(np.int32),
            count=count.astype(np.int64),
            orders=orders,
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return len(self.start) - 1

    @property
    def num_links(self) -> int:
        """Number of directed links, parallel ones and self-loops counted one by one."""
        return int(self.count.sum())

    @cached_property
    def src(self) -> NDArray[np.int32]:
        """Node that each row leaves."""
        return np.repeat(np.arange(self.num_nodes, dtype=np.int32), np.diff(self.start))

    @property
    def block(self) -> int:
        """Orbits of the nodes under the known automorphisms."""
        return self.num_nodes // prod(self.orders)

    @cached_property
    def bidirectional(self) -> bool:
        """Whether every link has a reverse of the same rate, so that port pairs are full-duplex cables."""
        forward, back = self._keys(self.src, self.dst), self._keys(self.dst, self.src)
        order = np.argsort(back)
        return bool(np.array_equal(forward, back[order]) and np.array_equal(self.count, self.count[order]))

    @cached_property
    def simple(self) -> bool:
        """Whether there are no self-loops and no parallel links."""
        return bool((self.count == 1).all() and (self.src != self.dst).all())

    def transposed(self) -> Graph:
        """The same nodes with every link reversed; known automorphisms are kept."""
        order = np.argsort(self._keys(self.dst, self.src))
        return Graph(
            name=f"transpose of {self.name}",
            degree=self.degree,
            start=np.searchsorted(self.dst[order], np.arange(self.num_nodes + 1)).astype(np.int64),
            dst=self.src[order],
            count=self.count[order],
            orders=self.orders,
        )

    def single_links(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(src, dst) of every link, parallel ones repeated, in row order."""
        return np.repeat(self.src, self.count), np.repeat(self.dst, self.count)

    def to_topology(self, *, gb_per_s: Fraction | int = 1, latency_us: float = 0.0) -> Topology:
        """Convert to a topology of GPUs; self-loops are dropped, parallel links merged."""
        rate = Fraction(gb_per_s)
        if rate <= 0 or not 0 <= latency_us < float("inf"):
            raise InputError(
                f"expected a rate above 0 GB/s and a latency of 0 us or more, found {rate} and {latency_us}."
            )
        keep = self.src != self.dst
        common = np.gcd.reduce(self.count[keep]) if keep.any() else 1
        unit = rate * int(common)  # so that capacities and denominator have no common divisor
        nodes = [Node(id=f"gpu{v}") for v in range(self.num_nodes)]
        return Topology(
            name=self.name,
            node_ids=tuple(node.id for node in nodes),
            kind=np.full(self.num_nodes, NodeKind.GPU, dtype=np.int8),
            host=np.full(self.num_nodes, -1, dtype=np.int32),
            hosts=(),
            rank=assign_ranks(nodes),
            multicast=np.zeros(self.num_nodes, dtype=np.bool_),
            aggregate=np.zeros(self.num_nodes, dtype=np.bool_),
            src=self.src[keep],
            dst=self.dst[keep],
            capacity=self.count[keep] // common * unit.numerator,
            denominator=unit.denominator,
            latency_us=np.full(int(keep.sum()), latency_us, dtype=np.float64),
            source="by definition of the graph; rates as given",
        )

    def check_connected(self) -> None:
        """Refuse a graph that is not strongly connected."""
        for graph, words in (
            (self, "node 0 cannot reach node {}"),
            (self.transposed(), "node {} cannot reach node 0"),
        ):
            seen = np.zeros(graph.num_nodes, dtype=np.bool_)
            seen[0] = True
            edge = np.zeros(1, dtype=np.int64)
            while len(edge):
                rows = np.concatenate([np.arange(graph.start[v], graph.start[v + 1]) for v in edge.tolist()])
                ahead = np.unique(graph.dst[rows.astype(np.int64)])
                edge = ahead[~seen[ahead]].astype(np.int64)
                seen[edge] = True
            if not seen.all():
                found = words.format(int(np.argmin(seen)))
                raise UnreachableError(
                    f"every node must reach every other in {self.name}, found that {found}: add links."
                )

    def _keys(self, src: NDArray[np.int32], dst: NDArray[np.int32]) -> NDArray[np.int64]:
        return src.astype(np.int64) * self.num_nodes + dst


def _within(tails: NDArray[np.int64], heads: NDArray[np.int64], num_nodes: int) -> bool:
    low, high = min(tails.min(), heads.min()), max(tails.max(), heads.max())
    return bool(low >= 0 and high < num_nodes)


def graph_of(topology: Topology) -> tuple[Graph, int]:
    """Graph of a direct-connect topology, with rates as link multiplicities.

    Args:
        topology: GPUs only; node r of the graph is rank r.

    Returns:
        The graph, whose degree is the largest rate at which a node sends, and the least rate, in the same unit: the
        greatest common divisor of all rates.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> graph, least = graph_of(preset("ring", gpus=4, gb_per_s=25))
        >>> graph.num_nodes, graph.degree, least
        (4, 2, 1)
    """
    others = np.flatnonzero(topology.rank < 0)
    if len(others):
        found = f"{len(others)} nodes that are none, such as {topology.node_ids[int(others[0])]!r}"
        raise InputError(
            f"expected a direct-connect topology of ranks only, found {found}: use `coppice plan` for it."
        )
    ranks = topology.num_ranks
    if not 1 <= ranks <= MAX_NODES or topology.num_links > MAX_LINKS:
        raise InputError(
            f"expected 1 .. {MAX_NODES:,} ranks and at most {MAX_LINKS:,} links, found {ranks:,} ranks."
        )
    src, dst = topology.rank[topology.src], topology.rank[topology.dst]
    order = sorted_rows(src.astype(np.int64), dst.astype(np.int64))
    unit = max(1, int(np.gcd.reduce(topology.capacity))) if topology.num_links else 1
    count = topology.capacity[order] // unit
    sent = np.zeros(ranks, dtype=np.int64)
    np.add.at(sent, src[order], count)
    graph = Graph(
        name=topology.name,
        degree=int(sent.max(initial=0)),
        start=np.searchsorted(src[order], np.arange(ranks + 1)).astype(np.int64),
        dst=dst[order].astype(np.int32),
        count=count,
    )
    return graph, int(count.min(initial=1)) if len(count) else 1


def cayley_graph(name: str, orders: Sequence[int], jumps: Iterable[Sequence[int]]) -> Graph:
    """The Cayley graph of ``Z_n1 x Z_n2 x ...`` with the given jumps, repeated ones as parallel links.

    Args:
        orders: n1, n2, ...
        jumps: One digit for each factor, taken modulo its order.

    Examples:
        >>> cayley_graph("square", [4], [[1], [-1]]).dst.tolist()
        [1, 3, 0, 2, 1, 3, 0, 2]
    """
    size = tuple(orders)
    nodes = prod(size)
    steps = np.array([list(jump) for jump in jumps], dtype=np.int64).reshape(-1, len(size))
    place = np.array([prod(size[axis + 1 :]) for axis in range(len(size))], dtype=np.int64)
    heads = (digits(np.arange(nodes), size)[:, None, :] + steps[None, :, :]) % np.array(size) @ place
    return Graph.of(name, nodes, np.repeat(np.arange(nodes), len(steps)), heads.ravel(), orders=size)


def with_inverses(order: int, jumps: Iterable[int]) -> list[int]:
    """Jumps and their inverses in ``Z_order``, without repetition."""
    return sorted({sign * jump % order for jump in jumps for sign in (1, -1)})


def digits(element: NDArray[np.integer], orders: Sequence[int]) -> NDArray[np.int64]:
    """Mixed-radix digits of group elements along a new last axis."""
    rest = np.asarray(element, dtype=np.int64)
    columns = []
    for order in reversed(orders):
        columns.append(rest % order)
        rest = rest // order
    return np.stack(columns[::-1], axis=-1) if columns else np.zeros((*rest.shape, 0), dtype=np.int64)


def translated(graph: Graph) -> NDArray[np.int32]:
    """``table[x, v]``: image of node v under element x of the known automorphisms.

    Examples:
        >>> translated(cayley_graph("triangle", [3], [[1], [2]])).tolist()
        [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    """
    orders = graph.orders
    elements = np.arange(prod(orders), dtype=np.int32)
    total = np.zeros((len(elements), len(elements)), dtype=np.int32)
    unit = 1
    for order in reversed(orders):
        digit = elements // unit % order
        total += (digit[:, None] + digit[None, :]) % np.int32(order) * np.int32(unit)
        unit *= order
    if graph.block == 1:
        return total
    inner = np.arange(graph.block, dtype=np.int32)
    return (total[:, :, None] * np.int32(graph.block) + inner).reshape(len(elements), graph.num_nodes)
