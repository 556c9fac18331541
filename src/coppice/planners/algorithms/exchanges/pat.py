"""PAT, parallel aggregated trees: a binomial tree for every block, all of them at once, the far hops first.

All-gather: the ranks are numbered by their offset s from the owner of a block. Offset s gets the block from s with its
lowest one bit cleared, and passes it on to s + 2^j for every j below that bit, as long as that is below P. Far hops
come first: in the step of dimension j, from the highest down, rank r sends to r + 2^j all blocks whose offset at r is a
multiple of 2^(j + 1), in one message. The messages that go far are the small ones. The reduce-scatter is the mirror.

Steps ceil(lg P); bytes per rank (P - 1)/P M; time on a crossbar ``ceil(lg P) alpha + (P - 1)/P M beta``, for the
reduce-scatter ``+ (P - 1)/P M gamma``.

NCCL 2.23 and later (PAT), here with buffers large enough to send all blocks of a dimension at a time.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def _build(case: Case) -> Schedule:
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


def _cost(case: Case) -> Cost:
    steps = (case.size - 1).bit_length()
    moved = 1 - Fraction(1, case.size)
    reduced = moved if case.collective.reduces else Fraction(0)
    chain = Chain(messages=steps, sent=moved, reduced=reduced)
    return Cost(steps=steps, sent=moved, chains=(chain,) if steps else ())


ALGORITHMS = tuple(
    Algorithm(
        name="pat",
        collective=collective,
        build=_build,
        summary="binomial trees of all blocks at once, the far hops first",
        source="NCCL 2.23 and later",
        cost=_cost,
    )
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
)
