"""Tours of large sparse graphs by patching: cover by cycles, then join cycles pairwise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
