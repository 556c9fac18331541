"""Narrowest cuts of single groups, which limit them whatever the others do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.network import Network, cut_bound
from coppice.bounds.problem import Problem
from coppice.bounds.together.demands import GroupDemand
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.topology.model import Topology
from coppice.topology.operations import subset, without_dead_ends


def narrowest_cuts(topology: Topology, demands: Sequence[GroupDemand]) -> Iterator[NDArray[np.int64]]:
    """Sets of nodes by the narrowest cut of the slowest group of each kind, of groups that gather or sum.

    Yields:
        For each, 0 for nodes of the side that data enters, and -1 for all others.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> pairs = GroupDemand("dp", "all_reduce", np.array([[0, 1], [2, 3]]), [Fraction(1), Fraction(2)])
        >>> [np.flatnonzero(each == 0).tolist() for each in narrowest_cuts(preset("ring", gpus=4), [pairs])]
        [[2]]
    """
    for demand in demands:
        if Collective.ALL_TO_ALL.value == demand.collective or demand.collective == "send":
            continue
        best: tuple[Fraction, NDArray[np.int64]] | None = None
        known: dict[bytes, tuple[Fraction, tuple[int, ...]] | None] = {}
        for ranks, size in zip(demand.groups.tolist(), demand.size_bytes, strict=True):
            part = without_dead_ends(subset(topology, ranks))
            key = b"|".join(
                each.tobytes() for each in (part.kind, part.rank, part.src, part.dst, part.capacity)
            )
            if key not in known:
                known[key] = _cut_of(part)
            found = known[key]
            if found is not None and (best is None or found[0] * size > best[0]):
                level = np.full(topology.num_nodes, -1, dtype=np.int64)
                level[[topology.node_index[part.node_ids[node]] for node in found[1]]] = 0
                best = found[0] * size, level
        if best is not None:
            yield best[1]


def _cut_of(part: Topology) -> tuple[Fraction, tuple[int, ...]] | None:
    """Time per block of an all-gather, and the side that data enters; None where members do not reach each other."""
    try:
        found = cut_bound(Network.of(Problem(topology=part, collective=Collective.ALL_GATHER)))
    except UnreachableError:
        return None
    return found.inv_rate, found.sink_side
