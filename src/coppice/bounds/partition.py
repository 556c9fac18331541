"""Bounds on an all-reduce from partitions of the nodes.

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

Root rates of an all-reduce whose links run at the same rate both ways, from disjoint sets that limit it.

Where every link has its like in the other direction, half of each link is enough for either phase: reduce trees are
broadcast trees turned round. Broadcast trees of rate X then fit iff x(S) >= X - in(S) / 2 for every set S with a rank,
x(S) being the rate of those rooted inside. Sets P_1 .. P_p that limit X by (in(P_1) + .. + in(P_p)) / (2 (p - 1)) leave
no choice but x(P_i) = X - in(P_i) / 2, which sums to X. So the roots of each set share that evenly, one check of all
cuts says whether it was right, and a cut that it violates improves the sets: this is how the strength of a graph
is found (Tutte 1961, Nash-Williams 1961; Cunningham, Optimal attack and reinforcement of a network, 1985).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.result import CutFamily, NodePotential, partitioned
from coppice.topology.model import Topology, scaled


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


_ROUNDS = 16

_LARGEST = 2**61


def is_even_both_ways(topology: Topology) -> bool:
    """Whether every link has a reverse link of the same rate.

    >>> from coppice.topology.presets import preset
    >>> is_even_both_ways(preset("ring", gpus=4)), is_even_both_ways(preset("generalized-kautz"))
    (True, False)
    """
    turned = topology.transposed()
    return (
        np.array_equal(topology.src, turned.src)
        and np.array_equal(topology.dst, turned.dst)
        and np.array_equal(topology.capacity, turned.capacity)
    )


def free_roots(
    topology: Topology,  # A network that is even both ways
    parts: Sequence[Sequence[int]],  # Disjoint sets of nodes with ranks, two at least
    # Rate in GB/s to which disjoint sets limit an all-reduce
    limit: Callable[[Sequence[Sequence[int]]], Fraction],
) -> tuple[tuple[tuple[int, ...], ...], dict[int, Fraction] | None]:
    """Disjoint sets that limit an all-reduce at least as much as ``parts``, and root rates that reach their limit.

    Returns:
        The sets, and GB/s of the trees rooted at each rank, or None where none were found.
    """
    taken = tuple(tuple(int(v) for v in nodes) for nodes in parts)
    rate = limit(taken)
    for _ in range(_ROUNDS):
        at_roots = _shared(topology, taken, rate)
        violated = None if at_roots is None else _violated(topology, at_roots)
        if at_roots is None or violated is None:
            break
        if not violated:
            return taken, {rank: x for rank, x in enumerate(at_roots) if x}
        better = _improved(topology, taken, rate, violated, limit)
        if better is None:
            break
        taken, rate = better
    return taken, None


def _shared(topology: Topology, parts: Sequence[Sequence[int]], rate: Fraction) -> list[Fraction] | None:
    """The rate of each rank as a root, where the sets leave a choice of 0 or more each and name all that is sent."""
    at_roots = [Fraction(0)] * topology.num_ranks
    for nodes in parts:
        inside = np.zeros(topology.num_nodes, dtype=np.bool_)
        inside[list(nodes)] = True
        entering = int(topology.capacity[inside[topology.dst] & ~inside[topology.src]].sum())
        needed = rate - Fraction(entering, 2 * topology.denominator)
        ranks = topology.rank[inside]
        ranks = ranks[ranks >= 0]
        if needed < 0 or not ranks.size:
            return None
        for rank in ranks.tolist():
            at_roots[rank] = needed / len(ranks)
    return at_roots if sum(at_roots) == rate else None


def _violated(topology: Topology, at_roots: list[Fraction]) -> list[NDArray[np.int32]] | None:
    """Sets that half of every link does not let all trees into; None where the numbers are too large."""
    scale = lcm(2 * topology.denominator, *(x.denominator for x in at_roots))
    half = scale // (2 * topology.denominator)
    total = int(sum(at_roots) * scale)
    if total + int(topology.capacity.sum()) * half >= _LARGEST:
        return None
    supply = np.zeros(topology.num_nodes, dtype=np.int64)
    supply[topology.rank_nodes] = scaled(at_roots, scale)
    sets: list[NDArray[np.int32]] = _core.violated_cuts(
        topology.num_nodes,
        topology.src,
        topology.dst,
        topology.capacity * half,
        supply,
        topology.rank >= 0,
        total,
        topology.num_nodes,
    )
    return sets


def _improved(
    topology: Topology,
    parts: tuple[tuple[int, ...], ...],
    rate: Fraction,
    violated: list[NDArray[np.int32]],
    limit: Callable[[Sequence[Sequence[int]]], Fraction],
) -> tuple[tuple[tuple[int, ...], ...], Fraction] | None:
    """The sets with violated ones in place of what they hold, all disjoint ones at once or else one; None if worse."""
    ordered = sorted(violated, key=len)
    taken = np.zeros(topology.num_nodes, dtype=np.bool_)
    disjoint = []
    for nodes in ordered:
        if not taken[nodes].any():
            taken[nodes] = True
            disjoint.append(nodes)
    for chosen in [disjoint, *([nodes] for nodes in ordered[:4])]:
        trial = _with(topology, parts, chosen)
        if len(trial) > 1 and (less := limit(trial)) < rate:
            return trial, less
    return None


def _with(
    topology: Topology, parts: tuple[tuple[int, ...], ...], chosen: list[NDArray[np.int32]]
) -> tuple[tuple[int, ...], ...]:
    """The chosen sets, and what they leave of the others that still holds a rank."""
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    for nodes in chosen:
        inside[nodes] = True
    left = (tuple(v for v in nodes if not inside[v]) for nodes in parts)
    kept = [nodes for nodes in left if any(topology.rank[v] >= 0 for v in nodes)]
    return (*(tuple(nodes.tolist()) for nodes in chosen), *kept)
