"""A bound on concurrent groups from prices of links, for limits that no few sets of nodes show.

Theory. Let a group's sets and potentials give each link a price (docs/theory.md, Theorem 6), and let W be what a byte
of the group pays at least: of an all-reduce at the best root, of an all-to-all the length of the shortest way. If a
link costs the most that any group asks for it, all groups together pay at least the sum of their bytes times W, and at
most what all links carry in time T, each byte at its price: T is no less than the first over the second. With classes
of priority a link has a price for each: what class k pays is the most that it or a later one asks for, the difference
to the next class is paid until the end of class k, and those ends are known for all but the last.

As *any* weights give a true bound, nothing here depends on how they were found. It holds for every schedule where the
sets of each all-reduce are disjoint (Theorem 7), and otherwise for all that are made of trees.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import CheckError
from coppice.topology.model import Topology

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GroupPrices(Brief):
    """What proves the part of one group: sets of nodes and potentials of switches, with whole weights."""

    ranks: tuple[int, ...]  # Of the network
    collective: Collective  # What they do
    size_bytes: Fraction  # M
    place: int  # Of its class among the classes of priority
    links: Numbers  # That can serve the group
    entered: tuple[tuple[tuple[int, ...], int], ...] = ()  # Sets that data of broadcasts enters, with weights
    left: tuple[tuple[tuple[int, ...], int], ...] = ()  # Sets that sums leave
    gets: tuple[tuple[int, int], ...] = ()  # Potentials of nodes that pass no more on than they get
    gives: tuple[tuple[int, int], ...] = ()  # Potentials of nodes that get no more than they pass on, of sums


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PricedProof(Brief):
    """Prices of all groups, and the time that they prove."""

    groups: tuple[GroupPrices, ...]
    ends: tuple[Fraction, ...]  # Seconds in which each class before the last is done


@dataclass(frozen=True, kw_only=True)
class PricedTime:
    """What a proof proves."""

    seconds: Fraction  # The least time until the last class is done
    for_schedules: bool  # Of all schedules; otherwise of those that are made of trees


def priced_time(topology: Topology, proof: PricedProof) -> PricedTime:
    """Derive the time that prices prove, exactly.

    Raises:
        CheckError: If a potential is at a GPU, or a weight below 0.

    Examples:
        A pair that sums 1 GB over links of 1 GB/s, either of which is left and entered once:

        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4, gb_per_s=1)
        >>> sets = (((0,), 1), ((1,), 1))
        >>> pair = GroupPrices(ranks=(0, 1), collective=Collective.ALL_REDUCE, size_bytes=Fraction(10**9), place=0,
        ...                    links=np.array([ring.link_index[0, 1], ring.link_index[1, 0]]), entered=sets, left=sets)
        >>> priced_time(ring, PricedProof(groups=(pair,), ends=()))
        PricedTime(seconds=Fraction(1, 1), for_schedules=True)
    """
    asked = link_prices(topology, proof)
    needed = sum(
        (group.size_bytes * _least_paid(topology, group, asked[group.place]) for group in proof.groups),
        Fraction(0),
    )
    capacity = topology.capacity.tolist()
    rooms = [
        Fraction(sum(c * p for c, p in zip(capacity, paid, strict=True)) * 10**9, topology.denominator)
        for paid in np.concatenate([asked[:-1] - asked[1:], asked[-1:]]).tolist()
    ]
    spared = sum((end * room for end, room in zip(proof.ends, rooms[:-1], strict=True)), Fraction(0))
    left = needed - spared
    return PricedTime(
        seconds=left / rooms[-1] if left > 0 and rooms[-1] else Fraction(0),
        for_schedules=all(
            _disjoint(group) for group in proof.groups if group.collective is Collective.ALL_REDUCE
        ),
    )


def link_prices(topology: Topology, proof: PricedProof) -> Numbers:
    """The price of a byte on each link for each class (classes x links): what it or a later one asks for."""
    asked = np.zeros((len(proof.ends) + 1, topology.num_links), dtype=np.int64)
    for group in proof.groups:
        own = _prices(topology, group)
        np.maximum.at(asked[group.place], group.links, own)
    return np.maximum.accumulate(asked[::-1], axis=0)[::-1]


def _prices(topology: Topology, group: GroupPrices) -> Numbers:
    """The price that the group gives each link that serves it."""
    weights = [weight for _, weight in (*group.entered, *group.left, *group.gets, *group.gives)]
    if min(weights, default=0) < 0 or any(
        topology.rank[node] >= 0 for node, _ in (*group.gets, *group.gives)
    ):
        raise CheckError("expected weights of 0 or more, and potentials at switches and NICs only.")
    src, dst = topology.src[group.links], topology.dst[group.links]
    found = []
    for sets, potentials, sign in ((group.entered, group.gets, 1), (group.left, group.gives, -1)):
        price = np.zeros(len(group.links), dtype=np.int64)
        for nodes, weight in sets:
            inside = _inside(topology, nodes)
            crossing = inside[dst] & ~inside[src] if sign > 0 else inside[src] & ~inside[dst]
            price += weight * crossing
        height = np.zeros(topology.num_nodes, dtype=np.int64)
        for node, weight in potentials:
            height[node] += weight
        found.append(price + sign * (height[dst] - height[src]))
    return np.maximum(np.maximum(*found), 0)


def _inside(topology: Topology, nodes: Sequence[int]) -> NDArray[np.bool_]:
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[list(nodes)] = True
    return inside


def _least_paid(topology: Topology, group: GroupPrices, price: Numbers) -> Fraction:
    """What a byte of M pays at least, at the prices of its class."""
    members = topology.rank_nodes[list(group.ranks)]
    if group.collective is Collective.ALL_TO_ALL:
        paid = sum(_distances(topology, group, price, node) for node in members.tolist())
        return Fraction(paid, len(members))
    outside = np.zeros((2, len(members)), dtype=np.int64)
    for row, sets in enumerate((group.entered, group.left)):
        for nodes, weight in sets:
            inside = _inside(topology, nodes)[members]
            if inside.any():
                outside[row] += weight * ~inside
    match group.collective:
        case Collective.ALL_REDUCE:
            return Fraction(int(outside.sum(axis=0).min()))
        case Collective.ALL_GATHER:
            return Fraction(int(outside[0].sum()), len(members))
        case Collective.REDUCE_SCATTER:
            return Fraction(int(outside[1].sum()), len(members))
        case _:  # a broadcast of the first member
            return Fraction(int(outside[0][0]))


def _distances(topology: Topology, group: GroupPrices, price: Numbers, start: int) -> int:
    """Sum of the lengths of the shortest ways to all other members."""
    following: dict[int, list[tuple[int, int]]] = {}
    for link in group.links.tolist():
        following.setdefault(int(topology.src[link]), []).append((int(topology.dst[link]), int(price[link])))
    found: dict[int, int] = {}
    heap = [(0, start)]
    while heap:
        length, node = heapq.heappop(heap)
        if node not in found:
            found[node] = length
            for other, more in following.get(node, ()):
                heapq.heappush(heap, (length + more, other))
    return sum(found[node] for node in topology.rank_nodes[list(group.ranks)].tolist())


def _disjoint(group: GroupPrices) -> bool:
    """Whether no node is in two sets of the group."""
    nodes = [node for own in {frozenset(nodes) for nodes, _ in (*group.entered, *group.left)} for node in own]
    return len(nodes) == len(set(nodes))
