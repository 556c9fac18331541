"""Breadth-first broadcast (BFB): every shard spreads along shortest paths with balanced loads.

In step t a node receives the shards of all nodes at distance t, each from in-neighbours at distance t - 1, in
fractions that keep its busiest link as light as possible. The least load is exact: a cut of a small flow, found by
Newton's method in the native core (cpp/breadth_first/breadth_first.h). No schedule that uses shortest paths eagerly is
faster.

Source: Efficient Direct-Connect Topologies (arXiv 2202.03356).

Pieces of shards that enter a node in a step are *runs*, the form in which schedules are made and expanded: in step t,
the pieces ``first .. first + count - 1`` of the shard of ``root`` go over the link from ``src`` to ``dst``. Every shard
is cut into ``pieces`` equal pieces. Under a known group of automorphisms the runs listed stand for all their images.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice._core import balanced_deliveries, balanced_loads
from coppice.design.graph import Graph
from coppice.display import Brief
from coppice.errors import InputError

_MAX_DISTANCES = 2**28


class ScheduleFacts(NamedTuple):
    """Figures of breadth-first broadcast for an all-gather."""

    steps: int  # Number of steps, the diameter
    # Load of the busiest link in each step, in shards per link (of capacity 1)
    step_loads: tuple[Fraction, ...]
    # T_B, in units of M over the bandwidth of a node: degree / N times the sum of the loads
    bandwidth_time: Fraction


def schedule_facts(graph: Graph, targets: NDArray[np.int32] | None = None) -> ScheduleFacts:
    """Steps, step loads and bandwidth time of breadth-first broadcast, exact.

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
    """One node of each orbit of the known automorphisms; their schedule determines the rest."""
    targets = np.arange(graph.block, dtype=np.int32)
    needed = min(graph.num_nodes, graph.block * (1 + graph.degree))
    if needed * graph.num_nodes > _MAX_DISTANCES:
        raise InputError(
            f"expected at most {_MAX_DISTANCES:,} distances between nodes of {graph.name}, found "
            f"{needed * graph.num_nodes:,}: choose a smaller graph, or one with known automorphisms."
        )
    return targets


def loopless(graph: Graph) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """(src, dst, multiplicity) of every row without self-loops: the links of the topology, in its order."""
    keep = graph.src != graph.dst
    return graph.src[keep], graph.dst[keep], graph.count[keep]


def moore_steps(ranks: int, degree: int) -> int:
    """Moore bound: least number of steps to reach all nodes at this degree.

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


MAX_RUNS = 2**24
"""Transfers of one piece that an all-gather may have."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Deliveries(Brief):
    """Intervals of sub-chunks, as columns."""

    graph: Graph  # The network
    pieces: int  # Pieces of every shard
    step: NDArray[np.int32]  # Step of each run, from 0 (int32)
    root: NDArray[np.int32]  # Node whose shard it is of (int32)
    src: NDArray[np.int32]  # Node that sends (int32)
    dst: NDArray[np.int32]  # Node that receives (int32)
    first: NDArray[np.int32]  # First piece (int32)
    count: NDArray[np.int32]  # Number of pieces (int32)
    symmetric: bool = False  # The runs stand for their images under the known automorphisms of the graph

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.step.max(initial=-1)) + 1


def breadth_first_deliveries(
    graph: Graph, *, pieces: int | None = None, max_runs: int = MAX_RUNS
) -> tuple[Deliveries, ScheduleFacts]:
    """Deliveries of breadth-first broadcast.

    Args:
        pieces: Pieces of every shard; None takes the number that attains the least loads exactly, or the largest
            power of two below it that keeps ``max_runs``.

    Returns:
        The deliveries, and the figures that enough pieces attain.

    Examples:
        >>> from coppice.design.graph import cayley_graph
        >>> made, facts = breadth_first_deliveries(cayley_graph("ring of 4", [4], [[1], [-1]]))
        >>> made.pieces, [str(load) for load in loads_of(made)]
        (2, ['1', '1/2'])
    """
    facts = schedule_facts(graph)
    shards = graph.num_nodes * (graph.num_nodes - 1)
    if pieces is None:
        pieces = lcm(*(load.denominator for load in facts.step_loads))
        if pieces * shards > max_runs:
            pieces = 1 << max(0, (max_runs // max(1, shards)).bit_length() - 1)
    if pieces < 1 or pieces * shards > max_runs:
        raise InputError(
            f"expected 1 or more pieces and at most {max_runs:,} transfers, found {pieces:,} x {shards:,} in "
            f"{graph.name}: take fewer pieces or a smaller graph."
        )
    src, dst, capacity = loopless(graph)
    step, root, link, first, count = balanced_deliveries(
        graph.num_nodes,
        src,
        dst,
        capacity,
        targets_of(graph),
        np.array([load.numerator for load in facts.step_loads], dtype=np.int64),
        np.array([load.denominator for load in facts.step_loads], dtype=np.int64),
        pieces,
    )
    order = np.argsort(step, kind="stable")
    made = Deliveries(
        graph=graph,
        pieces=pieces,
        step=step[order] - np.int32(1),
        root=root[order],
        src=src[link[order]],
        dst=dst[link[order]],
        first=first[order],
        count=count[order],
        symmetric=True,
    )
    return made, facts


def loads_of(deliveries: Deliveries) -> tuple[Fraction, ...]:
    """Load of the busiest link in each step, in shards per link of capacity 1."""
    graph, nodes = deliveries.graph, deliveries.graph.num_nodes
    rows = graph.src.astype(np.int64) * nodes + graph.dst
    wanted = deliveries.src.astype(np.int64) * nodes + deliveries.dst
    place = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
    if len(wanted) and not bool((rows[place] == wanted).all()):
        raise InputError(f"expected transfers along the links of {graph.name}, found one beside them.")
    load = np.zeros((deliveries.steps, len(rows)), dtype=np.int64)
    np.add.at(load, (deliveries.step, place), deliveries.count)
    largest = []
    for row in load:
        used = np.flatnonzero(row)
        pairs = set(zip(row[used].tolist(), graph.count[used].tolist(), strict=True))
        largest.append(max(Fraction(pieces, capacity) for pieces, capacity in pairs) / deliveries.pieces)
    return tuple(largest)
