"""Breadth-first broadcast (BFB): every shard spreads eagerly along shortest paths, in the best balance.

In step t a node receives the shards of all nodes at distance t, each from in-neighbours at distance t - 1, in
fractions that keep its busiest link as light as possible. The least load is exact: a cut of a small flow, found by
Newton's method in the native core (cpp/breadth_first/breadth_first.h). No schedule that uses shortest paths eagerly is
faster.

Source: Efficient Direct-Connect Topologies (arXiv 2202.03356).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice._core import balanced_loads
from coppice.design.graph import Graph
from coppice.errors import InputError

_MAX_DISTANCES = 2**28


class ScheduleFacts(NamedTuple):
    """What breadth-first broadcast takes for an all-gather."""

    steps: int  # Number of steps, the diameter
    # Load of the busiest link in each step, in shards per link (of capacity 1)
    step_loads: tuple[Fraction, ...]
    # T_B, in units of M over the bandwidth of a node: degree / N times the sum of the loads
    bandwidth_time: Fraction


def schedule_facts(graph: Graph, targets: NDArray[np.int32] | None = None) -> ScheduleFacts:
    """Steps, step loads and bandwidth time of the breadth-first broadcast on a graph, exact.

    A reduce-scatter takes what the all-gather of the transposed graph takes.

    Args:
        graph: Any strongly connected graph; self-loops take ports and carry nothing.
        targets: Nodes whose arrivals decide, where more automorphisms are known than the graph carries; None takes
            one of each orbit of those.

    Examples:
        >>> from coppice.design.graph import cayley_graph
        >>> facts = schedule_facts(cayley_graph("ring of 4", [4], [[1], [-1]]))
        >>> facts.steps, [str(load) for load in facts.step_loads], str(facts.bandwidth_time)
        (2, ['1', '1/2'], '3/4')
    """
    graph.check_connected()
    deciding = targets_of(graph) if targets is None else targets
    src, dst, count = loopless(graph)
    numerator, denominator = balanced_loads(graph.num_nodes, src, dst, count, deciding)
    loads = tuple(Fraction(p, q) for p, q in zip(numerator.tolist(), denominator.tolist(), strict=True))
    return ScheduleFacts(len(loads), loads, sum(loads, Fraction(0)) * graph.degree / graph.num_nodes)


def targets_of(graph: Graph) -> NDArray[np.int32]:
    """One node of each orbit of the known automorphisms: what they receive decides the schedule."""
    targets = np.arange(graph.block, dtype=np.int32)
    needed = min(graph.num_nodes, graph.block * (1 + graph.degree))
    if needed * graph.num_nodes > _MAX_DISTANCES:
        raise InputError(
            f"expected at most {_MAX_DISTANCES:,} distances between nodes of {graph.name}, found "
            f"{needed * graph.num_nodes:,}: choose a smaller graph, or one with known automorphisms."
        )
    return targets


def loopless(graph: Graph) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """(src, dst, parallel links) of every row that is no self-loop: the links of the topology, in its order."""
    keep = graph.src != graph.dst
    return graph.src[keep], graph.dst[keep], graph.count[keep]


def moore_steps(ranks: int, degree: int) -> int:
    """Least number of steps after which a node of this degree can have reached all others: the Moore bound.

    >>> moore_steps(1024, 4), moore_steps(5, 4), moore_steps(9, 1)
    (5, 1, 8)
    """
    steps, reached, layer = 0, 1, 1
    if degree == 1:
        return ranks - 1
    while reached < ranks:
        layer *= degree
        reached += layer
        steps += 1
    return steps
