"""Rings that visit box after box, each ring through other ranks and rails than the next.

A ring leaves a box at the rank whose partner of equal number it enters the next box at: the two are on one rail, so the
hop needs no other GPU. Ring c crosses between boxes i and i + 1 at number c or c + 1, in turn, so that it enters and
leaves every box at different ranks, and g rings with c = 0 .. g - 1 cross every rail alike. With an odd number of boxes
the last crossing is at c + 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.planners.algorithms.boxes import RELAY, boxes, crossings
from coppice.planners.ring_tour import all_paths, exact_tour, local_tour
from coppice.topology.model import Topology

__all__ = ["box_rings", "tour_of_boxes"]

_ALL_PATHS = 10  # ranks of a box up to which every path through it is considered
_EXACT_TOURS = 12
_FAR = 2.0**20


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
        return _both_ways(_around(topology, found[0]), channels)
    tour = tour_of_boxes(topology)
    gates = _gates(topology, tour)
    return tuple(_ring(topology, tour, gates, channel) for channel in range(channels))


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


def _ring(topology: Topology, tour: list[tuple[int, ...]], gates: list[int], channel: int) -> tuple[int, ...]:
    """Ring number ``channel`` through the boxes."""
    count = len(tour)
    crossing = [gates[(channel + box % 2) % len(gates)] for box in range(count)]
    if count % 2:
        crossing[-1] = gates[(channel + 2) % len(gates)]
    order: list[int] = []
    for box, members in enumerate(tour):
        enter, leave = crossing[box - 1], crossing[box]
        order += _through(topology, members, enter, leave)
    return tuple(order)


def _through(topology: Topology, members: tuple[int, ...], enter: int, leave: int) -> list[int]:
    """All members of a box from number ``enter`` to number ``leave``, along short hops.

    Where both are one, the path ends at another member.
    """
    size = len(members)
    cost = _costs(topology, members)
    if enter == leave:
        leave = min(
            (n for n in range(size) if n != enter), key=lambda n: (cost[n, enter], -((n - enter) % size))
        )
    away = ~np.eye(size, dtype=np.bool_)
    if (cost[away] == cost[0, 1]).all():  # a switch: one path is as good as another
        between = [(enter + n) % size for n in range(1, size)]
        path = [enter, *(n for n in between if n != leave), leave]
    elif size <= _ALL_PATHS:
        path = all_paths(cost)[1](enter, leave)
    else:
        path = _closed(cost, enter, leave)
    return [members[n] for n in path]


def _closed(cost: NDArray[np.float64], enter: int, leave: int) -> list[int]:
    """A path as a closed tour: the step from its end to its beginning is free, and other ways there are far."""
    closed = cost.copy()
    closed[leave, :] += _FAR
    closed[:, enter] += _FAR
    closed[leave, enter] = 0.0
    tour = _tour(closed)
    at = tour.index(enter)
    path = tour[at:] + tour[:at]
    if path[-1] != leave:
        path.remove(leave)
        path.append(leave)
    return path


def _around(topology: Topology, members: tuple[int, ...]) -> tuple[int, ...]:
    """A closed tour of one box; as numbered where it is as short."""
    if len(members) < 4:
        return members
    cost = _costs(topology, members)
    tour = _tour(cost) if len(members) <= 400 else list(range(len(members)))
    natural = list(range(len(members)))
    length = [float(cost[order, np.roll(order, -1)].sum()) for order in (tour, natural)]
    return tuple(members[n] for n in (tour if length[0] < length[1] else natural))


def _tour(cost: NDArray[np.float64]) -> list[int]:
    if len(cost) <= _EXACT_TOURS:
        return exact_tour(cost) or list(range(len(cost)))
    return local_tour(cost, np.random.default_rng(0)) or list(range(len(cost)))


def _costs(topology: Topology, members: tuple[int, ...]) -> NDArray[np.float64]:
    """Links between members, where other GPUs on the way count as many."""
    apart = crossings(topology)[np.ix_(members, members)]
    return (np.minimum(apart // RELAY, 64) * 256 + np.minimum(apart % RELAY, 255)).astype(np.float64)
