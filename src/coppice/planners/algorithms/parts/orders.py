"""Rank orders that fit a topology, for algorithms that use rank numbers only.

Rings and trees send most between neighbouring numbers. So the ranks of a box belong together, and from box to box a
rank is best followed by one on the same rail or under the same switch; on a tree of switches a depth-first walk crosses
every link once in each direction; on directly cabled GPUs a walk along the cables does.

    rank    as numbered
    rail    box after box; each is left and entered on one rail
    dfs     depth first through the switches
    near    a short closed tour of all ranks

All of them are judged by the links that a ring crosses; the order of fewest GPUs on the way, then fewest links, is
taken, and never one that crosses more links than rank order does.

The rings of several channels visit box after box, each through other ranks and rails than the next. A ring leaves a box
at the rank whose partner of equal number it enters the next box at: the two are on one rail, so the hop needs no other
GPU. Ring c crosses between boxes i and i + 1 at number c or c + 1, in turn, so that it enters and leaves every box at
different ranks, and g rings with c = 0 .. g - 1 cross every rail alike. With an odd number of boxes the last crossing
is at c + 2.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.planners.algorithms.parts.boxes import RELAY, boxes, crossings, hop_costs, short_path, short_tour
from coppice.planners.ring.tour import local_tour, patched_tour
from coppice.topology.model import Topology

POLICIES = ("rank", "rail", "dfs", "near")
_MOST_RANKS = 4096  # more than that are not compared with each other
_MOST_TOURED = 256


def links_crossed(topology: Topology, order: tuple[int, ...]) -> int:
    """Total number of links on the paths between neighbours of a closed order.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> fabric = preset("fat-tree", leaves=2, gpus_per_leaf=2)
        >>> links_crossed(fabric, (0, 1, 2, 3)), links_crossed(fabric, (0, 2, 1, 3))
        (12, 16)
    """
    return _length_of_order(topology, order)[1]


def _length_of_order(topology: Topology, order: tuple[int, ...]) -> tuple[int, int]:
    """GPUs on the way, and links crossed, around a closed order."""
    hops = crossings(topology)[list(order), [*order[1:], *order[:1]]]
    return int((hops // RELAY).sum()), int((hops % RELAY).sum())


@lru_cache(maxsize=16)
def box_order(topology: Topology) -> tuple[int, ...]:
    """Rank order with nearby neighbours: ``result[p]`` is the rank at position p.

    Never one around which more links are crossed than in rank order. Rank order itself for more than 4,096 ranks
    without boxes.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box_order(preset("torus", dims=(2, 3)))
        (0, 2, 5, 3, 4, 1)
    """
    if topology.num_ranks > _MOST_RANKS:
        return tuple(range(topology.num_ranks))
    orders = [order_by(topology, policy) for policy in POLICIES]
    limit = _length_of_order(topology, orders[0])[1]
    # The first of equals stays: rank order where nothing is gained.
    return min(
        (order for order in orders if _length_of_order(topology, order)[1] <= limit),
        key=lambda o: _length_of_order(topology, o),
    )


def order_by(topology: Topology, policy: str) -> tuple[int, ...]:
    """Rank order by one of :data:`POLICIES`; it begins with rank 0.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> order_by(preset("torus", dims=(3, 3)), "dfs")
        (0, 1, 2, 3, 4, 5, 6, 7, 8)
    """
    if policy not in POLICIES:
        raise InputError(
            f"expected an order that is {', '.join(POLICIES[:-1])} or {POLICIES[-1]}, found {policy!r}."
        )
    ranks = tuple(range(topology.num_ranks))
    if policy == "rail" and len(boxes(topology)) > 1:
        return _from_zero(box_rings(topology, 1)[0])
    if policy == "dfs":
        return _from_zero(depth_first(topology))
    if policy == "near" and len(ranks) >= 4:
        return _from_zero(_near(topology))
    return ranks


def depth_first(topology: Topology) -> tuple[int, ...]:
    """Ranks in depth-first order through the switches, from the first switch; lower nodes first.

    Ranks that no switch leads to follow as numbered.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> depth_first(preset("star", gpus=4))
        (0, 1, 2, 3)
    """
    out: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for src, dst in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        out[src].append(dst)
    rank = topology.rank.tolist()
    order: list[int] = []
    seen: set[int] = set()
    for start in np.flatnonzero(topology.rank < 0).tolist():
        stack = [start]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if rank[node] >= 0:
                order.append(rank[node])
                continue
            # Ranks of this switch before the switches behind it; a stack gives back the last first.
            onward = sorted(out[node], key=lambda n: (rank[n] < 0, max(rank[n], 0), n))
            stack.extend(reversed(onward))
    met = set(order)
    return (*order, *(r for r in range(topology.num_ranks) if r not in met))


def _near(topology: Topology) -> tuple[int, ...]:
    """A short closed tour: along cables between ranks, else local search, for many ranks the nearest one each time."""
    along = _along_cables(topology)
    if along is not None:
        return along
    cost = hop_costs(topology, range(topology.num_ranks))
    np.fill_diagonal(cost, np.inf)
    if len(cost) <= _MOST_TOURED:
        natural = list(range(len(cost)))
        tour = local_tour(cost, np.random.default_rng(0), start=natural, kicks=0)
        again = local_tour(cost, np.random.default_rng(0), kicks=20)
        tours = [each for each in (tour, again) if each is not None]
        if tours:
            return min((tuple(each) for each in tours), key=lambda each: _length_of_order(topology, each))
    order = [0]
    cost[:, 0] = np.inf
    for _ in range(len(cost) - 1):
        order.append(int(np.argmin(cost[order[-1]])))
        cost[:, order[-1]] = np.inf
    return tuple(order)


def _along_cables(topology: Topology) -> tuple[int, ...] | None:
    """A closed tour that takes a cable at every step, or None where none was found."""
    if (topology.rank < 0).any():
        return None
    onward: list[list[int]] = [[] for _ in range(topology.num_ranks)]
    for src, dst in zip(
        topology.rank[topology.src].tolist(), topology.rank[topology.dst].tolist(), strict=True
    ):
        onward[src].append(dst)
    tour = patched_tour(onward, np.random.default_rng(0))
    return None if tour is None else tuple(tour)


def _from_zero(order: tuple[int, ...]) -> tuple[int, ...]:
    at = order.index(0)
    return order[at:] + order[:at]


_USED = 2.0**-10
"""Price of a cable that another ring takes already: it decides between ways of equal length only."""


def box_rings(topology: Topology, channels: int) -> tuple[tuple[int, ...], ...]:
    """Rank orders, one per channel, that keep the ranks of a box together.

    Where boxes differ in size, or there is one only, channels alternate between one order and its reverse.

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
    """Nearest-neighbour tour of the boxes; the numeric order where that is as short."""
    found = list(boxes(topology))
    apart = crossings(topology)
    first = np.array([box[0] for box in found])
    near = apart[np.ix_(first, first)]
    order, left = [0], list(range(1, len(found)))
    while left:
        at = int(np.argmin(near[order[-1], left]))
        order.append(left.pop(at))
    natural = list(range(len(found)))
    if _links_around(near, order) >= _links_around(near, natural):
        order = natural
    return [found[box] for box in order]


def _links_around(apart: NDArray[np.int64], order: list[int]) -> int:
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
