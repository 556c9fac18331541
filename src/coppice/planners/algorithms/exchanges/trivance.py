"""Trivance: both neighbours at three times the distance in every step, in about log3 P steps on a ring or torus.

In step s position r sends to r - 3^s and to r + 3^s, over both ports at once, and adds what comes from both to its own
at once. Bruck's algorithm of radix 3 takes as many steps, but both partners are on one side, at 3^s and 2 3^s.

**bandwidth:** a reduce-scatter, near partners and much data first, then the all-gather that is its mirror. A position
sends each partner the blocks that the partner reaches in later steps, and keeps those that it can still serve itself.
Where P is no power of three, the last distance is only ceil((P - 3^(L - 1))/2), L = ceil(log3 P), and blocks that can
go several ways go the last one.

Steps 2 L (half of that for reduce-scatter and all-gather); bytes per rank 2 (P - 1)/P M; two messages in a step, one
after the other on a crossbar: for P = 3^L time ``4 L alpha + 2 (P - 1)/P M beta + (P - 1)/P M gamma``. On a ring of
P = 3^L every link carries 2 L/3 M: in each step M/3^(s + 1) over 3^s links, both ways.

**latency:** whole buffers, for the all-reduce. After step s a position has the sum of 3^(s + 1) neighbours, itself in
the middle. Steps log3 P. Where a number of ranks is no power of three, a step of radix two joins two such sums:
P = 3^a 2^b takes a + b steps. Any other number folds neighbours in first, which adds two steps, down to the number that
takes the fewest. Time on a crossbar for P = 3^a 2^b ``(2 a + b) (alpha + M (beta + gamma))``; folded, leaders with
different numbers of buffers to add wait for each other, and the cost is not stated.

**Grids.** As with Swing, axes of a torus take turns, and a part of the data begins on each of them, in two directions
(:mod:`..parts.grids`).

Juerss, Addanki and Schmid, "Trivance: latency-optimal allreduce by shortcutting multiport networks", arXiv 2602.17254;
the latency variant for numbers that are no power of three is ours.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.grids import (
    GridPlan,
    Line,
    grid_algorithms,
    grid_plan,
    scattered,
    summed,
)
from coppice.planners.algorithms.parts.radix import levels


def distances(size: int) -> list[int]:
    """Distance of the partners on either side in every step of the reduce-scatter.

    Examples:
        >>> distances(27), distances(16), distances(2)
        ([1, 3, 9], [1, 3, 4], [1])
    """
    found = [distance for distance, _ in levels(size, 3)]
    return [*found[:-1], (size - found[-1] + 1) // 2] if found else []


@lru_cache(maxsize=64)
def _scattered(size: int) -> Line:
    position = np.arange(size)
    return scattered(
        size, [[(position + apart) % size, (position - apart) % size] for apart in distances(size)]
    )


def radices(size: int) -> list[int]:
    """Radix of every step among the positions that exchange whole buffers: threes, then twos.

    Their product is at least half of ``size``, so that at most one position folds into another.

    Examples:
        >>> radices(27), radices(12), radices(16), radices(14)
        ([3, 3, 3], [3, 2, 2], [2, 2, 2, 2], [3, 3])
    """
    best: tuple[int, int, list[int]] | None = None
    threes = 0
    while 3**threes <= size:
        twos = (size // 3**threes).bit_length() - 1
        core = 3**threes << twos
        found = (threes + twos + 2 * (core < size), -core, [3] * threes + [2] * twos)
        best = found if best is None else min(best, found)
        threes += 1
    return [] if best is None else best[2]


@lru_cache(maxsize=64)
def _summed(size: int) -> Line:
    found = radices(size)
    core = prod(found)
    start = np.append(np.minimum(2 * np.arange(core), np.arange(core) + size - core), size)
    run, apart = np.arange(core), 1
    hops: list[list[NDArray[np.int64]]] = []
    for radix in found:
        hops.append([(run + side * apart) % core for side in ((1, -1) if radix == 3 else (1,))])
        apart *= radix
    return summed(size, start, hops)


def _plan(case: AlgorithmCase) -> GridPlan:
    return grid_plan(case, _scattered, _summed)


def _cost(case: AlgorithmCase) -> Cost:
    plan = _plan(case)
    if case.parameters.get("variant") == "latency":
        messages = sum(radix - 1 for line in plan.lines for radix in radices(line.size))
        if any(prod(radices(line.size)) < line.size for line in plan.lines):
            raise InputError(
                f"the cost of whole buffers by trivance is known for 2^a 3^b ranks along each axis, found {case.size}: "
                "simulate it."
            )
        moved = Fraction(messages)
        return Cost.of_one_chain(steps=plan.num_steps, sent=moved, messages=messages, reduced=moved)
    phases = 2 if case.collective is Collective.ALL_REDUCE else 1
    part = Fraction(case.size - 1, case.size)
    messages = sum(len(np.unique(step.dst[step.src == 0])) for line in plan.lines for step in line.steps)
    return Cost.of_one_chain(
        steps=phases * plan.num_steps,
        sent=phases * part,
        messages=phases * messages,
        reduced=part * case.collective.reduces,
    )


TRIVANCE = grid_algorithms(
    "trivance",
    plan=_plan,
    cost=_cost,
    summary="exchanges with both neighbours at three times the distance every step, on a ring or axes of a torus",
    source="Juerss et al., Trivance, arXiv 2602.17254",
)
