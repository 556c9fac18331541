"""Rings that visit box after box, each ring through other ranks and rails than the next.

A ring leaves a box at the rank whose partner of equal number it enters the next box at: the two are on one rail, so the
hop needs no other GPU. Ring c crosses between boxes i and i + 1 at number c or c + 1, in turn, so that it enters and
leaves every box at different ranks, and g rings with c = 0 .. g - 1 cross every rail alike. With an odd number of boxes
the last crossing is at c + 2.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.planners.algorithms.parts.boxes import boxes
from coppice.planners.algorithms.parts.tours import RELAY, crossings, hop_costs, short_path, short_tour
from coppice.topology.model import Topology

__all__ = ["box_rings", "tour_of_boxes"]

_USED = 2.0**-10
"""Price of a cable that another ring takes already: it decides between ways of equal length only."""


def box_rings(topology: Topology, channels: int) -> tuple[tuple[int, ...], ...]:
    """Orders of all ranks, one for each channel, that keep the ranks of a box together.

    Where boxes differ in size, or there is one only, channels alternate between one order and its reverse.

    Args:
        topology: Where the rings run.
        channels: Number of rings.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box_rings(preset("dgx-a100", boxes=2), 1)
        ((1, 2, 3, 4, 5, 6, 7, 0, 8, 10, 11, 12, 13, 14, 15, 9),)
    """
    found = boxes(topology)
    if len({len(box) for box in found}) > 1 or len(found[0]) < 2:
        order = tuple(rank for box in tour_of_boxes(topology) for rank in box)
        return _both_ways(order, channels)
    if len(found) == 1:
        tour = short_tour(hop_costs(topology, found[0]))
        return _both_ways(tuple(found[0][n] for n in tour), channels)
    boxed = tour_of_boxes(topology)
    gates = _gates(topology, boxed)
    inside = [hop_costs(topology, members) for members in boxed]
    return tuple(_ring(boxed, gates, inside, channel) for channel in range(channels))


def _both_ways(order: tuple[int, ...], channels: int) -> tuple[tuple[int, ...], ...]:
    return tuple(order[::-1] if channel % 2 else order for channel in range(channels))


def tour_of_boxes(topology: Topology) -> list[tuple[int, ...]]:
    """The boxes from the first one on, each followed by the nearest left; as numbered where that is as short."""
    found = list(boxes(topology))
    apart = crossings(topology)
    first = np.array([box[0] for box in found])
    near = apart[np.ix_(first, first)]
    order, left = [0], list(range(1, len(found)))
    while left:
        at = int(np.argmin(near[order[-1], left]))
        order.append(left.pop(at))
    natural = list(range(len(found)))
    if _length(near, order) >= _length(near, natural):
        order = natural
    return [found[box] for box in order]


def _length(apart: NDArray[np.int64], order: list[int]) -> int:
    return sum(int(apart[a, b]) for a, b in zip(order, [*order[1:], order[0]], strict=True))


def _gates(topology: Topology, tour: list[tuple[int, ...]]) -> list[int]:
    """Numbers of the members that reach their partners in the next box without other GPUs; all where none do."""
    apart = crossings(topology)
    size = len(tour[0])
    onward = zip(tour, [*tour[1:], tour[0]], strict=True)
    open_pairs = np.all(
        [[apart[a, b] < RELAY for a, b in zip(box, other, strict=True)] for box, other in onward], axis=0
    )
    return np.flatnonzero(open_pairs).tolist() or list(range(size))


def _ring(
    boxed: list[tuple[int, ...]], gates: list[int], inside: list[NDArray[np.float64]], channel: int
) -> tuple[int, ...]:
    """Ring number ``channel`` through the boxes; the cables that it takes become dearer in ``inside``."""
    count = len(boxed)
    crossing = [gates[(channel + box % 2) % len(gates)] for box in range(count)]
    if count % 2:
        crossing[-1] = gates[(channel + 2) % len(gates)]
    order: list[int] = []
    for box, members in enumerate(boxed):
        cost, enter, leave = inside[box], crossing[box - 1], crossing[box]
        if enter == leave:
            leave = min((n for n in range(len(members)) if n != enter), key=lambda n: cost[n, enter])
        path = short_path(cost, enter, leave)
        for here, there in pairwise(path):
            if cost[here, there] < 2:  # a cable of their own, not a switch
                cost[here, there] += _USED
        order += (members[n] for n in path)
    return tuple(order)
