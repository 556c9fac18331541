"""Good circulants of any size and degree, by search: all sets of jumps where they are few, a fixed sample otherwise.

Distances are found for a node by rotating a set of bits; only the sets with the fewest steps are then scheduled.
The sample depends on nothing but size, degree and number of tries, so that the search gives the same again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from math import comb
from random import Random

from coppice.design.families.family import optimum
from coppice.design.recipes.recipe import Base, Facts

__all__ = ["circulant_facts", "circulant_steps"]

_KEPT = 4
"""Sets of jumps that are scheduled, of each number of steps, until one is bandwidth-optimal."""
_MORE_STEPS = 3
"""Numbers of steps beyond the fewest that are looked at for a bandwidth-optimal circulant."""


def circulant_steps(ranks: int, jumps: tuple[int, ...], limit: int) -> int:
    """Steps in which the jumps reach all nodes of a circulant, or ``limit + 1`` if they need more.

    Args:
        ranks: Number of nodes.
        jumps: In all directions that links have.
        limit: Where to stop.

    Examples:
        >>> circulant_steps(13, (2, 3, 10, 11), 10), circulant_steps(8, (2, 4), 10)
        (2, 11)
    """
    everything = (1 << ranks) - 1
    seen = front = 1
    steps = 0
    while seen != everything:
        if steps == limit or not front:
            return limit + 1
        reached = 0
        for jump in jumps:
            reached |= front << jump
        reached = (reached & everything) | (reached >> ranks)
        front = reached & ~seen
        seen |= reached
        steps += 1
    return steps


def circulant_facts(ranks: int, degree: int, *, both_ways: bool, tries: int) -> list[tuple[Base, Facts]]:
    """The best circulants that the search finds: the fewest steps, and the fewest that are bandwidth-optimal.

    Args:
        ranks: Number of nodes, more than the degree.
        degree: Ports per node and direction.
        both_ways: Links are full-duplex cables; otherwise they lead one way.
        tries: Sets of jumps that are looked at.

    Returns:
        Recipes with the figures of breadth-first broadcast, steps rising and bandwidth time falling; none where there
        is no such circulant.

    Examples:
        >>> [(str(recipe), facts.steps) for recipe, facts in circulant_facts(8, 2, both_ways=False, tries=100)]
        [('dicirculant(8, 1, 3)', 3)]
    """
    family = "circulant" if both_ways else "dicirculant"
    found: dict[int, list[tuple[int, ...]]] = {}
    fewest = ranks
    for jumps in _tried(ranks, degree, both_ways=both_ways, tries=tries):
        steps = circulant_steps(ranks, _directed(ranks, jumps, both_ways=both_ways), fewest + _MORE_STEPS)
        if steps <= fewest + _MORE_STEPS:
            kept = found.setdefault(steps, [])
            if len(kept) < _KEPT and jumps not in kept:
                kept.append(jumps)
            fewest = min(fewest, steps)
    return _front(family, ranks, found)


def _front(family: str, ranks: int, found: dict[int, list[tuple[int, ...]]]) -> list[tuple[Base, Facts]]:
    """The least bandwidth time of each number of steps, while it falls."""
    front: list[tuple[Base, Facts]] = []
    for _, sets in sorted(found.items()):
        for jumps in sets:
            recipe = Base(family, (ranks, *jumps))
            facts = recipe.measured()
            if not front or facts.bandwidth_time < front[-1][1].bandwidth_time:
                if front and front[-1][1].steps == facts.steps:
                    front.pop()
                front.append((recipe, facts))
            if facts.bandwidth_time == optimum(ranks):
                return front
    return front


def _tried(ranks: int, degree: int, *, both_ways: bool, tries: int) -> Iterator[tuple[int, ...]]:
    """Sets of rising jumps with 1 among them, at most ``tries`` and those that are known to be good."""
    last = (ranks - 1) // 2 if both_ways else ranks - 1
    half = both_ways and degree % 2 == 1
    free = (degree // 2 if both_ways else degree) - 1
    tail = (ranks // 2,) if half else ()
    if degree >= ranks or (half and ranks % 2) or free > last - 1:
        return
    if free < 0:  # a port each, both ways: a pair
        if ranks == 2:
            yield (1,)
        return
    # So many jumps in a row are bandwidth-optimal one way: a step reaches as many nodes as there are jumps.
    yield (*range(1, free + 2), *tail)
    if both_ways and degree == 4:
        m = 1
        while 2 * (m + 1) ** 2 <= ranks - 2:
            m += 1
        if m > 1:
            yield (m, m + 1)
    if comb(last - 1, free) <= tries:
        for chosen in combinations(range(2, last + 1), free):
            yield (1, *chosen, *tail)
        return
    sample = Random(f"{ranks} {degree} {both_ways}")
    drawn: set[tuple[int, ...]] = set()
    for jumps in islice(_sampled(ranks, free, last, sample), tries):
        if jumps not in drawn:
            drawn.add(jumps)
            yield (*jumps, *tail)


def _sampled(ranks: int, free: int, last: int, sample: Random) -> Iterator[tuple[int, ...]]:
    """Powers of the root first, as digits of numbers have them; then sets at random."""
    root = max(2, round(ranks ** (1 / (free + 1))))
    for base in (root, root + 1, root - 1):
        jumps = sorted({base**power for power in range(free + 1)})
        if base > 1 and len(jumps) == free + 1 and jumps[-1] <= last:
            yield tuple(jumps)
    while True:
        yield (1, *sorted(sample.sample(range(2, last + 1), free)))


def _directed(ranks: int, jumps: tuple[int, ...], *, both_ways: bool) -> tuple[int, ...]:
    return tuple({sign * jump % ranks for jump in jumps for sign in (1, -1)}) if both_ways else jumps
