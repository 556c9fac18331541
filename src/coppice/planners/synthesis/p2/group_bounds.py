"""Exact lower bounds on concurrent all-reduces of several groups.

Every group reduces M bytes. Two kinds of bounds, over sets of ranks that follow the hierarchy:

* *Cuts.* Of every group with ranks on both sides of a cut, M bytes have to cross it in each direction, whatever does
  the adding: time >= M * groups that are split / capacity.
* *Parts.* Where GPUs alone add and copy, the broadcast trees of a group that meets p of the parts enter them with
  (p - 1) M bytes in all, and its reduce trees leave them with as many. Together the groups load the links between the
  parts with 2 M * sum of (p - 1), and these links carry what :func:`coppice.bounds.partition.partition_bound` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.partition import partition_bound
from coppice.topology.model import Topology


@dataclass(frozen=True, kw_only=True)
class GroupBound:
    """A lower bound with its limiting links."""

    ns_per_byte: Fraction  # Time per byte of each group, in nanoseconds: 1 / (GB/s)
    words: str  # What it follows from


def groups_bound(
    topology: Topology, groups: NDArray[np.int64], parts: Sequence[tuple[str, Sequence[Sequence[int]]]]
) -> GroupBound:
    """Best lower bound on the concurrent all-reduces of all groups.

    Args:
        groups: ``(groups, members)`` ranks.
        parts: Sets of ranks to look at, each a division of all ranks with its name.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> star = preset("star", gpus=4)
        >>> alone = [("GPU", [[rank] for rank in range(4)])]
        >>> groups_bound(star, np.array([[0, 1, 2, 3]]), alone).ns_per_byte
        Fraction(3, 2)
        >>> groups_bound(star, np.array([[0, 1], [2, 3]]), alone).ns_per_byte
        Fraction(1, 1)
    """
    best = GroupBound(ns_per_byte=Fraction(0), words="nothing has to move")
    group_of = np.empty(topology.num_ranks, dtype=np.int64)
    group_of[groups.reshape(-1)] = np.repeat(np.arange(len(groups)), groups.shape[1])
    for name, division in parts:
        if len(division) < 2:
            continue
        met = [np.unique(group_of[list(part)]) for part in division]
        times = np.bincount(np.concatenate(met), minlength=len(groups))
        crossing = int((times - 1).clip(0).sum())
        if not crossing:
            continue
        nodes = [_nodes_of(topology, part) for part in division]
        rate = partition_bound(topology, nodes).rate * 2 * (len(division) - 1)
        if rate:
            load = Fraction(2 * crossing) / rate
            words = f"links between the {len(division)} parts by {name} carry {2 * crossing} times the data of a group"
            best = max(best, GroupBound(ns_per_byte=load, words=words), key=lambda each: each.ns_per_byte)
        for part, inside, held in zip(division, nodes, met, strict=True):
            within = np.bincount(group_of[list(part)], minlength=len(groups))
            split = int((within[held] < groups.shape[1]).sum())
            room = _least_room(topology, inside)
            if split and room:
                words = f"{split} groups cross the links of one of the {len(division)} parts by {name}"
                found = GroupBound(ns_per_byte=Fraction(split) / room, words=words)
                best = max(best, found, key=lambda each: each.ns_per_byte)
    return best


def _nodes_of(topology: Topology, part: Sequence[int]) -> list[int]:
    """The nodes of these ranks; of hosts that they fill, the switches and NICs as well."""
    chosen = topology.rank_nodes[list(part)]
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[chosen] = True
    hosts = np.unique(topology.host[chosen])
    for host in hosts[hosts >= 0].tolist():
        members = (topology.host == host) & (topology.rank >= 0)
        if inside[members].all():
            inside |= topology.host == host
    found: list[int] = np.flatnonzero(inside).tolist()
    return found


def _least_room(topology: Topology, nodes: Sequence[int]) -> Fraction:
    """Capacity into or out of a set of nodes, whichever is less, in GB/s."""
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[list(nodes)] = True
    leaves = inside[topology.src] & ~inside[topology.dst]
    enters = ~inside[topology.src] & inside[topology.dst]
    least = min(int(topology.capacity[leaves].sum()), int(topology.capacity[enters].sum()))
    return Fraction(least, topology.denominator)
