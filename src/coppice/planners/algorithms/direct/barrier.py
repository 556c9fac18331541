"""Barrier algorithms: empty messages that carry which ranks have arrived.

With L = ceil(log2 P), and P' the largest power of two up to P:

linear: all tell position 0, which tells all. Steps 2, time on a crossbar 2 (P - 1) ``alpha``.
double-ring: a token goes around twice. Steps and messages in a row 2 P.
tree: up a binomial tree and down again. Steps and messages in a row 2 L.
recursive-doubling: positions from P' on tell p - P'; those below exchange with p xor 1, 2, 4 ..; then the others are
told. Steps and messages in a row L, or L + 1 (= log2 P' + 2) where P is not a power of two.
bruck: in step i everybody tells p + 2^i; the same as dissemination. Steps and messages in a row L.
k-dissemination: in step i everybody tells p + j k^i for j = 1 .. k - 1 with j k^i < P (a library sends k - 1 messages
always). Steps ceil(log_k P), messages in a row as many as these pairs (i, j).

Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", IJPP 17(1), 1988; Open MPI (all but the
last), MPICH (k-dissemination).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.radix import levels, log_floor, num_messages, radix_parameter
from coppice.schedule.schedule import Op, Schedule


def linear(case: AlgorithmCase) -> Schedule:
    """Gather to position 0 and broadcast."""
    moves = Moves(case, whole(case))
    others = case.positions[1:]
    moves.add(0, others, 0, 0, Op.REDUCE)
    moves.add(1, 0, others, 0)
    return moves.schedule()


def double_ring(case: AlgorithmCase) -> Schedule:
    """Pass a token twice around the ring."""
    moves = Moves(case, whole(case))
    position, size = case.positions, case.size
    if size > 1:
        moves.add(position, position, (position + 1) % size, 0, Op.REDUCE)
        moves.add(position + size, position, (position + 1) % size, 0)
    return moves.schedule()


def tree(case: AlgorithmCase) -> Schedule:
    """Up and down a binomial tree."""
    moves = Moves(case, whole(case))
    found = levels(case.size, 2)
    for step, (distance, _) in enumerate(found):
        child = np.arange(distance, case.size, 2 * distance)
        moves.add(step, child, child - distance, 0, Op.REDUCE)
        moves.add(2 * len(found) - 1 - step, child - distance, child, 0)
    return moves.schedule()


def recursive_doubling(case: AlgorithmCase) -> Schedule:
    """Pairwise exchange by XOR, with excess positions folded in."""
    moves = Moves(case, whole(case))
    depth = log_floor(case.size, 2)
    core = 2**depth
    folded = case.positions[core:]
    first = int(len(folded) > 0)
    moves.add(0, folded, folded - core, 0, Op.REDUCE)
    for bit in range(depth):
        moves.add(first + bit, np.arange(core), np.arange(core) ^ (1 << bit), 0, Op.REDUCE)
    moves.add(first + depth, folded - core, folded, 0)
    return moves.schedule()


def dissemination(case: AlgorithmCase) -> Schedule:
    """Dissemination: signal k - 1 positions at growing distances in each round."""
    moves = Moves(case, whole(case))
    position = case.positions
    for step, (_, shifts) in enumerate(levels(case.size, _radix(case))):
        moves.add(step, position, (position + np.array(shifts)[:, None]) % case.size, 0, Op.REDUCE)
    return moves.schedule()


def _radix(case: AlgorithmCase) -> int:
    return case.number("radix") if "radix" in case.parameters else 2


def _recursive_doubling_cost(case: AlgorithmCase) -> Cost:
    depth = log_floor(case.size, 2)
    return Cost.of_one_chain(steps=depth if case.size == 2**depth else depth + 2, sent=Fraction(0))


def _dissemination_cost(case: AlgorithmCase) -> Cost:
    radix = _radix(case)
    return Cost.of_one_chain(
        steps=len(levels(case.size, radix)), sent=Fraction(0), messages=num_messages(case.size, radix)
    )


ALGORITHMS = (
    Algorithm(
        name="linear",
        collective=Collective.BARRIER,
        build=linear,
        summary="all tell one rank, which tells all",
        source="Open MPI",
        cost=lambda case: Cost.of_one_chain(steps=2, sent=Fraction(0), messages=2 * (case.size - 1)),
    ),
    Algorithm(
        name="double-ring",
        collective=Collective.BARRIER,
        build=double_ring,
        summary="a token goes around twice",
        source="Open MPI",
        cost=lambda case: Cost.of_one_chain(steps=2 * case.size if case.size > 1 else 0, sent=Fraction(0)),
    ),
    Algorithm(
        name="tree",
        collective=Collective.BARRIER,
        build=tree,
        summary="up a binomial tree and down again",
        source="Open MPI",
        cost=lambda case: Cost.of_one_chain(steps=2 * len(levels(case.size, 2)), sent=Fraction(0)),
    ),
    Algorithm(
        name="recursive-doubling",
        collective=Collective.BARRIER,
        build=recursive_doubling,
        summary="partners at distance 1, 2, 4 .. tell each other who has come",
        source="Open MPI, MPICH",
        cost=_recursive_doubling_cost,
    ),
    Algorithm(
        name="bruck",
        collective=Collective.BARRIER,
        build=dissemination,
        summary="dissemination: everybody tells the rank 1, 2, 4 .. places further",
        source="Hensgen, Finkel and Manber 1988; Open MPI, MPICH",
        cost=_dissemination_cost,
    ),
    Algorithm(
        name="k-dissemination",
        collective=Collective.BARRIER,
        build=dissemination,
        summary="dissemination to k - 1 ranks in every step",
        source="Hensgen, Finkel and Manber 1988; MPICH",
        cost=_dissemination_cost,
        parameters=radix_parameter(4),
    ),
)
