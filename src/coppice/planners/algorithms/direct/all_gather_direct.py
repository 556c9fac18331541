"""All-gather without detours: everybody to everybody, or through position 0.

direct: every position sends its block to all others at once, the next position first. Steps 1; bytes per rank
(P - 1)/P M; time on a crossbar (P - 1) (``alpha + M/P beta``).

linear: position 0 receives all blocks and sends the whole buffer to everybody. Steps 2; position 0 sends (P - 1) M;
time (P - 1) (``2 alpha + (1/P + 1) M beta``).

gather-broadcast: the same along binomial trees, with L = ceil(log2 P). Steps 2 L; position 0 sends L M; time ``2 L
alpha + ((P - 1)/P + L) M beta``.

The whole buffer is broadcast, the receiver's own block included, as libraries do it. Open MPI (linear, direct),
MVAPICH2 (direct, gather and broadcast).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.algorithms.parts.radix import levels, spans
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def direct(case: Case) -> Schedule:
    """P - 1 messages from everybody at once."""
    moves = Moves(case, blocks(case))
    position, shift = case.positions, np.arange(1, case.size)[:, None]
    moves.add(0, position, (position + shift) % case.size, position)
    return moves.schedule()


def linear(case: Case) -> Schedule:
    """Everything to position 0, the whole from there."""
    moves = Moves(case, blocks(case))
    others = case.positions[1:]
    moves.add(0, others, 0, others)
    moves.add(1, 0, others[:, None], case.positions)
    return moves.schedule()


def gather_broadcast(case: Case) -> Schedule:
    """Subtrees up a binomial tree, the whole down again."""
    moves = Moves(case, blocks(case))
    distances = [distance for distance, _ in levels(case.size, 2)]
    for step, distance in enumerate(distances):
        child = np.arange(distance, case.size, 2 * distance)
        row, block = spans(child, np.minimum(distance, case.size - child))
        moves.add(step, child[row], child[row] - distance, block)
    for step, distance in enumerate(reversed(distances), start=len(distances)):
        child = np.arange(distance, case.size, 2 * distance)[:, None]
        moves.add(step, child - distance, child, case.positions)
    return moves.schedule()


def _direct_cost(case: Case) -> Cost:
    moved = Fraction(case.size - 1, case.size)
    return _cost(steps=1, messages=case.size - 1, sent=moved, time=moved)


def _linear_cost(case: Case) -> Cost:
    others = case.size - 1
    return _cost(
        steps=2, messages=2 * others, sent=Fraction(others), time=others + Fraction(others, case.size)
    )


def _gather_broadcast_cost(case: Case) -> Cost:
    depth = len(levels(case.size, 2))
    moved = Fraction(case.size - 1, case.size)
    return _cost(steps=2 * depth, messages=2 * depth, sent=Fraction(depth), time=depth + moved)


def _cost(*, steps: int, messages: int, sent: Fraction, time: Fraction) -> Cost:
    if not messages:
        return Cost(steps=0, sent=Fraction(0), chains=())
    return Cost(steps=steps, sent=sent, chains=(Chain(messages=messages, sent=time),))


_ENTRIES: tuple[tuple[str, Callable[[Case], Schedule], Callable[[Case], Cost], str, str], ...] = (
    (
        "direct",
        direct,
        _direct_cost,
        "every rank sends its block to all others at once",
        "Open MPI, MVAPICH2",
    ),
    ("linear", linear, _linear_cost, "one rank gathers all blocks and sends the whole to each", "Open MPI"),
    (
        "gather-broadcast",
        gather_broadcast,
        _gather_broadcast_cost,
        "blocks go up a binomial tree and the whole comes down",
        "MVAPICH2",
    ),
)

ALGORITHMS = tuple(
    Algorithm(
        name=name,
        collective=Collective.ALL_GATHER,
        build=build,
        summary=summary,
        source=source,
        cost=cost,
    )
    for name, build, cost, summary, source in _ENTRIES
)
