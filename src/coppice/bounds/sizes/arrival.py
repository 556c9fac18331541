"""The least time in which one sink has what others hold, exactly, with the moving cut that proves it.

The search is native (cpp/quickest/quickest.h has the theory); what it finds is a labelling of the nodes, from which the
time is counted here in fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.sizes.classes import ClassNetwork, class_network, refine
from coppice.bounds.sizes.timed import TimedNetwork, nearest

MOST_OFFSETS = 96
"""Times at either end that a label may have; with more the bound is true, but may lie below the least time."""


MOST_ROUNDS = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class MovingCut:
    """A cut that moves: node v is on the sink's side before its label, on the side of the sources from then on.

    The label of v is ``offset[v]``, or the time less ``offset[v]`` where ``from_end[v]``, in units of the network. What
    sources with label 0 hold must cross links while these lead across the cut; with less time there is not room for it.
    """

    time_ns: Fraction  # That the cut proves, from the first byte that leaves
    offset: NDArray[np.int64]
    from_end: NDArray[np.bool_]
    units: int  # Of time in a nanosecond
    # For words about it: bytes that must cross, and bytes per nanosecond of the links that more time opens longer
    needed: Fraction = Fraction(0)
    rate: Fraction = Fraction(0)

    def apart(self, sinks: Sequence[int]) -> MovingCut:
        """The cut of a network whose last node stood for some nodes: each of these has its label."""
        offset, from_end = self.offset[:-1].copy(), self.from_end[:-1].copy()
        offset[list(sinks)], from_end[list(sinks)] = self.offset[-1], self.from_end[-1]
        return replace(self, offset=offset, from_end=from_end)


@dataclass(frozen=True, eq=False, kw_only=True)
class Sink:
    """A node and what it needs of others, with the network of classes in which its least time is found."""

    network: TimedNetwork
    node: int
    share: Mapping[int, int]  # Parts of the message that each other node holds for it
    classes: ClassNetwork
    class_share: NDArray[np.float64]  # The same of whole classes
    distance: int  # Units of the longest way from one of these
    ways: Mapping[int, int]  # Units from each class to the sink; the others do not lead there

    @property
    def room(self) -> int:
        """Capacity of the links into the sink."""
        into = self.classes.head == self.classes.node_class[self.node]
        return sum(self.classes.capacity[e] for e in np.flatnonzero(into).tolist())

    @classmethod
    def of(cls, network: TimedNetwork, node: int, share: Mapping[int, int]) -> Sink | None:
        """The sink, or None where it needs nothing of others."""
        held = np.zeros(network.num_nodes, dtype=np.int64)
        for each, part in share.items():
            held[each] = part
        held[node] = 0
        if not held.any():
            return None
        held[node] = -1
        classes = class_network(network, refine(network, held))
        held[node] = 0
        class_share: NDArray[np.float64] = np.zeros(classes.num_classes)
        np.add.at(class_share, classes.node_class, held)
        ways = nearest(classes.head, classes.tail, classes.latency, [int(classes.node_class[node])])
        sources = np.flatnonzero(held).tolist()
        return cls(
            network=network,
            node=node,
            share={each: int(held[each]) for each in sources},
            classes=classes,
            class_share=class_share,
            distance=max(ways[int(classes.node_class[each])] for each in sources),
            ways=ways,
        )

    def least_time(self, part_bytes: Fraction, at_least_ns: Fraction) -> MovingCut | None:
        """The least time in which the sink can have everything; None where it is not above a time already proved.

        Args:
            part_bytes: Bytes of one part of the message.
        """
        network, classes = self.network, self.classes
        waiting = Fraction(self.distance, network.units)
        least = max(at_least_ns, waiting)
        scale = float(network.scale) / network.units
        _, since, offset, from_end, *_ = _core.quickest_to(
            classes.num_classes,
            classes.tail,
            classes.head,
            np.array([each * scale for each in classes.capacity]),
            classes.latency,
            self.class_share * float(part_bytes),
            int(classes.node_class[self.node]),
            float(least) * network.units,
            MOST_OFFSETS,
        )
        if not len(offset):
            return self._waiting(part_bytes) if waiting > at_least_ns else None
        found = self._counted(offset, from_end.astype(np.bool_), part_bytes, Fraction(since))
        if found is not None and found.time_ns > least:
            return found
        return self._waiting(part_bytes) if waiting > at_least_ns else None

    def _waiting(self, part_bytes: Fraction) -> MovingCut:
        """The cut that moves with the last byte of the farthest source: no link is ever open."""
        ways = np.array(
            [
                min(self.ways.get(each, self.distance), self.distance)
                for each in range(self.classes.num_classes)
            ]
        )
        return MovingCut(
            time_ns=Fraction(self.distance, self.network.units),
            offset=ways[self.classes.node_class],
            from_end=np.ones(self.network.num_nodes, dtype=np.bool_),
            needed=part_bytes
            * sum(p for v, p in self.share.items() if ways[self.classes.node_class[v]] == self.distance),
            units=self.network.units,
        )

    def _counted(
        self,
        offset: NDArray[np.int64],
        from_end: NDArray[np.bool_],
        part_bytes: Fraction,
        since: Fraction,
    ) -> MovingCut | None:
        """The last time at which the links are just open long enough, in fractions."""
        classes, network = self.classes, self.network
        head_moves, tail_moves = from_end[classes.head], from_end[classes.tail]
        p, q = offset[classes.tail], offset[classes.head]
        grows = head_moves & ~tail_moves
        stands = head_moves == tail_moves
        width = np.where(head_moves, p - q, q - p) - classes.latency
        held = self.class_share * (~from_end & (offset == 0))
        needed = part_bytes * int(held.sum())
        left = needed * network.units / network.scale
        for e in np.flatnonzero(stands & (width > 0)).tolist():
            left -= classes.capacity[e] * int(width[e]) + self._burst(e)
        opening = sorted(
            (int(p[e] + q[e] + classes.latency[e]), classes.capacity[e], self._burst(e))
            for e in np.flatnonzero(grows).tolist()
        )
        shrinking = [
            (int(p[e] + q[e] - classes.latency[e]), classes.capacity[e], self._burst(e))
            for e in np.flatnonzero(tail_moves & ~head_moves).tolist()
        ]
        # Links from labels that move to those that stand are open the less the more time there is: they count as at an
        # earlier time.
        proved, rate = since, 0
        for _ in range(MOST_ROUNDS):
            room = sum((width - proved) * each + burst for width, each, burst in shrinking if width > proved)
            later, rate_then = _root(left - room, opening)
            if later <= proved:
                break
            proved, rate = later, rate_then
        if not rate:
            return None  # links with bursts let more through than the search knew of
        return MovingCut(
            time_ns=proved / network.units,
            offset=offset[classes.node_class],
            from_end=from_end[classes.node_class],
            needed=needed,
            rate=rate * network.scale,
            units=self.network.units,
        )

    def _burst(self, e: int) -> Fraction:
        """Bytes of a link between classes that need no time, in units of capacity times time."""
        network = self.network
        return int(self.classes.links[e]) * network.burst_bytes * network.units / network.scale


def _root(left: Fraction, opening: list[tuple[int, int, Fraction]]) -> tuple[Fraction, int]:
    """The time at which links that open one after the other have let through what is left, and the rate of those."""
    rate, begun, root = 0, Fraction(0), Fraction(0)
    for place, (begin, capacity, burst) in enumerate(opening):
        rate, begun = rate + capacity, begun + capacity * begin - burst
        root = max((left + begun) / rate, Fraction(begin))  # with a burst, the moment before it opens
        if place + 1 == len(opening) or root <= opening[place + 1][0]:
            break
    return root, rate
