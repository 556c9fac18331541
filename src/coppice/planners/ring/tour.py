"""Travelling-salesman tours and paths: exact to 16 points, local search beyond.

Costs may be asymmetric; an infinite cost forbids a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from coppice import _core

PathOf = Callable[[int, int], list[int]]
"""The path through all points from one point to another."""

EXACT_POINTS = 16
_PENALTY = 1e6  # of a forbidden step, in units of the largest finite cost


def tour_cost(cost: NDArray[np.float64], tour: list[int]) -> float:
    """Length of a closed tour."""
    return float(cost[tour, [*tour[1:], tour[0]]].sum())


@cache
def _layers(points: int) -> list[list[NDArray[np.int64]]]:
    """``_layers(n)[size][j]``: subsets of n points (bit masks) with ``size`` members that contain j."""
    masks = np.arange(1 << points, dtype=np.int64)
    size = np.zeros(len(masks), dtype=np.int64)
    for j in range(points):
        size += (masks >> j) & 1
    return [
        [masks[(size == wanted) & ((masks >> j) & 1 == 1)] for j in range(points)]
        for wanted in range(points + 1)
    ]


def exact_tour(cost: NDArray[np.float64]) -> list[int] | None:
    """The cheapest closed tour, or None where there is none (Held and Karp, see cpp/graph/tour.h).

    Args:
        cost: Square matrix of 2 to :data:`EXACT_POINTS` points.

    Examples:
        >>> exact_tour(np.array([[9.0, 5, 1], [1, 9, 5], [5, 1, 9]]))
        [0, 2, 1]
    """
    tour: list[int] = _core.cheapest_tour(len(cost), np.ascontiguousarray(cost).reshape(-1)).tolist()
    return tour or None


def all_paths(cost: NDArray[np.float64]) -> tuple[NDArray[np.float64], PathOf]:
    """Shortest Hamiltonian path for every pair (first, last), by dynamic programming.

    Returns:
        The matrix of costs (infinite where there is no such path), and a function that traces a finite one.

    Examples:
        >>> through, path = all_paths(np.array([[9.0, 5, 1], [1, 9, 5], [5, 1, 9]]))
        >>> float(through[0, 1]), path(0, 1)
        (2.0, [0, 2, 1])
    """
    n = len(cost)
    best = np.full((n, 1 << n, n), np.inf)  # best[first, mask, j]: from first through mask, ending at j
    for first in range(n):
        best[first, 1 << first, first] = 0.0
    for layer in _layers(n)[2:]:
        for j, masks in enumerate(layer):
            best[:, masks, j] = (best[:, masks ^ (1 << j)] + cost[:, j]).min(axis=2)
    full = (1 << n) - 1

    def path(first: int, last: int) -> list[int]:
        mask, j, found = full, last, [last]
        while mask != 1 << j:
            mask ^= 1 << j
            j = int(np.argmin(best[first, mask] + cost[:, j]))
            found.append(j)
        return found[::-1]

    return best[:, full].copy(), path


def cut_tours(cost: NDArray[np.float64], tours: list[list[int]]) -> tuple[NDArray[np.float64], PathOf]:
    """As :func:`all_paths`, over the paths from cutting given tours open."""
    n = len(cost)
    entry = np.array(tours)  # [tour, place]: the path that begins there ends one place before
    last = np.roll(entry, 1, axis=1)
    step = cost[last, entry]
    finite = np.isfinite(step)
    missing = (~finite).sum(axis=1)[:, None] - ~finite  # forbidden steps left when this one is cut
    length = np.where(finite, step, 0.0).sum(axis=1)[:, None] - np.where(finite, step, 0.0)
    length = np.where(missing > 0, np.inf, length)
    order = np.argsort(-length, axis=None, kind="stable")  # the shortest are written last
    through = np.full((n, n), np.inf)
    source = np.zeros((n, n), dtype=np.int64)
    ends = (entry.reshape(-1)[order], last.reshape(-1)[order])
    through[ends] = length.reshape(-1)[order]
    source[ends] = order

    def path(first: int, final: int) -> list[int]:
        tour, place = divmod(int(source[first, final]), n)
        order: list[int] = np.roll(entry[tour], -place).tolist()  # not `tours`: the caller may change it
        return order

    return through, path


def local_tour(
    cost: NDArray[np.float64], rng: np.random.Generator, *, start: list[int] | None = None, kicks: int = 20
) -> list[int] | None:
    """Short tour by 2-opt and or-opt with random restarts, or None where none is found.

    Args:
        cost: Square matrix of 4 points or more.
        rng: Source of the restarts; the same state gives the same tour.
        start: Tour to begin with; None begins at the nearest-neighbour tour.
        kicks: Number of perturbations (double bridge) after the first descent.
    """
    finite = np.isfinite(cost)
    np.fill_diagonal(finite, val=False)
    ceiling = float(cost[finite].max(initial=1.0))
    penal = np.where(finite, cost, _PENALTY * ceiling)
    floor = float(penal.min(axis=1).sum()) * (1 + 1e-12)
    tour = _descend(penal, np.array(_nearest_neighbour(penal) if start is None else start))
    best, best_cost = tour, _closed(penal, tour)
    budget = min(kicks, max(1, int(4e7 / len(cost) ** 3)))
    for _ in range(budget):
        if best_cost <= floor:
            break
        tour = _descend(penal, _double_bridge(best, rng))
        length = _closed(penal, tour)
        if length < best_cost:
            best, best_cost = tour, length
    if best_cost >= _PENALTY * ceiling:
        return None
    return _from_zero(best.tolist())


def _from_zero(tour: list[int]) -> list[int]:
    at = tour.index(0)
    return tour[at:] + tour[:at]


def _closed(cost: NDArray[np.float64], tour: NDArray[np.int64]) -> float:
    return float(cost[tour, np.roll(tour, -1)].sum())


def _nearest_neighbour(cost: NDArray[np.float64]) -> list[int]:
    free = cost.copy()
    tour = [0]
    free[:, 0] = np.inf
    for _ in range(len(cost) - 1):
        tour.append(int(np.argmin(free[tour[-1]])))
        free[:, tour[-1]] = np.inf
    return tour


def _double_bridge(tour: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    a, b, c = sorted(rng.choice(np.arange(1, len(tour)), size=3, replace=False).tolist())
    return np.concatenate([tour[:a], tour[b:c], tour[a:b], tour[c:]])


def _descend(cost: NDArray[np.float64], tour: NDArray[np.int64]) -> NDArray[np.int64]:
    """Best improvement over 2-opt and segment moves until none improves (at most 4 n steps)."""
    n = len(tour)
    for _ in range(4 * n):
        reversal, by_reversal = _best_reversal(cost, tour)
        move, by_move = _best_segment_move(cost, tour)
        if min(by_reversal, by_move) > -1e-9 * (1 + abs(_closed(cost, tour))):
            break
        if by_reversal <= by_move:
            i, j = reversal
            tour = np.concatenate([tour[:i], tour[i : j + 1][::-1], tour[j + 1 :]])
        else:
            length, i, j = move  # put tour[i : i + length] behind what then stands at j
            rolled = np.roll(tour, -i)
            rest = rolled[length:]
            at = (j - i - length) % n + 1
            tour = np.concatenate([rest[:at], rolled[:length], rest[at:]])
    return tour


def _best_reversal(cost: NDArray[np.float64], tour: NDArray[np.int64]) -> tuple[tuple[int, int], float]:
    """The best reversal of tour[i .. j] with 1 <= i < j < n, and its change of cost."""
    n = len(tour)
    before, after = np.roll(tour, 1), np.roll(tour, -1)
    forward = np.concatenate([[0.0], np.cumsum(cost[tour[:-1], tour[1:]])])  # cost of tour[0] .. tour[i]
    backward = np.concatenate([[0.0], np.cumsum(cost[tour[1:], tour[:-1]])])
    change = (
        cost[np.ix_(before, tour)]  # before i -> j
        + cost[np.ix_(tour, after)]  # i -> after j
        - cost[before, tour][:, None]
        - cost[tour, after][None, :]
        + (backward - forward)[None, :]
        - (backward - forward)[:, None]
    )
    change[np.tril_indices(n)] = np.inf
    change[0] = np.inf
    flat = int(np.argmin(change))
    i, j = divmod(flat, n)
    return (i, j), float(change[i, j])


def _best_segment_move(
    cost: NDArray[np.float64], tour: NDArray[np.int64]
) -> tuple[tuple[int, int, int], float]:
    """The best move of 1 to 3 points to another place: (length, begin, new predecessor), change of cost."""
    n = len(tour)
    best: tuple[tuple[int, int, int], float] = ((1, 0, 0), np.inf)
    places = np.arange(n)
    step = cost[tour, np.roll(tour, -1)]
    for length in range(1, min(3, n - 3) + 1):
        head, tail = tour, np.roll(tour, -(length - 1))
        before, after = np.roll(tour, 1), np.roll(tour, -length)
        saved = cost[before, head] + cost[tail, after] - cost[before, after]
        change = (
            cost[np.ix_(tour, head)].T
            + cost[np.ix_(tail, np.roll(tour, -1))]
            - step[None, :]
            - saved[:, None]
        )
        offset = (places[None, :] - places[:, None]) % n  # of the new predecessor from the segment's begin
        change[(offset < length) | (offset == n - 1)] = np.inf
        i, j = divmod(int(np.argmin(change)), n)
        if change[i, j] < best[1]:
            best = ((length, i, j), float(change[i, j]))
    return best
