"""Boxes of a topology as groups of nearby ranks, with corresponding members.

Where boxes are equal, member j of one box and member j of another sit on the same rail (fewest links between them),
so that algorithms whose partners across boxes have the same number run on rail-optimised networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.distances import distances
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.ring.search import boxes_of
from coppice.planners.ring.tour import all_paths, exact_tour, local_tour
from coppice.topology.model import Topology


@lru_cache(maxsize=16)
def boxes(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Ranks by box; where boxes are equal, member j of each corresponds to member j of the first.

    The members of a box follow each other along a short tour, where that is shorter than as numbered: those of the
    first box, and those of others where all their members are equally far from it.

    Boxes are hosts; where each host has one rank or there are no hosts, the switches that ranks hang on. One box
    holds all ranks where neither divides them.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> boxes(preset("fat-tree", leaves=2, gpus_per_leaf=3))
        ((0, 1, 2), (3, 4, 5))
    """
    found = boxes_of(topology)
    if len(found) == 1 and (topology.host[topology.rank_nodes] >= 0).all():
        found = boxes_of(replace(topology, host=np.full_like(topology.host, -1)))
    members = [sorted(topology.rank[box].tolist()) for box in found]
    size = len(members[0])
    if len(members) == 1 or any(len(box) != size for box in members):
        return tuple(tuple(box) for box in members)
    toured = [[box[n] for n in short_tour(hop_costs(topology, box))] for box in members]
    apart = crossings(topology)
    return tuple(tuple(_aligned(toured[0], box, apart)) for box in toured)


def _aligned(first: list[int], box: list[int], apart: NDArray[np.int64]) -> list[int]:
    """Members of ``box`` in the order of their nearest members of ``first``; near pairs choose before far ones."""
    if first is box:
        return box
    near = apart[np.ix_(first, box)]
    free = np.iinfo(np.int64).max
    placed = [-1] * len(first)
    for flat in np.argsort(near, axis=None, kind="stable").tolist():
        here, there = divmod(flat, len(box))
        if placed[here] < 0 and near[here, there] != free:
            placed[here] = box[there]
            near[:, there] = free
    return placed


def equal_boxes(topology: Topology) -> tuple[tuple[int, ...], ...] | None:
    """The boxes if there are several of one size of 2 or more, else None."""
    found = boxes(topology)
    sizes = {len(box) for box in found}
    return found if len(found) > 1 and len(sizes) == 1 and sizes != {1} else None


def nearest_divisor(number: int) -> int:
    """Divisor of ``number`` nearest to its square root, the smaller of two.

    Examples:
        >>> [nearest_divisor(n) for n in (1, 7, 12, 16, 24, 32)]
        [1, 1, 3, 4, 4, 4]
    """
    return max(divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0)


def in_order(case: AlgorithmCase, order: tuple[int, ...]) -> AlgorithmCase:
    """Permute an instance: rank ``order[p]`` at position p."""
    root = case.root if case.order is None or case.root < 0 else case.order[case.root]
    return replace(case, order=order, root=order.index(root) if root >= 0 else -1)


def grouped(case: AlgorithmCase, group: int, *, alone: bool = False) -> tuple[AlgorithmCase, int]:
    """Instance with consecutive groups of equal size, and that size.

    Args:
        case: What an algorithm serves.
        group: Positions of a group. 0 takes the boxes of the topology in an order that keeps partners on one rail;
            where there are no equal boxes, the divisor of P nearest to its root.
        alone: Without equal boxes, every position is a group of its own instead.

    Raises:
        InputError: If ``group`` does not divide P.
    """
    if not group:
        found = equal_boxes(case.topology)
        if found is not None:
            return in_order(case, tuple(rank for box in found for rank in box)), len(found[0])
        return case, 1 if alone else nearest_divisor(case.size)
    if case.size % group:
        raise InputError(f"expected groups that divide {case.size} ranks, found {group}: choose a divisor.")
    return case, group


RELAY = 2**32
"""Price of a GPU on the way, in links: more than any path has."""

_ALL_PATHS = 10  # ranks up to which every path through them is considered

_EXACT_TOURS = 12

_LOCAL_TOURS = 400

_FAR = 2.0**24


@lru_cache(maxsize=4)
def crossings(topology: Topology) -> NDArray[np.int64]:
    """``result[a, b]``: links from rank a to rank b, and :data:`RELAY` for every rank that must forward.

    Paths through few ranks come before paths of few links. Without a path the entry is 2^61 or more.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> crossings(preset("star", gpus=3)).tolist()
        [[0, 2, 2], [2, 0, 2], [2, 2, 0]]
    """
    length = np.where(topology.rank[topology.src] >= 0, RELAY + 1, 1).astype(np.int64)
    found = distances(topology, topology.rank_nodes, length)[:, topology.rank_nodes]
    found -= RELAY  # every path leaves its sender, which is no relay
    np.fill_diagonal(found, 0)
    return found


def hop_costs(topology: Topology, members: Sequence[int]) -> NDArray[np.float64]:
    """Hops between members, where intermediate GPUs count extra; at most 2^15 in all."""
    apart = crossings(topology)[np.ix_(members, members)]
    return (np.minimum(apart // RELAY, 64) * 256 + np.minimum(apart % RELAY, 255)).astype(np.float64)


def short_tour(cost: NDArray[np.float64]) -> list[int]:
    """Short closed tour from 0; the numeric order where that is as short.

    Args:
        cost: Cost of the step from one to another.

    Examples:
        >>> short_tour(np.array([[0, 2, 1, 2], [2, 0, 2, 1], [1, 2, 0, 2], [2, 1, 2, 0.0]]))
        [0, 3, 1, 2]
    """
    natural = list(range(len(cost)))
    if not 4 <= len(cost) <= _LOCAL_TOURS or (cost[0, 1] == cost[~np.eye(len(cost), dtype=np.bool_)]).all():
        return natural
    found = exact_tour(cost) if len(cost) <= _EXACT_TOURS else local_tour(cost, np.random.default_rng(0))
    if found is None or _length(cost, found) >= _length(cost, natural):
        return natural
    at = found.index(0)
    return found[at:] + found[:at]


def _length(cost: NDArray[np.float64], tour: list[int]) -> float:
    return float(cost[tour, np.roll(tour, -1)].sum())


def short_path(cost: NDArray[np.float64], first: int, last: int) -> list[int]:
    """Short Hamiltonian path from ``first`` to ``last``.

    Examples:
        >>> short_path(np.array([[0, 1, 5], [1, 0, 1], [5, 1, 0.0]]), 2, 0)
        [2, 1, 0]
    """
    size = len(cost)
    if (cost[0, 1] == cost[~np.eye(size, dtype=np.bool_)]).all():  # a switch: one path is as good as another
        between = [(first + n) % size for n in range(1, size)]
        return [first, *(n for n in between if n != last), last]
    return list(_searched_path(cost.tobytes(), size, first, last))


@lru_cache(maxsize=1024)
def _searched_path(table: bytes, size: int, first: int, last: int) -> tuple[int, ...]:
    cost = np.frombuffer(table).reshape(size, size)
    if size <= _ALL_PATHS:
        return tuple(all_paths(cost)[1](first, last))
    # As a closed tour: the step from the end to the beginning is free, and other ways there are far.
    closed = cost.copy()
    closed[last, :] += _FAR
    closed[:, first] += _FAR
    closed[last, first] = 0.0
    found = short_tour(closed)
    at = found.index(first)
    path = found[at:] + found[:at]
    path.remove(last)  # it stands at the end already, if the search closed the tour there
    return (*path, last)
