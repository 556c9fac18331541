"""Short walks through the ranks of a box, as few other GPUs and links on the way as possible."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.distances import distances
from coppice.planners.ring.tour import all_paths, exact_tour, local_tour
from coppice.topology.model import Topology

__all__ = ["RELAY", "crossings", "hop_costs", "short_path", "short_tour"]

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
    """Links between members, where other GPUs on the way count as many; at most 2^15 in all."""
    apart = crossings(topology)[np.ix_(members, members)]
    return (np.minimum(apart // RELAY, 64) * 256 + np.minimum(apart % RELAY, 255)).astype(np.float64)


def short_tour(cost: NDArray[np.float64]) -> list[int]:
    """A short closed tour from 0; in the order of the numbers where that is as short.

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
    """A short path through all from ``first`` to ``last``, two different ones.

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
