"""Swing: exchanges that swing from one side of a ring or torus to the other, at two thirds of the distance.

In step s an even position r exchanges with r + rho(s) and an odd one with r - rho(s), where rho(s) = 1 - 2 + 4 - .. +
(-2)^s = (1 - (-2)^(s + 1))/3: 1, -1, 3, -5, 11, .. There are as many steps as with recursive doubling, whose partners
are 2^s apart; these are |rho(s)| apart, about 2/3 of that, and half of the data goes each way around the ring.

**bandwidth:** a reduce-scatter, near partners and much data first, then the all-gather that is its mirror. A position
sends its partner the blocks that the partner reaches in later steps, and keeps those that it can still serve itself.
Any even P will do; where it is no power of two, some blocks could go two ways, and go the later one. For an odd P the
last position stays out: it exchanges single blocks with every other one, as many in each step as the others do, near
ones first.

Steps 2 ceil(lg P) (half of that for reduce-scatter and all-gather; one position less for an odd P); bytes per rank
2 (P - 1)/P M; time on a crossbar for an even P: the steps ``alpha``, these bytes ``beta``, and (P - 1)/P M ``gamma``
where it adds. On a ring of P = 2^L each link carries |rho(s)|/2^(s + 2) M in step s of a phase, with both ports; with
distances of 2^s it would be M/4.

**latency:** whole buffers, for the all-reduce. Steps lg P; where P is no power of two, neighbours fold in first, as in
recursive doubling, and two steps are added. Time on a crossbar ``lg P (alpha + M (beta + gamma))``, and
``2 (alpha + M beta) + M gamma`` more with folding.

**Grids.** On a torus of D axes every step serves one axis, in turns, and every axis runs its own Swing. 2 D parts of
the data, one for each link of a node, do so at the same time: they begin on different axes, and half of them swing the
other way (:mod:`..parts.grids`).

De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher bandwidth allreduce", NSDI 2024; whom the
last one of an odd number meets in which step is ours.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.grids import (
    GridPlan,
    Line,
    LineStep,
    grid_algorithms,
    grid_plan,
    scattered,
    summed,
)
from coppice.planners.algorithms.parts.radix import folding


def rho(step: int) -> int:
    """Signed distance of a step.

    Examples:
        >>> [rho(step) for step in range(6)]
        [1, -1, 3, -5, 11, -21]
    """
    return int((1 - (-2) ** (step + 1)) // 3)


def partners(size: int) -> list[NDArray[np.int64]]:
    """Partner of every position in every step, for an even number of positions.

    Examples:
        >>> [step.tolist() for step in partners(6)]
        [[1, 0, 3, 2, 5, 4], [5, 2, 1, 4, 3, 0], [3, 4, 5, 0, 1, 2]]
    """
    position = np.arange(size)
    side = np.where(position % 2 == 0, 1, -1)
    return [(position + side * rho(step)) % size for step in range((size - 1).bit_length())]


@lru_cache(maxsize=64)
def _scattered(size: int) -> Line:
    if size % 2 == 0 or size == 1:
        return scattered(size, [[partner] for partner in partners(size)])
    return _with_one_more(_scattered(size - 1))


def _with_one_more(line: Line) -> Line:
    """A line with a last position that exchanges single blocks with every other one."""
    last = line.size
    sent = [int(np.count_nonzero(step.src == 0)) for step in line.steps]  # every position sends as many
    sent[-1] += 1
    when = np.empty(last, dtype=np.int64)
    near_first = np.stack([np.arange(last // 2), last - 1 - np.arange(last // 2)], axis=1).reshape(-1)
    when[near_first] = np.repeat(np.arange(len(sent)), sent)
    steps = []
    for number, step in enumerate(line.steps):
        met = np.flatnonzero(when == number)
        alone = np.full(len(met), last)
        steps.append(
            LineStep(
                np.concatenate([step.src, alone, met]),
                np.concatenate([step.dst, met, alone]),
                np.concatenate([step.slot, met, alone]),
            )
        )
    held = []
    for number, before in enumerate(line.held):
        now = np.zeros((last + 1, last + 1), dtype=np.bool_)
        now[:last, :last] = before
        now[:last, last] = now[last, :last] = when >= number
        now[last, last] = True
        held.append(now)
    return Line(last + 1, tuple(steps), tuple(held))


@lru_cache(maxsize=64)
def _summed(size: int) -> Line:
    fold = folding(size)
    return summed(size, fold.start, [[partner] for partner in partners(fold.core)])


def _plan(case: AlgorithmCase) -> GridPlan:
    return grid_plan(case, _scattered, _summed)


def _cost(case: AlgorithmCase) -> Cost:
    plan = _plan(case)
    if case.parameters.get("variant") == "latency":
        folds = sum(folding(line.size).core < line.size for line in plan.lines)
        messages = plan.num_steps
        sent = Fraction(messages - folds)  # a leader folds nothing in itself
        return Cost.of_one_chain(steps=messages, sent=sent, moved=Fraction(messages), reduced=sent)
    if any(line.size % 2 and line.size > 1 for line in plan.lines):
        raise InputError(
            f"the cost of swing is known for even numbers of ranks along each axis, found {case.size}: simulate it."
        )
    return Cost.of_phases(case.collective, case.size, plan.num_steps)


SWING = grid_algorithms(
    "swing",
    plan=_plan,
    cost=_cost,
    summary="exchanges with near partners on alternate sides of a ring, or of every axis of a torus",
    source="De Sensi et al., Swing, NSDI 2024",
)
