"""The part of a cluster that stands for all of it: the boxes that groups join, where all boxes are alike.

Where boxes hang on switches that are not linked among themselves, every link belongs to one box. Groups that share no
box then share no link, and if boxes are alike, what happens in one set of boxes that groups join happens in all of
them at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.iteration.costs.group import RankGroup
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes

_MOST_UNLIKE = 512


@dataclass(frozen=True, eq=False)
class Standing:
    """Groups on the part of the cluster that stands for all."""

    topology: Topology  # The part
    groups: list[list[int]]  # Ranks of each group on it
    boxes: int = 0  # Boxes of the part; 0 where it is the whole cluster, whose boxes differ or share links
    box: int = 0  # Ranks of a box; 0 likewise


def box_of_all(topology: Topology) -> int:
    """Ranks of each box, where all boxes are alike, have their ranks in a row, and own all links; otherwise 0.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box_of_all(preset("dgx-a100", boxes=4)), box_of_all(preset("fat-tree", leaves=2, gpus_per_leaf=4))
        (8, 0)
    """
    hosts = topology.host[topology.rank_nodes]
    if (hosts < 0).any() or ((topology.host[topology.src] < 0) & (topology.host[topology.dst] < 0)).any():
        return 0
    names, counts = np.unique(hosts, return_counts=True)
    box = int(counts[0])
    if (counts != box).any() or (hosts.reshape(-1, box) != hosts[::box, None]).any():
        return 0
    place = _places(topology)
    columns = (place[topology.src], place[topology.dst], topology.capacity, topology.latency_us)
    owner = np.maximum(topology.host[topology.src], topology.host[topology.dst])
    joined = (topology.host[topology.src] >= 0) & (topology.host[topology.dst] >= 0)
    if (joined & (topology.host[topology.src] != topology.host[topology.dst])).any():
        return 0
    first: bytes | None = None
    for host in names.tolist():
        own = np.flatnonzero(owner == host)
        rows = np.stack([column[own].astype(np.float64) for column in columns], axis=1)
        key = rows[np.lexsort(rows.T[::-1])].tobytes() + topology.kind[topology.host == host].tobytes()
        if first is not None and key != first:
            return 0
        first = key
    return box


def _places(topology: Topology) -> NDArray[np.int64]:
    """Number of each node in its box; switches outside of boxes have numbers of their own after all of these."""
    place = np.arange(topology.num_nodes, dtype=np.int64) + topology.num_nodes
    for host in np.unique(topology.host[topology.host >= 0]).tolist():
        own = np.flatnonzero(topology.host == host)
        place[own] = np.arange(len(own))
    return place


def standing(topology: Topology, group: RankGroup, *, most_ranks: int | None = None) -> Standing:
    """The groups that join the boxes of the first group, on these boxes alone; all groups where boxes are not alike.

    Args:
        most_ranks: Take shorter groups of up to so many ranks, if boxes are alike.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = standing(preset("dgx-h100", boxes=16), RankGroup(2, 8))
        >>> found.topology.num_ranks, len(found.groups), found.groups[0]
        (16, 8, [0, 8])
    """
    total = topology.num_ranks
    every = group.members(total)
    box = box_of_all(topology)
    span = group.ranks * group.stride
    regular = box and (
        box % span == 0 or (span % box == 0 and (box % group.stride == 0 or group.stride % box == 0))
    )
    if not regular:
        if group.ranks > _MOST_UNLIKE:
            raise InputError(
                f"expected groups of up to {_MOST_UNLIKE} ranks on a cluster whose boxes are not alike, found "
                f"{group.ranks}: take calibrated collectives."
            )
        return Standing(topology, every)
    ranks = group.ranks if most_ranks is None else min(group.ranks, most_ranks)
    # The first box, and those that its groups reach.
    chosen = sorted({rank // box for each in every if each[0] < box for rank in each[:ranks]})
    kept = [rank for number in chosen for rank in range(number * box, (number + 1) * box)]
    place = {rank: position for position, rank in enumerate(kept)}
    groups = [
        [place[rank] for rank in each[:ranks]]
        for each in every
        if all(rank in place for rank in each[:ranks])
    ]
    if len(chosen) * box == total:
        return Standing(topology, groups, total // box, box)
    hosts = set(topology.host[topology.rank_nodes[kept]].tolist())
    gone = (topology.host >= 0) & ~np.isin(topology.host, sorted(hosts))
    part = remove_nodes(topology, [topology.node_ids[node] for node in np.flatnonzero(gone).tolist()])
    return Standing(part, groups, len(chosen), box)
