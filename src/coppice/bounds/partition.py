"""Bounds on an all-reduce from disjoint sets of nodes.

Theory of the disjoint sets. Let P_1 .. P_p be disjoint sets that each hold a rank. Broadcast trees enter P_i at a
rate of at least X - x(P_i), where X is the rate of all trees and x(P_i) that of the trees rooted inside; reduce trees
leave it at as much. Summed over the sets, both phases together, the links must carry 2 (p - 1) X across the borders.
A link from one set to another is used by the broadcast on entry and by the reduce on exit, so it offers its capacity
once. A connected component C of the rest that cannot copy passes on no more than it gets, so from C into the sets,
and from the sets into C in the reduce phase, there flows at most min(b(C -> sets), b(sets -> C)). Hence

    X <= (b(between sets) + sum of those minima) / (2 (p - 1)),

which is the bound of Tutte and Nash-Williams on switch-free symmetric graphs. Where the sets are the images
of the bottleneck of the all-gather it equals the rate of reduce-scatter then all-gather, and proves that
nothing is gained by treating the phases together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.proof import CutFamily, NodePotential, partitioned
from coppice.topology.model import Topology


@dataclass(frozen=True, kw_only=True)
class PartitionBound:
    """An upper bound on the all-reduce rate with its witness."""

    rate: Fraction  # Bound on the algbw in GB/s
    parts: tuple[tuple[int, ...], ...]  # The disjoint sets of nodes
    proof: CutFamily  # The witness that they make


def partition_bound(
    topology: Topology,
    parts: Sequence[Sequence[int]],
    *,
    # Nodes that may send one input to several outputs (default: the ranks)
    copying: NDArray[np.bool_] | None = None,
    adding: NDArray[np.bool_] | None = None,  # Nodes that may add several inputs (default: the ranks)
) -> PartitionBound:
    """The bound of given disjoint sets, each with a rank inside; two of them at least."""
    ranks = topology.rank >= 0
    copying = ranks if copying is None else copying | ranks
    adding = ranks if adding is None else adding | ranks
    part = np.full(topology.num_nodes, -1, dtype=np.int64)
    for number, nodes in enumerate(parts):
        part[list(nodes)] = number
    tail, head = part[topology.src], part[topology.dst]
    between = int(topology.capacity[(tail >= 0) & (head >= 0) & (tail != head)].sum())
    component = _components(topology, part < 0)
    into_parts, out_of_parts = (np.zeros(topology.num_nodes, dtype=np.int64) for _ in range(2))
    entering, leaving = (tail < 0) & (head >= 0), (tail >= 0) & (head < 0)
    np.add.at(into_parts, component[topology.src[entering]], topology.capacity[entering])
    np.add.at(out_of_parts, component[topology.dst[leaving]], topology.capacity[leaving])
    copies, adds = (np.zeros(topology.num_nodes, dtype=np.bool_) for _ in range(2))
    rest = part < 0
    copies[component[rest & copying]] = True
    adds[component[rest & adding]] = True
    through = np.minimum(into_parts, out_of_parts)
    through = np.where(copies & ~adds, into_parts, np.where(adds & ~copies, out_of_parts, through))
    through = np.where(copies & adds, into_parts + out_of_parts, through)
    rate = Fraction(between + int(through.sum()), 2 * (len(parts) - 1) * topology.denominator)
    taken = tuple(tuple(int(v) for v in nodes) for nodes in parts)
    # What a component passes on is counted as it enters the sets, or else as it leaves them.
    counted_in = ~adds & (copies | (into_parts <= out_of_parts))
    counted_out = ~copies & ~counted_in
    potentials = [
        NodePotential(
            node=v,
            broadcast=Fraction(int(counted_out[component[v]])),
            reduce=Fraction(int(counted_in[component[v]])),
        )
        for v in np.flatnonzero(rest & (counted_in | counted_out)[component]).tolist()
    ]
    return PartitionBound(rate=rate, parts=taken, proof=partitioned(taken, potentials, 1 / rate))


def _components(topology: Topology, inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Least node of the connected component of each node, over links between nodes ``inside``."""
    label = np.arange(topology.num_nodes)
    inner = inside[topology.src] & inside[topology.dst]
    tail, head = topology.src[inner], topology.dst[inner]
    while True:
        before = label.copy()
        np.minimum.at(label, head, label[tail])
        np.minimum.at(label, tail, label[head])
        label = label[label]
        if np.array_equal(label, before):
            return label
