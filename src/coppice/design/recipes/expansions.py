"""Expansions: larger graphs from smaller ones, with schedules derived from theirs.

Source: Efficient Direct-Connect Topologies (arXiv 2202.03356). With N nodes of degree d, T steps and bandwidth time B
(in units of M over the bandwidth of a node) before, and N', d', T', B' after:

    line graph              N' = d N, d' = d       T' = T + 1, B' = B + 1/N
    degree expansion by n   N' = n N, d' = n d     T' = T + 1, B' = B + (n - 1) / (n N)
    Cartesian power n       N' = N^n, d' = n d     T' = n T,   B' = B N / (N - 1) (N^n - 1) / N^n
    Cartesian product       N' = N1 N2, d' = d1 + d2   T' = T1 + T2, optimal where both factors are
    graph and transpose     N' = N, d' = 2 d       T' = T, B' = B where the transpose has the same

The first keeps a diameter that the Moore bound cannot improve, the others keep a bandwidth time of (N - 1) / N.

Figures follow without building anything; the schedules are those of :mod:`coppice.design.schedules.expanded`.

Why products of optimal graphs are optimal: where breadth-first broadcast attains (N - 1) / N, every node has the same
number k_t of sources at distance t, balanced over its d links. In the product of two such graphs, sources at distance
(a, 0) must arrive along the first, those at (0, b) along the second, and all others may come either way in any ratio.
Balance over all links is possible if the k1_t sources at (t, 0) are no more than the first graph's part of all, which
holds if k1_t d2 <= d1 (k2_t + sum of k1_a k2_b); and the term of b = 1 alone suffices, since k2_1 = d2 in a graph
without self-loops and parallel links, and k1_t <= d1 k1_{t-1} in any graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from coppice.design.families.family import Size, optimum
from coppice.design.graph import Graph, translated
from coppice.errors import InputError


def line_graph(graph: Graph, name: str = "") -> Graph:
    """Line graph: a node for every link, in row order, and a link from (u, v) to every (v, w).

    Parallel links become separate nodes. Links of nodes that automorphisms map to each other are mapped likewise; a
    node's links are therefore taken by the jump that they stand for, so that the known group is kept.

    Args:
        graph: Every node of it must use all its ports.
        name: Name of the result; empty: one made from the graph's.

    Examples:
        >>> from coppice.design.graph import cayley_graph
        >>> kautz = line_graph(cayley_graph("K3", [3], [[1], [2]]))
        >>> kautz.num_nodes, kautz.degree
        (6, 2)
    """
    heads = out_links(graph)
    degree = heads.shape[1]
    inner = np.repeat(heads.ravel()[:, None].astype(np.int64), degree, axis=1) * degree + np.arange(degree)
    nodes = graph.num_nodes * degree
    return Graph.of(
        name or f"line({graph.name})",
        nodes,
        np.repeat(np.arange(nodes), degree),
        inner.ravel(),
        degree=degree,
        orders=graph.orders,
    )


def out_links(graph: Graph) -> NDArray[np.int32]:
    """``heads[v, i]``: head of link i of node v; link i of v's image is the image of link i of v."""
    ports = np.bincount(graph.src, weights=graph.count, minlength=graph.num_nodes)
    if len(graph.count) == 0 or int(ports.min()) != graph.degree:
        raise InputError(
            f"expected {graph.degree} links from every node of {graph.name}, found {int(ports.min(initial=0))} "
            "from one: expand a regular graph."
        )
    heads = graph.single_links()[1].reshape(graph.num_nodes, graph.degree)
    if not graph.orders:
        return np.asarray(heads, dtype=np.int32)
    block = graph.block
    first = heads[:block]  # links of the nodes that stand for all
    images = translated(graph)[:, first.ravel()]
    return np.asarray(images.reshape(graph.num_nodes, graph.degree), dtype=np.int32)


def degree_expansion(graph: Graph, copies: int, name: str = "") -> Graph:
    """Copy every node ``copies`` times, and link every copy of u with every copy of v for a link (u, v).

    Copy i of node v is node ``v * copies + i``.

    Examples:
        >>> from coppice.design.graph import cayley_graph
        >>> degree_expansion(cayley_graph("K2", [2], [[1]]), 3).num_nodes
        6
    """
    if copies < 1 or bool((graph.src == graph.dst).any()):
        raise InputError(
            f"expected a graph without self-loops and 1 or more copies, found {graph.name} and {copies}."
        )
    src, dst = graph.single_links()
    copy = np.arange(copies)
    tails = src[:, None, None].astype(np.int64) * copies + copy[None, :, None]
    heads = dst[:, None, None].astype(np.int64) * copies + copy[None, None, :]
    tails, heads = np.broadcast_arrays(tails, heads)
    orders = (*graph.orders, copies) if graph.orders and graph.block == 1 else graph.orders
    return Graph.of(
        name or f"degree({graph.name}, {copies})",
        graph.num_nodes * copies,
        tails.ravel(),
        heads.ravel(),
        degree=graph.degree * copies,
        orders=orders,
    )


def cartesian_product(graphs: Sequence[Graph], name: str = "") -> Graph:
    """Cartesian product: nodes are tuples, the last place fastest; links change one place.

    Examples:
        >>> from coppice.design.graph import cayley_graph
        >>> ring = cayley_graph("ring", [5], [[1], [4]])
        >>> cartesian_product([ring, ring]).degree
        4
    """
    if not graphs:
        raise InputError("expected one graph or more to multiply, found none.")
    made = reduce(_pair, graphs)
    return Graph(
        name=name or " * ".join(graph.name for graph in graphs),
        degree=sum(graph.degree for graph in graphs),
        start=made.start,
        dst=made.dst,
        count=made.count,
        orders=made.orders,
    )


def _pair(first: Graph, second: Graph) -> Graph:
    n1, n2 = first.num_nodes, second.num_nodes
    (src1, dst1), (src2, dst2) = first.single_links(), second.single_links()
    across, along = np.arange(n2), np.arange(n1)[:, None] * n2
    tails = [(src1[:, None].astype(np.int64) * n2 + across).ravel(), (along + src2).ravel()]
    heads = [(dst1[:, None].astype(np.int64) * n2 + across).ravel(), (along + dst2).ravel()]
    orders = first.orders
    if first.block == 1 and first.orders:
        orders = (*first.orders, *second.orders)
    return Graph.of(
        "",
        n1 * n2,
        np.concatenate(tails),
        np.concatenate(heads),
        degree=first.degree + second.degree,
        orders=orders,
    )


def with_transpose(graph: Graph, name: str = "") -> Graph:
    """Union of a graph and its transpose: links become full-duplex cables, and the degree doubles.

    Examples:
        >>> from coppice.design.graph import cayley_graph
        >>> with_transpose(cayley_graph("ring", [5], [[1]])).bidirectional
        True
    """
    src, dst = graph.single_links()
    return Graph.of(
        name or f"bidirectional({graph.name})",
        graph.num_nodes,
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        degree=2 * graph.degree,
        orders=graph.orders,
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """Steps and bandwidth time of an all-gather that a recipe guarantees."""

    ranks: int  # Number of nodes, N
    degree: int  # Ports per node and direction, d
    steps: int  # Latency: number of steps of a schedule that exists
    bandwidth_time: Fraction  # Its bandwidth time in units of M over the bandwidth of a node
    _: KW_ONLY
    # The figures are those of breadth-first broadcast on the graph itself; otherwise they are those of the
    # schedule that follows from the expansions (:mod:`coppice.design.schedules.expanded`): breadth-first
    # broadcast is often better, and can be worse on powers of graphs without symmetry
    exact: bool
    bidirectional: bool  # Links are full-duplex cables

    @property
    def bandwidth_optimal(self) -> bool:
        """Whether the bandwidth time is the optimal (N - 1) / N."""
        return self.bandwidth_time == optimum(self.ranks)


def line_facts(inner: Facts, size: Size, times: int = 1) -> Facts:
    """Figures of the line graph, ``times`` times: one step more and 1 / N more bandwidth time each.

    Args:
        inner: Figures of the graph that is expanded.

    Examples:
        >>> triangle = Facts(3, 2, 1, Fraction(2, 3), exact=True, bidirectional=True)
        >>> str(line_facts(triangle, Size(12, 2, bidirectional=False), 2).bandwidth_time)
        '7/6'
    """
    more = sum((Fraction(1, inner.ranks * inner.degree**i) for i in range(times)), Fraction(0))
    return _facts(size, inner.steps + times, inner.bandwidth_time + more, exact=False)


def degree_facts(inner: Facts, size: Size, copies: int) -> Facts:
    """Figures of degree expansion: a step more, and (n - 1) / (n N) of bandwidth time."""
    time = inner.bandwidth_time + Fraction(copies - 1, copies * inner.ranks)
    return _facts(size, inner.steps + 1, time, exact=False)


def power_facts(inner: Facts, size: Size, exponent: int) -> Facts:
    """Figures of a Cartesian power: steps multiply, the distance from the optimum stays."""
    time = inner.bandwidth_time / optimum(inner.ranks) * optimum(size.ranks)
    exact = inner.exact and size.simple and inner.bandwidth_optimal
    return _facts(size, exponent * inner.steps, time, exact=exact)


def product_facts(parts: Sequence[Facts], size: Size) -> Facts | None:
    """Figures of a Cartesian product: optimal if all factors are, and simple; else there is no formula."""
    if not size.simple or not all(facts.bandwidth_optimal for facts in parts):
        return None
    steps = sum(facts.steps for facts in parts)
    return _facts(size, steps, optimum(size.ranks), exact=all(facts.exact for facts in parts))


def _facts(size: Size, steps: int, time: Fraction, *, exact: bool) -> Facts:
    return Facts(size.ranks, size.degree, steps, time, exact=exact, bidirectional=size.bidirectional)
