"""All-gather, reduce-scatter, all-reduce and all-to-all in about log P steps for any P: Bruck, sparbit and PAT.

**Bruck's all-gather,** radix k: runs of blocks grow. Before step i every position p has the blocks p .. p + k^i - 1. It
sends the first min(k^i, P - j k^i) of them to p - j k^i, for every j = 1 .. k - 1 with j k^i < P. Steps ceil(log_k P);
messages per rank the sum of those j; bytes per rank (P - 1)/P M; time on a crossbar ``messages alpha + (P - 1)/P M
beta``. A library rotates the blocks into place in the end, which moves no data between ranks.

**Sparbit:** the same number of steps and bytes with the longest distance first, so that most data travel short ways.
A step of distance d exchanges one block less where P - 1 has a 0 in the place of d, as that block is there already:
every block arrives exactly once. A step is one message here, where the library sends each block by itself.

**Reduce-scatter and all-reduce:** Bruck's all-gather backwards, for any P and radix k, and then forwards. From the last
step to the first, position p sends its partial sums of the blocks p + j k^i and up, min(k^i, P - j k^i) of them, to
p + j k^i. Steps, messages and bytes are those of the all-gather, and twice as many for the all-reduce; (P - 1)/P M
``gamma`` more where it adds.

Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997; Loch and Koslovski, "Sparbit: a new logarithmic-cost
and data locality-aware MPI Allgather algorithm", 2021. Open MPI (both), MPICH and MVAPICH2 (Bruck).

**Bruck's all-to-all:** every block hops the digits of its distance in base k. In step i, position p sends to p + j k^i,
for every j = 1 .. k - 1, all blocks that it holds whose distance (receiver minus sender, modulo P) has the digit j in
place i. A block thus hops once for every digit that is not 0.

Steps ceil(log_k P); messages per rank the number of pairs (i, j) with j k^i < P; bytes per rank and time the blocks
that these messages hold: ``messages alpha + hops/P M beta``, hops being the number of digits other than 0 of all
numbers below P together, (P/2) log2 P for k = 2 and P a power of two. Rotating the blocks before and after moves no
data between ranks.

Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997; Open MPI (modified Bruck), MPICH (brucks, k_brucks),
MVAPICH2.

**PAT,** parallel aggregated trees: a binomial tree for every block, all at once, the far hops first. All-gather: the
ranks are numbered by their offset s from the owner of a block. Offset s gets the block from s with its lowest one bit
cleared, and passes it on to s + 2^j for every j below that bit, as long as that is below P. Far hops come first: in the
step of dimension j, from the highest down, rank r sends to r + 2^j all blocks whose offset at r is a multiple of 2^(j +
1), in one message. The messages that go far are the small ones. The reduce-scatter is the mirror.

Steps ceil(lg P); bytes per rank (P - 1)/P M; time on a crossbar ``ceil(lg P) alpha + (P - 1)/P M beta``, for the
reduce-scatter ``+ (P - 1)/P M gamma``.

NCCL 2.23 and later (PAT), here with buffers large enough to send all blocks of a dimension at a time.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, pairs
from coppice.planners.algorithms.parts.radix import levels, num_messages, radix_parameter
from coppice.schedule.schedule import Op, Schedule


def all_gather(case: AlgorithmCase) -> Schedule:
    """Bruck's all-gather: intervals of blocks grow by the factor k."""
    moves = Moves(case, blocks(case))
    _bruck(moves, backwards=False, first_step=0)
    return moves.schedule()


def reduction(case: AlgorithmCase) -> Schedule:
    """Bruck's all-gather backwards, and for an all-reduce then forwards."""
    moves = Moves(case, blocks(case))
    _bruck(moves, backwards=True, first_step=0)
    if case.collective is Collective.ALL_REDUCE:
        _bruck(moves, backwards=False, first_step=len(levels(case.size, case.number("radix"))))
    return moves.schedule()


def _bruck(moves: Moves, *, backwards: bool, first_step: int) -> None:
    case = moves.case
    position, size = case.positions[:, None], case.size
    found = levels(size, case.number("radix"))
    for step, (distance, shifts) in enumerate(found):
        for shift in shifts:
            block = (position + np.arange(min(distance, size - shift))) % size
            other = (position - shift) % size
            if backwards:
                moves.add(first_step + len(found) - 1 - step, other, position, block, Op.REDUCE)
            else:
                moves.add(first_step + step, position, other, block)


def sparbit(case: AlgorithmCase) -> Schedule:
    """Sparbit all-gather: every other block of an interval that grows inwards."""
    moves = Moves(case, blocks(case))
    position, size = case.positions[:, None], case.size
    held = 1
    for step, (distance, _) in enumerate(reversed(levels(size, 2))):
        skipped = int((size - 1) & distance == 0)
        sent = np.arange(held - skipped)
        moves.add(step, position, (position + distance) % size, (position - 2 * sent * distance) % size)
        held += len(sent)
    return moves.schedule()


def _cost(case: AlgorithmCase) -> Cost:
    radix = case.number("radix") if "radix" in case.parameters else 2
    phases = 2 if case.collective is Collective.ALL_REDUCE else 1
    part = Fraction(case.size - 1, case.size)
    return Cost.of_one_chain(
        steps=phases * len(levels(case.size, radix)),
        sent=phases * part,
        messages=phases * num_messages(case.size, radix),
        reduced=part * case.collective.reduces,
    )


ALL_GATHER = (
    Algorithm(
        name="bruck",
        collective=Collective.ALL_GATHER,
        build=all_gather,
        summary="every rank's run of blocks grows by the factor k in each step",
        source="Bruck et al., IEEE TPDS 1997; Open MPI, MPICH, MVAPICH2",
        cost=_cost,
        parameters=radix_parameter(),
    ),
    Algorithm(
        name="sparbit",
        collective=Collective.ALL_GATHER,
        build=sparbit,
        summary="as many steps as Bruck, far distances first, while there is little to send",
        source="Loch and Koslovski 2021; Open MPI",
        cost=_cost,
    ),
)

REDUCTIONS = tuple(
    Algorithm(
        name="bruck",
        collective=collective,
        build=reduction,
        summary=summary,
        source="Bruck et al., IEEE TPDS 1997",
        cost=_cost,
        parameters=radix_parameter(),
    )
    for collective, summary in (
        (Collective.ALL_REDUCE, "the reduce-scatter in base k for any number of ranks, then the all-gather"),
        (Collective.REDUCE_SCATTER, "every rank's run of blocks shrinks by the factor k in each step"),
    )
)


def all_to_all(case: AlgorithmCase) -> Schedule:
    """Bruck's all-to-all, lowest digit first."""
    moves = Moves(case, pairs(case))
    size, radix = case.size, case.number("radix")
    position, away = case.positions[:, None], np.arange(size)
    for step, (distance, shifts) in enumerate(levels(size, radix)):
        for shift in shifts:
            hopping = away[away // distance % radix == shift // distance]
            source = (position - hopping % distance) % size
            target = (source + hopping) % size
            moves.add(step, position, (position + shift) % size, source * size + target)
    return moves.schedule()


def _all_to_all_cost(case: AlgorithmCase) -> Cost:
    size, radix = case.size, case.number("radix")
    found = levels(size, radix)
    hops = sum(size - _with_zero(size, distance, radix) for distance, _ in found)
    return Cost.of_one_chain(steps=len(found), sent=Fraction(hops, size), messages=num_messages(size, radix))


def _with_zero(size: int, distance: int, radix: int) -> int:
    """How many numbers below ``size`` have a 0 in the place of ``distance``."""
    rounds, rest = divmod(size, radix * distance)
    return rounds * distance + min(rest, distance)


ALL_TO_ALL = Algorithm(
    name="bruck",
    collective=Collective.ALL_TO_ALL,
    build=all_to_all,
    summary="blocks hop the digits of their distance in base k, many in a message",
    source="Bruck et al., IEEE TPDS 1997; Open MPI, MPICH, MVAPICH2",
    cost=_all_to_all_cost,
    parameters=radix_parameter(),
)


def pat(case: AlgorithmCase) -> Schedule:
    """PAT: dimension by dimension, the highest first; reduce-scatter is the reverse."""
    moves = Moves(case, blocks(case))
    size = case.size
    dimensions = (size - 1).bit_length()
    reduces = case.collective is Collective.REDUCE_SCATTER
    for step in range(dimensions):
        far = 1 << (dimensions - 1 - step)
        offset = np.arange(0, size - far, 2 * far)
        sender = np.repeat(case.positions, len(offset))
        receiver = (sender + far) % size
        block = (sender - np.tile(offset, size)) % size
        if reduces:
            moves.add(dimensions - 1 - step, receiver, sender, block, Op.REDUCE)
        else:
            moves.add(step, sender, receiver, block)
    return moves.schedule()


PAT = tuple(
    Algorithm(
        name="pat",
        collective=collective,
        build=pat,
        summary="binomial trees of all blocks at once, the far hops first",
        source="NCCL 2.23 and later",
        cost=lambda case: Cost.of_phases(case.collective, case.size, (case.size - 1).bit_length()),
    )
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
)
