"""Bounds on time from messages between boxes: when each can begin, and of how many boxes it brings something.

Theory (docs/theory.md, Theorem 20). Ranks lie in k boxes. The data of one rank of each box, its *source*, are looked
at, and what one rank of each, its *sink*, receives of them. *Exits* are links that every message out of a box
takes: those that lead out of it, or those through which its ranks send anything at all. Switches must not copy, so that
a message crosses once for each box that it reaches.

In an all-reduce a message brings something of one box if its sender's box has received nothing of another, and of all
at best afterwards. A box that no message of the second kind reaches needs k - 1 of the first kind. So messages of the
first kind count 1 / (k - 1), those of the second kind 1, and they come to k for each byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from coppice.bounds.sizes.timed import TimedNetwork

TwoNearest: TypeAlias = list[list[tuple[int, int]]]
"""Of each node the nearest start, and the nearest one with another label: units and label."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Crossings:
    """A bound from messages between boxes, for every size."""

    network: TimedNetwork
    ports: bool  # Exits are the links through which ranks send anything, not those out of boxes
    sources: tuple[int, ...]  # Nodes of ranks, one of each box: whose data are looked at
    sinks: tuple[int, ...]  # Likewise: who has to receive something of them
    work: Fraction  # What a byte of the message comes to at least
    rows: tuple[tuple[int, Fraction], ...]  # Begin of use in units, its own end included, and rate; rising

    def least_time(self, size_bytes: Fraction) -> Fraction:
        """Nanoseconds that a message of so many bytes takes at least."""
        network = self.network
        paid = self.work * size_bytes / network.scale * network.units
        if paid <= 0 or not self.rows or network.burst_bytes:
            return Fraction(0)
        rate = begun = root = Fraction(0)
        for place, (begin, value) in enumerate(self.rows):
            rate, begun = rate + value, begun + value * begin
            root = (paid + begun) / rate
            if place + 1 == len(self.rows) or root <= self.rows[place + 1][0]:
                break
        return root / network.units


def crossings(
    network: TimedNetwork,
    boxes: Sequence[Sequence[int]],
    *,
    ports: bool = False,
) -> Crossings | None:
    """The bound from messages between boxes; None where there are no exits of that kind.

    Args:
        network: What messages cost.
        boxes: Nodes of the ranks of each box, two or more: the first is the source, the last the sink.
        ports: Count at the links through which ranks send anything, instead of those out of boxes.

    Examples:
        >>> from coppice.bounds.sizes.least import boxes
        >>> from coppice.bounds.sizes.timed import MessageCosts
        >>> from coppice.topology.presets import preset
        >>> topology = preset("dgx-h100", boxes=4)
        >>> network = TimedNetwork.of(topology, MessageCosts(message_us=1, crossing_us=2))
        >>> ranks = [members for _, members in boxes(topology)]
        >>> found = crossings(network, ranks)
        >>> float(found.least_time(Fraction(4 * 2**20))) / 1000
        17.23576
    """
    label = {node: number for number, members in enumerate(boxes) for node in members}
    inside = insides(network, label)
    exits = _exits(network, inside, ports=ports)
    if not exits or len(boxes) < 2:
        return None
    starts = {members[0]: number for number, members in enumerate(boxes)}
    ends = {members[-1]: number for number, members in enumerate(boxes)}
    tails, heads, latency = (each.tolist() for each in (network.tail, network.head, network.latency))
    after = two_nearest(heads, tails, latency, ends)
    kinds = len(boxes) - 1
    shares = Fraction(1, kinds), Fraction(kinds - 1, kinds)
    before = two_nearest(tails, heads, latency, starts)
    rates: dict[int, Fraction] = {}
    for link in exits:
        own = inside[tails[link]]
        on = _first(after[heads[link]], own)
        begins = [_first(before[tails[link]], -2), _first(before[tails[link]], own)]
        for share, begin in zip(shares, begins, strict=True):
            if on is not None and begin is not None and share:
                at = begin + latency[link] + on
                rates[at] = rates.get(at, Fraction(0)) + share * int(network.capacity[link])
    return Crossings(
        network=network,
        ports=ports,
        sources=tuple(starts),
        sinks=tuple(ends),
        work=Fraction(len(boxes)),
        rows=tuple(sorted(rates.items())),
    )


def _first(near: Sequence[tuple[int, int]], unlike: int) -> int | None:
    """Units from the nearest with another label than this."""
    return next((units for units, label in near if label != unlike), None)


def insides(network: TimedNetwork, label: Mapping[int, int]) -> list[int]:
    """Box of each node, -1 for none: of ranks, of what is in one machine with them, and of ways out of ranks."""
    topology = network.topology
    host = topology.host.tolist()
    boxes = {host[node]: number for node, number in label.items() if host[node] >= 0}
    found = [label.get(node, boxes.get(host[node], -1)) for node in range(topology.num_nodes)]
    return found + [found[node] for node in topology.rank_nodes.tolist()][: network.num_nodes - len(found)]


def _exits(network: TimedNetwork, inside: Sequence[int], *, ports: bool) -> list[int]:
    """Links that every message out of a box takes."""
    ends = list(zip(network.tail.tolist(), network.head.tolist(), strict=True))
    if ports:
        first = network.topology.num_nodes
        return [link for link, (tail, head) in enumerate(ends) if tail < first <= head]
    return [
        link for link, (tail, head) in enumerate(ends) if inside[tail] >= 0 and inside[head] != inside[tail]
    ]


def two_nearest(
    tails: Sequence[int], heads: Sequence[int], latency: Sequence[int], starts: Mapping[int, int]
) -> TwoNearest:
    """Units to each node from the nearest start, and from the nearest with another label (Dijkstra, twice at a node).

    >>> two_nearest([0, 1, 1, 2], [1, 0, 2, 1], [5, 5, 2, 2], {0: 7, 2: 9})
    [[(0, 7), (7, 9)], [(2, 9), (5, 7)], [(0, 9), (7, 7)]]
    """
    count = max((*tails, *heads, *starts), default=-1) + 1
    out: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for a, b, units in zip(tails, heads, latency, strict=True):
        out[a].append((b, units))
    found: TwoNearest = [[] for _ in range(count)]
    heap = [(0, node, label) for node, label in starts.items()]
    heapify(heap)
    while heap:
        so_far, node, label = heappop(heap)
        known = found[node]
        if len(known) == 2 or (known and known[0][1] == label):
            continue
        known.append((so_far, label))
        for other, units in out[node]:
            there = found[other]
            if len(there) < 2 and not (there and there[0][1] == label):
                heappush(heap, (so_far + units, other, label))
    return found
