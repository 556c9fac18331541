"""The ring, the ring in segments, and the exchange of neighbours in turn.

**ring:** every position sends to the next, block after block. All-gather: in step s position p passes on block p - s,
which it got in the step before. Reduce-scatter: in step s position p sends its partial sum of block p - 1 - s, and adds
what arrives, so that block p is complete at position p. All-reduce: a reduce-scatter, then an all-gather of what it
left.

Steps P - 1 (all-reduce 2 (P - 1)); bytes per rank (P - 1)/P M (twice that); time on a crossbar the same number of
``alpha + M/P beta``, and ``M/P gamma`` in every step that adds.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009, section 3; Open
MPI, MPICH, MVAPICH2 and NCCL have it.

**segmented-ring:** the reduce-scatter runs in phases, so that a rank can add one part while the next arrives. Every
block is cut into S ``segments``. In phase j, the ring's reduce-scatter runs for segment j of all blocks; then one
all-gather brings the finished blocks around.

Steps (S + 1) (P - 1); time on a crossbar ``(P - 1) ((S + 1) alpha + 2 M/P beta + M/P gamma)``, as the model's receive
engine does not take in data while it adds; bytes per rank 2 (P - 1)/P M.

Open MPI (``ring_segmented``).

**neighbor-exchange:** exchanges with the left and the right neighbour in turn, for an even P. Positions 2m and 2m + 1
exchange their blocks first. Then every position exchanges, with the other neighbour and the first one alternately, the
two blocks that it got last; in the beginning, those of its pair.

Steps P/2; bytes per rank (P - 1)/P M; time on a crossbar ``P/2 alpha + (P - 1)/P M beta``. Libraries use a ring where
P is odd.

Chen, Zhang, Zhang, Yuan, "Performance evaluation of allgather algorithms on terascale Linux cluster with fast
Ethernet", HPC Asia 2005; Open MPI.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import EVEN, SEGMENTS, Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.schedule.schedule import Op, Schedule

__all__ = ["NEIGHBOR_EXCHANGE", "RING", "SEGMENTED"]


def all_gather(case: AlgorithmCase) -> Schedule:
    """Blocks travel once around."""
    moves = Moves(case, blocks(case))
    _gather(moves, first_step=0)
    return moves.schedule()


def reduce_scatter(case: AlgorithmCase) -> Schedule:
    """Partial sums travel once around and end at their owners."""
    moves = Moves(case, blocks(case))
    _reduce(moves)
    return moves.schedule()


def all_reduce(case: AlgorithmCase) -> Schedule:
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


RING = tuple(
    Algorithm(
        name="ring",
        collective=collective,
        build=build,
        summary="every rank sends to the next, block after block",
        source="Patarasuk and Yuan, JPDC 2009; Open MPI, MPICH, MVAPICH2, NCCL",
        cost=lambda case: Cost.of_phases(case.collective, case.size, case.size - 1),
    )
    for collective, build in (
        (Collective.ALL_GATHER, all_gather),
        (Collective.REDUCE_SCATTER, reduce_scatter),
        (Collective.ALL_REDUCE, all_reduce),
    )
)


def segmented(case: AlgorithmCase) -> Schedule:
    """Phase after phase."""
    size, segments = case.size, case.number("segments")
    moves = Moves(case, blocks(case, segments))
    position = case.positions
    following = (position + 1) % size
    for phase in range(segments):
        for step in range(size - 1):
            block = (position - 1 - step) % size
            moves.add(phase * (size - 1) + step, position, following, block * segments + phase, Op.REDUCE)
    for step in range(size - 1):
        block = ((position - step) % size)[:, None]
        moves.add(
            segments * (size - 1) + step,
            position[:, None],
            following[:, None],
            block * segments + np.arange(segments),
        )
    return moves.schedule()


def _segmented_cost(case: AlgorithmCase) -> Cost:
    size, segments = case.size, case.number("segments")
    steps = (segments + 1) * (size - 1)
    moved = Fraction(size - 1, size)
    return Cost.of_one_chain(steps=steps, sent=2 * moved, reduced=moved)


SEGMENTED = (
    Algorithm(
        name="segmented-ring",
        collective=Collective.ALL_REDUCE,
        build=segmented,
        summary="the ring, whose reduce-scatter runs in phases of a segment each",
        source="Open MPI",
        cost=_segmented_cost,
        parameters={"segments": SEGMENTS},
    ),
)


def neighbor_exchange(case: AlgorithmCase) -> Schedule:
    """Pairs of blocks travel outwards in both directions."""
    moves = Moves(case, blocks(case))
    position, size = case.positions, case.size
    if size == 1:
        return moves.schedule()
    outward = np.where(position % 2 == 0, 1, -1)  # towards the other half of the pair
    moves.add(0, position, position + outward, position)
    newest = position - position % 2
    both = np.arange(2)
    for step in range(1, size // 2):
        partner = (position + (outward if step % 2 == 0 else -outward)) % size
        moves.add(step, position[:, None], partner[:, None], newest[:, None] + both)
        newest = newest[partner]
    return moves.schedule()


NEIGHBOR_EXCHANGE = (
    Algorithm(
        name="neighbor-exchange",
        collective=Collective.ALL_GATHER,
        build=neighbor_exchange,
        summary="neighbours to the left and right exchange the two newest blocks in turn",
        source="Chen et al., HPC Asia 2005; Open MPI",
        cost=lambda case: Cost.of_phases(case.collective, case.size, case.size // 2),
        ranks=EVEN,
    ),
)
