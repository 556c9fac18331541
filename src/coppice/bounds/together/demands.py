"""Demands of concurrent groups of ranks, and the links that can serve each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.topology.model import NodeKind, Topology

CARRIED = (
    Collective.ALL_REDUCE.value,
    Collective.ALL_GATHER.value,
    Collective.REDUCE_SCATTER.value,
    Collective.ALL_TO_ALL.value,
    "send",
)
"""What groups may do; in a send every rank but the last sends M to the next one of its group."""


@dataclass(frozen=True, eq=False, repr=False)
class GroupDemand(Brief):
    """One collective in disjoint groups of one size."""

    name: str  # What it is called in reports
    collective: str  # One of :data:`CARRIED`
    groups: NDArray[np.int64]  # Ranks of each group, in their order (int64, groups x ranks)
    size_bytes: Sequence[Fraction]  # M of each group, in bytes

    @property
    def members(self) -> int:
        """Ranks of a group."""
        return int(self.groups.shape[1])


def check_demand(topology: Topology, demand: GroupDemand) -> None:
    """Refuse an invalid demand."""
    if demand.collective not in CARRIED:
        raise InputError(
            f"expected {demand.name} to be one of {', '.join(CARRIED)}, found {demand.collective!r}."
        )
    named = np.sort(demand.groups.reshape(-1))
    if len(named) and (named[0] < 0 or named[-1] >= topology.num_ranks or (np.diff(named) == 0).any()):
        raise InputError(
            f"expected groups of {demand.name} with ranks of 0 .. {topology.num_ranks - 1}, each once at most."
        )
    if len(demand.size_bytes) != len(demand.groups) or any(size < 0 for size in demand.size_bytes):
        raise InputError(
            f"expected a size of 0 or more bytes for each of the {len(demand.groups)} groups of {demand.name}."
        )


def usable_links(topology: Topology, demands: Sequence[GroupDemand]) -> NDArray[np.bool_]:
    """Which links can serve which demand (demands x links).

    GPUs outside of a group pass nothing on for it. So a link of a GPU serves its group if it leads to, or comes from,
    another member through switches and NICs. Where members do not reach each other so, others have to pass on, and all
    links serve.
    """
    reach = _reach(topology)
    rank, kind = topology.rank, topology.kind
    src, dst = topology.src, topology.dst
    gpu_out, gpu_in = kind[src] == NodeKind.GPU, kind[dst] == NodeKind.GPU
    back = _reach(topology.transposed())
    found = np.ones((len(demands), topology.num_links), dtype=np.bool_)
    for number, demand in enumerate(demands):
        group = np.full(topology.num_ranks, -1, dtype=np.int64)
        group[demand.groups.reshape(-1)] = np.repeat(np.arange(len(demand.groups)), demand.members)
        if not _joined(topology, demand, reach):
            continue
        for links, near, far, reached in ((gpu_out, src, dst, reach), (gpu_in, dst, src, back)):
            rows = np.flatnonzero(links)
            own = rank[near[rows]]
            mine = np.where(own >= 0, group[own], -1)
            mates = reached[far[rows]] & (group[None, :] == mine[:, None])
            mates[np.arange(len(rows)), own] = False
            found[number, rows] &= (mine >= 0) & mates.any(axis=1)
    return found


def _reach(topology: Topology) -> NDArray[np.bool_]:
    """Ranks that each node reaches without passing through a GPU (nodes x ranks); a GPU reaches itself."""
    reach = np.zeros((topology.num_nodes, topology.num_ranks), dtype=np.bool_)
    reach[topology.rank_nodes, np.arange(topology.num_ranks)] = True
    inner = topology.kind != NodeKind.GPU
    links = np.flatnonzero(inner[topology.src])
    order = links[np.argsort(topology.src[links], kind="stable")]
    nodes, starts = np.unique(topology.src[order], return_index=True)
    if not len(nodes):
        return reach
    while True:
        more = reach[nodes] | np.logical_or.reduceat(reach[topology.dst[order]], starts, axis=0)
        if (more == reach[nodes]).all():
            return reach
        reach[nodes] = more


def _joined(topology: Topology, demand: GroupDemand, reach: NDArray[np.bool_]) -> bool:
    """Whether members of each group reach each other through switches, NICs and members."""
    src, dst = topology.src, topology.dst
    out = np.flatnonzero(topology.rank[src] >= 0)
    direct = np.zeros((topology.num_ranks, topology.num_ranks), dtype=np.bool_)
    np.logical_or.at(direct, topology.rank[src[out]], reach[dst[out]])
    for members in demand.groups:
        among = direct[np.ix_(members, members)]
        for way in (among, among.T):
            seen = np.zeros(len(members), dtype=np.bool_)
            seen[0] = True
            while True:
                more = seen | way[seen].any(axis=0)
                if (more == seen).all():
                    break
                seen = more
            if not seen.all():
                return False
    return True
