"""The ring: every position sends to the next, block after block.

All-gather: in step s position p passes on block p - s, which it got in the step before. Reduce-scatter: in step s
position p sends its partial sum of block p - 1 - s, and adds what arrives, so that block p is complete at position p.
All-reduce: a reduce-scatter, then an all-gather of what it left.

Steps P - 1 (all-reduce 2 (P - 1)); bytes per rank (P - 1)/P M (twice that); time on a crossbar the same number of
``alpha + M/P beta``, and ``M/P gamma`` in every step that adds.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009, section 3; Open
MPI, MPICH, MVAPICH2 and NCCL have it.
"""

from __future__ import annotations

from fractions import Fraction

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def all_gather(case: Case) -> Schedule:
    """Blocks travel once around."""
    moves = Moves(case, blocks(case))
    _gather(moves, first_step=0)
    return moves.schedule()


def reduce_scatter(case: Case) -> Schedule:
    """Partial sums travel once around and end at their owners."""
    moves = Moves(case, blocks(case))
    _reduce(moves)
    return moves.schedule()


def all_reduce(case: Case) -> Schedule:
    """Both, one after the other."""
    moves = Moves(case, blocks(case))
    _reduce(moves)
    _gather(moves, first_step=case.size - 1)
    return moves.schedule()


def _reduce(moves: Moves) -> None:
    case = moves.case
    position, size = case.positions, case.size
    for step in range(size - 1):
        moves.add(step, position, (position + 1) % size, (position - 1 - step) % size, Op.REDUCE)


def _gather(moves: Moves, *, first_step: int) -> None:
    case = moves.case
    position, size = case.positions, case.size
    for step in range(size - 1):
        moves.add(first_step + step, position, (position + 1) % size, (position - step) % size)


def _cost(case: Case) -> Cost:
    steps = case.size - 1
    moved = Fraction(steps, case.size)
    reduced = moved if case.collective.reduces else Fraction(0)
    phases = 2 if case.collective is Collective.ALL_REDUCE else 1
    chain = Chain(messages=phases * steps, sent=phases * moved, reduced=reduced)
    return Cost(steps=phases * steps, sent=phases * moved, chains=(chain,))


ALGORITHMS = tuple(
    Algorithm(
        name="ring",
        collective=collective,
        build=build,
        summary="every rank sends to the next, block after block",
        source="Patarasuk and Yuan, JPDC 2009; Open MPI, MPICH, MVAPICH2, NCCL",
        cost=_cost,
    )
    for collective, build in (
        (Collective.ALL_GATHER, all_gather),
        (Collective.REDUCE_SCATTER, reduce_scatter),
        (Collective.ALL_REDUCE, all_reduce),
    )
)
