"""Travelling-salesman tours and paths: exact to 16 points, local search beyond, patched cycles in large sparse graphs.

Costs may be asymmetric; an infinite cost forbids a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


_SHAKES = 100


def patched_tour(out: list[list[int]], rng: np.random.Generator, *, tries: int = 4) -> list[int] | None:
    """Hamiltonian cycle over allowed steps, preferred ones first, or None where none is found.

    Args:
        out: Points that each point may step to, the preferred ones first.
        rng: Source of the order in which points are treated; the same state gives the same tour.
        tries: Number of cycle covers to begin with.
    """
    steps = [set(reached) for reached in out]
    symmetric = all(point in steps[v] for point, reached in enumerate(out) for v in reached)
    for _ in range(tries):
        following = cycle_cover(out, rng.permutation(len(out)).tolist())
        if following is None:
            return None
        tour = _join(_Cycles(following), out, steps, symmetric=symmetric, rng=rng)
        if tour is not None:
            return tour
    return None


def cycle_cover(out: list[list[int]], order: Sequence[int]) -> list[int] | None:
    """Distinct successor for every point (a perfect matching by augmenting paths), or None.

    Args:
        out: Points that may follow each point, preferred ones first.
        order: The points, in the order in which they choose.
    """
    following = [-1] * len(out)
    owner = [-1] * len(out)  # owner[v]: the point whose successor is v
    for root in order:
        parent: dict[int, int] = {}  # successor candidate -> the point that asked for it
        queue = [root]
        free = -1
        for point in queue:
            for v in out[point]:
                if v in parent:
                    continue
                parent[v] = point
                if owner[v] < 0:
                    free = v
                    break
                queue.append(owner[v])
            if free >= 0:
                break
        if free < 0:
            return None
        while free >= 0:
            point = parent[free]
            following[point], owner[free], free = free, point, following[point]
            if point == root:
                break
    return following


class _Cycles:
    """A permutation as cycles, with the cycle of each point."""

    def __init__(self, following: list[int]) -> None:
        self.following = following
        self.previous = [0] * len(following)
        for point, after in enumerate(following):
            self.previous[after] = point
        self.cycle = [-1] * len(following)
        self.count = 0
        for point in range(len(following)):
            if self.cycle[point] < 0:
                self._label(point)

    def _label(self, start: int) -> None:
        name = self.count
        self.count += 1
        point = start
        while self.cycle[point] != name:
            self.cycle[point] = name
            point = self.following[point]

    def members(self, start: int) -> list[int]:
        """Points of the cycle through ``start``, in order."""
        found = [start]
        while self.following[found[-1]] != start:
            found.append(self.following[found[-1]])
        return found

    def reverse(self, start: int) -> None:
        """Run the cycle through ``start`` the other way."""
        for point in self.members(start):
            self.following[point], self.previous[point] = self.previous[point], self.following[point]

    def exchange(self, a: int, c: int) -> None:
        """Replace the steps a -> b and c -> d by a -> d and c -> b: joins two cycles, or splits one."""
        b, d = self.following[a], self.following[c]
        self.following[a], self.following[c] = d, b
        self.previous[d], self.previous[b] = a, c


def _join(
    cycles: _Cycles, out: list[list[int]], steps: list[set[int]], *, symmetric: bool, rng: np.random.Generator
) -> list[int] | None:
    """Join all cycles into one by exchanges along allowed steps, shaken when stuck (``_SHAKES`` times)."""
    n = len(out)
    remaining = cycles.count
    for shake in range(_SHAKES + 1):
        progress = True
        while progress and remaining > 1:
            progress = False
            for a in rng.permutation(n).tolist():
                for d in out[a]:
                    if cycles.cycle[d] == cycles.cycle[a]:
                        continue
                    b = cycles.following[a]
                    c = cycles.previous[d]
                    if b not in steps[c]:
                        if not symmetric or b not in steps[cycles.following[d]]:
                            continue
                        cycles.reverse(d)
                        c = cycles.previous[d]
                    name = cycles.cycle[a]
                    for point in cycles.members(d):
                        cycles.cycle[point] = name
                    cycles.exchange(a, c)
                    remaining -= 1
                    progress = True
                    break
        if remaining == 1:
            return cycles.members(0)
        if shake == _SHAKES or not _shake(cycles, out, steps, rng):
            return None
        cycles = _Cycles(cycles.following)
        remaining = cycles.count
    return None


def _shake(cycles: _Cycles, out: list[list[int]], steps: list[set[int]], rng: np.random.Generator) -> bool:
    """A few random exchanges that split cycles, so that others can be joined; False where none exists."""
    moved = 0
    for a in rng.permutation(len(out)).tolist():
        b = cycles.following[a]
        for d in out[a]:
            c = cycles.previous[d]
            if d != b and c != a and d != a and c != b and b in steps[c]:
                cycles.exchange(a, c)
                moved += 1
                break
        if moved == 3:
            break
    return moved > 0
