"""Decompose a regular graph of cables into edge-disjoint Hamiltonian cycles.

Where every rank has the same number 2k of equal duplex cables to other ranks, k cycles that use each cable
once, run in both directions, load every link equally: no set of rings is faster. The cables are first split
into k 2-factors (each rank on one cycle of each: Petersen's theorem), then two factors exchange the sides of
a square a-b-c-d (a-b and c-d in one, b-c and d-a in the other) while that leaves fewer cycles in all.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from coppice.planners.ring.tour import cycle_cover
from coppice.topology.model import Topology

_MAX_FACTORS = 16
_PATIENCE = 1  # passes over all points without gain before a kick
_KICKS = 18
_SIDEWAYS = 0.03  # chance to take an exchange that gains nothing


def cable_multigraph(topology: Topology) -> dict[tuple[int, int], int] | None:
    """Number of unit cables between ranks a < b, or None where ranks are not joined by duplex cables only.

    None also where degrees differ or are odd, or where the unit is so small that there are too many cables.
    """
    if (topology.rank[topology.src] < 0).any() or (topology.rank[topology.dst] < 0).any():
        return None
    rank = topology.rank
    unit = gcd(*topology.capacity.tolist())
    rates = {
        (int(rank[a]), int(rank[b])): c // unit
        for a, b, c in zip(topology.src, topology.dst, topology.capacity.tolist(), strict=True)
    }
    degree = [0] * topology.num_ranks
    for (a, b), rate in rates.items():
        if rates.get((b, a)) != rate:
            return None
        degree[a] += rate
    if len(set(degree)) != 1 or degree[0] % 2 or not 2 <= degree[0] <= 2 * _MAX_FACTORS:
        return None
    return {(a, b): rate for (a, b), rate in rates.items() if a < b}


def hamiltonian_factors(
    points: int, cables: dict[tuple[int, int], int], rng: np.random.Generator, *, tries: int
) -> list[list[int]] | None:
    """Hamiltonian cycles that together use every cable once, or None where none are found.

    Args:
        points: Number of points (3 or more).
        cables: Number of parallel cables by pair (a, b), a < b; all degrees equal and even.
        rng: Source of the order in which exchanges are tried; the same state gives the same cycles.
    """
    for _ in range(tries):
        factors = _two_factors(points, cables, rng)
        if _merge(factors, rng):
            return [factor.members(0) for factor in factors]
    return None


class _Factor:
    """A 2-factor: two neighbours of each point, and the cycle that each point lies on."""

    def __init__(self, following: list[int]) -> None:
        self.ends: list[list[int]] = [[-1, -1] for _ in following]
        for point, after in enumerate(following):
            self.ends[point][0] = after
            self.ends[after][1] = point
        self.cycle = [-1] * len(following)  # name of each point's cycle
        self.place = [0] * len(following)  # place of each point on its cycle, counted from some point of it
        self.length = [0]  # length of each cycle by name; names are never used again
        self.count = 0
        for point in range(len(following)):
            if self.cycle[point] < 0:
                self.label(point)
                self.count += 1

    def members(self, start: int) -> list[int]:
        """Points of the cycle through ``start``, in order."""
        found, before, point = [start], start, self.ends[start][0]
        while point != start:
            found.append(point)
            x, y = self.ends[point]
            before, point = point, (y if x == before else x)
        return found

    def label(self, start: int) -> None:
        """Give the cycle through ``start`` a new name."""
        members = self.members(start)
        for place, point in enumerate(members):
            self.cycle[point] = len(self.length)
            self.place[point] = place
        self.length.append(len(members))

    def swap(self, a: int, b: int, c: int, d: int) -> None:
        """Replace the cables a-b and c-d by b-c and d-a."""
        for point, old, new in ((a, b, d), (b, a, c), (c, d, b), (d, c, a)):
            ends = self.ends[point]
            ends[ends.index(old)] = new

    def change(self, a: int, b: int, c: int, d: int) -> int:
        """How many cycles more :meth:`swap` would make: a cycle a b .. c d splits, a b .. d c does not."""
        if self.cycle[a] != self.cycle[c]:
            return -1
        length, origin = self.length[self.cycle[a]], self.place[a]
        forward = 1 if (self.place[b] - origin) % length == 1 else -1
        to_c = forward * (self.place[c] - origin) % length
        to_d = forward * (self.place[d] - origin) % length
        return 1 if to_c < to_d else 0


def _two_factors(points: int, cables: dict[tuple[int, int], int], rng: np.random.Generator) -> list[_Factor]:
    """Orient the cables along Euler circuits, then take perfect matchings from senders to receivers."""
    ends = [edge for edge, count in sorted(cables.items()) for _ in range(count)]
    ends = [ends[i] for i in rng.permutation(len(ends)).tolist()]
    at: list[list[int]] = [[] for _ in range(points)]
    for number, (a, b) in enumerate(ends):
        at[a].append(number)
        at[b].append(number)
    used = [False] * len(ends)
    out: list[list[int]] = [[] for _ in range(points)]
    for start in range(points):
        point = start
        while True:
            while at[point] and used[at[point][-1]]:
                at[point].pop()
            if not at[point]:
                break  # back at the start: all degrees are even
            number = at[point].pop()
            used[number] = True
            a, b = ends[number]
            other = b if point == a else a
            out[point].append(other)
            point = other
    factors: list[_Factor] = []
    while out[0]:
        following = cycle_cover(out, range(points)) or []  # a regular bipartite multigraph has one
        for point, after in enumerate(following):
            out[point].remove(after)
        factors.append(_Factor(following))
    return factors


def _merge(factors: list[_Factor], rng: np.random.Generator) -> bool:
    """Exchange squares until every factor is one cycle; False where some kicks do not help when stuck."""
    points = len(factors[0].ends)
    idle = kicks = 0
    while sum(factor.count for factor in factors) > len(factors):
        gained = False
        for a in rng.permutation(points).tolist():
            gained |= _exchange_at(a, factors, accept=0 if idle else -1, rng=rng)
        idle = 0 if gained else idle + 1
        if idle > _PATIENCE:
            if kicks == _KICKS:
                return False
            kicks, idle = kicks + 1, 0
            for a in rng.integers(points, size=6).tolist():
                _exchange_at(a, factors, accept=2, rng=rng)
    return True


def _exchange_at(a: int, factors: list[_Factor], *, accept: int, rng: np.random.Generator) -> bool:
    """Try the squares at point a and take the first that leaves fewer cycles; True if there was one.

    With ``accept`` of 0 or more, a square that leaves at most so many cycles more is taken now and then.
    """
    for first in factors:
        for b in list(first.ends[a]):
            for second in factors:
                if second is first or (accept < 0 and first.count == 1 and second.count == 1):
                    continue
                for c in list(second.ends[b]):
                    for d in first.ends[c]:
                        if len({a, b, c, d}) < 4 or a not in second.ends[d]:
                            continue
                        gain = first.change(a, b, c, d) + second.change(b, c, d, a)
                        if gain < 0 or (gain <= accept and rng.random() < _SIDEWAYS):
                            _apply(first, second, (a, b, c, d))
                            return gain < 0
    return False


def _apply(first: _Factor, second: _Factor, square: tuple[int, int, int, int]) -> None:
    a, b, c, d = square
    first.count += first.change(a, b, c, d)
    second.count += second.change(b, c, d, a)
    first.swap(a, b, c, d)
    second.swap(b, c, d, a)
    for factor in (first, second):
        factor.label(a)
        if factor.cycle[a] != factor.cycle[c]:
            factor.label(c)
