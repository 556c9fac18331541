"""Demands of concurrent groups of ranks: the links that can serve each, and the bytes that must cross sets of nodes.

Bytes that the demands of groups must move into or out of disjoint sets of nodes. Sets of nodes that may be the limit of
several groups at once: GPUs, boxes, and what hangs on switches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

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


def reach_themselves(topology: Topology, demands: Sequence[GroupDemand]) -> bool:
    """Whether members of all groups reach each other through switches, NICs and members."""
    reach = _reach(topology)
    return all(_joined(topology, each, reach) for each in demands)


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


_TURNED = {"reduce_scatter": "all_gather"}
"""A reduce-scatter is an all-gather with every transfer turned round."""


def needs_of_sets(
    topology: Topology, demand: GroupDemand, level: NDArray[np.int64], *, entering: bool
) -> NDArray[np.float64]:
    """Bytes that must cross into (or out of) each set.

    Args:
        level: Number of the set of each node, -1 outside.
    """
    sets = level[topology.rank_nodes][demand.groups]
    sizes = np.array([float(size) for size in demand.size_bytes])
    total = int(level.max()) + 1
    if demand.collective == "send":
        return _sends(sets, sizes, total, entering=entering)
    group, number, inside = _counts(sets, total)
    split = inside < demand.members
    share = _share(demand, inside, entering=entering)
    return summed(number, split * share * sizes[group], total)


def needs_of_components(
    topology: Topology,
    demand: GroupDemand,
    level: NDArray[np.int64],  # Number of the set of each node, -1 outside
    part: NDArray[np.int64],  # Number of the part of each set
    *,
    # Into the sets; what groups have outside of all sets is then another matter, and counted set by set
    entering: bool,
) -> NDArray[np.float64]:
    """Bytes that must cross between the sets of each part; of groups of several parts, set by set."""
    sets = level[topology.rank_nodes][demand.groups]
    met = np.where(sets >= 0, part[sets], -1)
    within = (met == met[:, :1]).all(axis=1)
    if not within.all():
        ways = [_only(demand, within), _only(demand, ~within)]
        alone = needs_of_sets(topology, ways[1], level, entering=entering)
        apart = summed(part, alone, int(part.max()) + 1)
        if not within.any():
            return apart
        return apart + needs_of_components(topology, ways[0], level, part, entering=entering)
    sizes = np.array([float(size) for size in demand.size_bytes])
    total, parts = int(level.max()) + 1, int(part.max()) + 1
    if demand.collective == "send":
        return summed(part, _sends(sets, sizes, total, entering=entering), parts)
    group, number, inside = _counts(sets, total)
    met = np.bincount(group, minlength=len(sets))
    whole = (sets >= 0).all(axis=1)
    split = (met - 1) * whole
    name = _TURNED.get(demand.collective, demand.collective)
    sums = (name == "all_gather") and entering == (name == demand.collective)
    if name == "all_to_all" or sums or not whole.all():
        share = _share(demand, inside, entering=entering) * (inside < demand.members)
        return summed(part[number], share * sizes[group], parts)
    factor = 2 if name == "all_reduce" else 1
    first = np.full(len(sets), 0)
    first[group] = part[number]
    return summed(first, factor * split * sizes, parts)


def _only(demand: GroupDemand, chosen: NDArray[np.bool_]) -> GroupDemand:
    """Some groups of a demand."""
    sizes = [size for size, taken in zip(demand.size_bytes, chosen.tolist(), strict=True) if taken]
    return GroupDemand(demand.name, demand.collective, demand.groups[chosen], sizes)


def needed_bytes(demand: GroupDemand, place: NDArray[np.int64], *, entering: bool) -> Fraction:
    """Bytes that must cross into (or out of) disjoint sets, exactly.

    Args:
        place: Number of the set of each rank, -1 outside.
    """
    members, total = demand.members, Fraction(0)
    turned = _TURNED.get(demand.collective)
    gathers = entering == (turned is None)
    for row, size in zip(place[demand.groups].tolist(), demand.size_bytes, strict=True):
        if demand.collective == "send":
            pairs = pairwise(row)
            total += size * sum(src != dst and (dst if entering else src) >= 0 for src, dst in pairs)
            continue
        counts = {number: row.count(number) for number in set(row)}
        outside = counts.pop(-1, 0)
        if len(counts) + (outside > 0) < 2:
            continue
        if demand.collective == "all_reduce":
            total += size * (len(counts) if outside else 2 * (len(counts) - 1))
        elif demand.collective == "all_to_all":
            total += size * Fraction(sum(k * (members - k) for k in counts.values()), members)
        elif gathers:
            total += size * Fraction(sum(members - k for k in counts.values()), members)
        else:
            times = 1 if outside else len(counts) - 1
            total += size * Fraction((members - outside) * times, members)
    return total


def summed(number: NDArray[np.int64], weights: NDArray[np.float64], total: int) -> NDArray[np.float64]:
    """Sums of weights by number, of 0 .. total - 1."""
    return np.bincount(number, weights=weights, minlength=total).astype(np.float64)


def _counts(
    sets: NDArray[np.int64], total: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Group, set and number of members, for each set that a group meets."""
    group = np.repeat(np.arange(len(sets)), sets.shape[1])
    flat = sets.reshape(-1)
    keys, counts = np.unique((group * total + flat)[flat >= 0], return_counts=True)
    return keys // total, keys % total, counts


def _share(demand: GroupDemand, inside: NDArray[np.int64], *, entering: bool) -> NDArray[np.float64]:
    """Share of M that crosses for one set with so many members of a group, if others are outside of it."""
    members = demand.members
    if demand.collective == "all_reduce":
        return np.ones(len(inside))
    if demand.collective == "all_to_all":
        return inside * (members - inside) / members
    gathers = entering == (demand.collective == "all_gather")
    return (members - inside if gathers else inside) / members


def _sends(
    sets: NDArray[np.int64], sizes: NDArray[np.float64], total: int, *, entering: bool
) -> NDArray[np.float64]:
    """Bytes that sends from member to member bring into (or out of) each set."""
    src, dst = sets[:, :-1], sets[:, 1:]
    here = dst if entering else src
    crossing = (src != dst) & (here >= 0)
    weights = np.broadcast_to(sizes[:, None], src.shape)[crossing]
    return summed(here[crossing], weights, total)


_FEW_NODES = 10
"""Nodes up to which all sets are tried."""


def divisions(topology: Topology) -> list[NDArray[np.int64]]:
    """Partitions of the nodes along the hierarchy, from small to large.

    Returns:
        For each level the number of the set of every node, -1 outside: each GPU alone, each box, and what is left
        joined without switches of higher tiers. On up to 10 nodes, every set alone as well.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> [int(level.max()) + 1 for level in divisions(preset("dgx-a100", boxes=4))]
        [32, 4]
        >>> [int(level.max()) + 1 for level in divisions(preset("fat-tree", leaves=2, gpus_per_leaf=6))]
        [12, 2]
    """
    alone = np.full(topology.num_nodes, -1, dtype=np.int64)
    alone[topology.rank_nodes] = np.arange(topology.num_ranks)
    found = [alone]
    tier = _tiers(topology)
    for top in range(int(tier.max()) + 1):
        level = _components(topology, tier <= top)
        sets = [set(map(bytes, _rows(each))) for each in (found[-1], level)]
        if level.max() > 0 and sets[0] != sets[1]:
            found.append(level)
    if topology.num_nodes <= _FEW_NODES:
        for mask in range(1, 2**topology.num_nodes - 1):
            inside = np.array([mask >> node & 1 for node in range(topology.num_nodes)], dtype=np.int64)
            found.append(inside - 1)
    return found


def _rows(level: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Nodes of each set that has any."""
    return [np.flatnonzero(level == number) for number in range(int(level.max()) + 1)]


def _tiers(topology: Topology) -> NDArray[np.int64]:
    """0 for nodes of boxes, or GPUs where there are no boxes; of other nodes the links to the nearest of these."""
    boxes = topology.host >= 0
    start = boxes if boxes.any() else topology.rank >= 0
    tier = np.where(start, 0, -1).astype(np.int64)
    step = 0
    while (tier < 0).any():
        near = np.zeros(topology.num_nodes, dtype=np.bool_)
        near[topology.dst[tier[topology.src] == step]] = True
        near[topology.src[tier[topology.dst] == step]] = True
        near &= tier < 0
        if not near.any():
            tier[tier < 0] = step + 1
            break
        step += 1
        tier[near] = step
    return tier


def _components(topology: Topology, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Nodes that links join without nodes that are not kept, numbered; nodes of a box are joined in any case."""
    number = np.arange(topology.num_nodes, dtype=np.int64)
    inside = kept[topology.src] & kept[topology.dst]
    src, dst = topology.src[inside], topology.dst[inside]
    boxed = np.flatnonzero(kept & (topology.host >= 0))
    while True:
        before = number.copy()
        np.minimum.at(number, dst, number[src])
        np.minimum.at(number, src, number[dst])
        if len(boxed):
            least = np.full(int(topology.host.max()) + 1, topology.num_nodes, dtype=np.int64)
            np.minimum.at(least, topology.host[boxed], number[boxed])
            number[boxed] = least[topology.host[boxed]]
        number = number[number]
        if (number == before).all():
            break
    found = np.full(topology.num_nodes, -1, dtype=np.int64)
    _, found[kept] = np.unique(number[kept], return_inverse=True)
    return found
