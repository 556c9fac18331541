"""What expansions make of steps and bandwidth time, without building anything.

Source: Efficient Direct-Connect Topologies (arXiv 2202.03356); the constructions are those of
:mod:`coppice.design.recipes.expansions`, their schedules those of :mod:`coppice.design.schedules.expanded`.

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

from coppice.design.families.family import Size, optimum

__all__ = ["Facts", "degree_facts", "line_facts", "power_facts", "product_facts"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a recipe promises for an all-gather.

    Attributes:
        ranks: Number of nodes, N.
        degree: Ports per node and direction, d.
        steps: Latency: number of steps of a schedule that exists.
        bandwidth_time: Its bandwidth time in units of M over the bandwidth of a node.
        exact: The figures are those of breadth-first broadcast on the graph itself; otherwise they are those of the
            schedule that follows from the expansions (:mod:`coppice.design.schedules.expanded`): breadth-first
            broadcast is often better, and can be worse on powers of graphs without symmetry.
        bidirectional: Links are full-duplex cables.
    """

    ranks: int
    degree: int
    steps: int
    bandwidth_time: Fraction
    _: KW_ONLY
    exact: bool
    bidirectional: bool

    @property
    def bandwidth_optimal(self) -> bool:
        """The bandwidth time is (N - 1) / N, which nothing beats."""
        return self.bandwidth_time == optimum(self.ranks)


def line_facts(inner: Facts, size: Size, times: int = 1) -> Facts:
    """The line graph, ``times`` times: a step more each time, and 1 / N with N that of the graph expanded.

    Args:
        inner: Figures of the graph that is expanded.
        size: Size of the result.
        times: How often.

    Examples:
        >>> triangle = Facts(3, 2, 1, Fraction(2, 3), exact=True, bidirectional=True)
        >>> str(line_facts(triangle, Size(12, 2, bidirectional=False), 2).bandwidth_time)
        '7/6'
    """
    more = sum((Fraction(1, inner.ranks * inner.degree**i) for i in range(times)), Fraction(0))
    return _facts(size, inner.steps + times, inner.bandwidth_time + more, exact=False)


def degree_facts(inner: Facts, size: Size, copies: int) -> Facts:
    """Degree expansion: a step more, and (n - 1) / (n N)."""
    time = inner.bandwidth_time + Fraction(copies - 1, copies * inner.ranks)
    return _facts(size, inner.steps + 1, time, exact=False)


def power_facts(inner: Facts, size: Size, exponent: int) -> Facts:
    """Cartesian power: so many times the steps; as far from the optimum as the factor is."""
    time = inner.bandwidth_time / optimum(inner.ranks) * optimum(size.ranks)
    exact = inner.exact and size.simple and inner.bandwidth_optimal
    return _facts(size, exponent * inner.steps, time, exact=exact)


def product_facts(parts: Sequence[Facts], size: Size) -> Facts | None:
    """Cartesian product: optimal where all factors are and have no parallel links; else there is no formula."""
    if not size.simple or not all(facts.bandwidth_optimal for facts in parts):
        return None
    steps = sum(facts.steps for facts in parts)
    return _facts(size, steps, optimum(size.ranks), exact=all(facts.exact for facts in parts))


def _facts(size: Size, steps: int, time: Fraction, *, exact: bool) -> Facts:
    return Facts(size.ranks, size.degree, steps, time, exact=exact, bidirectional=size.bidirectional)
