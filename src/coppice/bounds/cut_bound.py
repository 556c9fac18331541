"""The cut bound: the exact optimum of collectives that are made of spanning trees, with its bottleneck cut.

Time per unit of shard is at least ``w(outside X) / in(X)`` for every set X of nodes that contains a rank: what
starts outside has to enter. The largest such ratio is found exactly by discrete Newton steps over a flow check
(ForestColl, arXiv 2402.06787; arXiv 2305.18461) in the native core.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from coppice import _core
from coppice.bounds.network import Network
from coppice.errors import UnreachableError

__all__ = ["CutBound", "cut_bound"]


@dataclass(frozen=True, kw_only=True)
class CutBound:
    """The least time per shard that the cuts allow.

    Attributes:
        inv_rate: Time per shard in 1 / (GB/s); 0 where nothing has to move.
        sink_side: Nodes of the set X that attains it, in the broadcasting direction (empty where nothing moves).
        rounds: Newton rounds, the proving one included.
    """

    inv_rate: Fraction
    sink_side: tuple[int, ...]
    rounds: int


def cut_bound(network: Network) -> CutBound:
    """Solve for the bottleneck cut of ``network``.

    Raises:
        UnreachableError: If some rank cannot be reached from the data of another.
    """
    topology = network.topology
    numerator, denominator, sink_side, rounds = _core.cut_bound(
        topology.num_nodes, topology.src, topology.dst, topology.capacity, network.weight, network.terminal
    )
    if denominator == 0:
        raise UnreachableError(unreachable_message(network, sink_side))
    inv_rate = Fraction(numerator, denominator) * topology.denominator
    return CutBound(inv_rate=inv_rate, sink_side=tuple(sink_side.tolist()), rounds=rounds)


def unreachable_message(network: Network, sink_side: np.ndarray) -> str:
    """Name a rank on each side of a cut without capacity."""
    topology = network.topology
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[sink_side] = True
    target = topology.node_ids[int(np.flatnonzero(inside & network.terminal)[0])]
    source = topology.node_ids[int(np.flatnonzero(~inside & (network.weight > 0))[0])]
    return (
        f"every rank must be reachable from every rank that owns data, found no route between {source} and {target} "
        f"({len(sink_side)} of {topology.num_nodes} nodes are cut off): add links, choose ranks that are connected, "
        "or let other GPUs forward (`relays`)."
    )
