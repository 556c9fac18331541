"""Recursive doubling of all-gather, reduce-scatter and all-to-all, for any P.

In the step of mask d = 1, 2, 4 .. position p exchanges with p xor d. Let G be the positions of p's subtree, those that
agree with p in all bits from d up. All-gather: p sends all blocks of G. Reduce-scatter: p sends its partial sums, over
G, of all blocks that do not belong to G; every sum is over an interval of ranks. Its partner has no use for some of
these any more and does not add them (a library does, to no effect). All-to-all: p sends everything that the members of
G want to send to anybody; nothing is sorted out on the way.

Where P is not a power of two, one subtree meets a smaller one of n < d members, and only n of its own have a partner.
They pass on what they got to the others, in up to log2 d further steps at distances d/2, d/4 .. 1.

For P = 2^L: steps L; time on a crossbar ``L alpha +`` (P - 1)/P M beta (all-gather), (L - (P - 1)/P) M beta + (L (1 +
1/P) - 2 (P - 1)/P) M gamma (reduce-scatter), (P - 1) M beta (all-to-all: worth it for tiny blocks at most). Otherwise
the steps are those above and the time is the longest chain of exchanges, followed from position to position.

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Open MPI (reduce-scatter for any P; all-gather for powers of two, else
Bruck), MPICH (for other P experimental in all-gather), MVAPICH2 (all-gather, all-to-all).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Clocks, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, pairs
from coppice.planners.algorithms.parts.radix import spans
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS", "DoublingStep", "doubling_steps"]

# An all-to-all moves P^2 (P - 1) blocks in all.
_MOST_RANKS = 128

Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class DoublingStep:
    """Messages that pass at the same time, an entry each.

    Attributes:
        src: Senders.
        dst: Receivers.
        data: First and last + 1 position of the subtrees whose data travel (2 x messages).
        home: Likewise the subtrees of the receivers.
        passed_on: Senders only pass on what they got, to members of their own subtree.
    """

    src: Positions
    dst: Positions
    data: Positions
    home: Positions
    passed_on: bool


def doubling_steps(size: int) -> Iterator[DoublingStep]:
    """The steps of an all-gather among ``size`` positions; a message has all blocks of its ``data``."""
    position = np.arange(size)
    mask = 1
    while mask < size:
        src = position[(position ^ mask) < size]
        dst = src ^ mask
        data, home = (np.array([p - p % mask, np.minimum(p - p % mask + mask, size)]) for p in (src, dst))
        yield DoublingStep(src=src, dst=dst, data=data, home=home, passed_on=False)
        root = (size - 1) // (2 * mask) * (2 * mask)
        partners = size - root - mask
        if 0 < partners < mask:
            yield from _passing_on(root, mask, partners)
        mask *= 2


def _passing_on(root: int, mask: int, partners: int) -> Iterator[DoublingStep]:
    """Members ``root .. root + partners - 1`` of a subtree of ``mask`` tell the rest of it."""
    distance = mask // 2
    while distance:
        member = np.arange(root, root + mask)
        told = member - member % (2 * distance) + partners  # members below this one know
        src = member[(member & distance == 0) & (member < told) & (member + distance >= told)]
        data = np.tile([[root + mask], [root + mask + partners]], len(src))
        home = np.tile([[root], [root + mask]], len(src))
        if len(src):
            yield DoublingStep(src=src, dst=src + distance, data=data, home=home, passed_on=True)
        distance //= 2


def all_gather(case: AlgorithmCase) -> Schedule:
    """Blocks of whole subtrees."""
    moves = Moves(case, blocks(case))
    for number, step in enumerate(doubling_steps(case.size)):
        first, last = step.data
        row, block = spans(first, last - first)
        moves.add(number, step.src[row], step.dst[row], block)
    return moves.schedule()


def reduce_scatter(case: AlgorithmCase) -> Schedule:
    """Partial sums of all blocks outside the subtree that they are over."""
    moves = Moves(case, blocks(case))
    for number, step in enumerate(doubling_steps(case.size)):
        row, block = np.nonzero(~_inside(case.positions, step.data))
        away = ~_inside(case.positions, step.home)[row, block]
        added = (block == step.dst[row]) | (away & (not step.passed_on))
        for op, rows in ((Op.REDUCE, added), (Op.COPY, ~added)):
            moves.add(number, step.src[row[rows]], step.dst[row[rows]], block[rows], op)
    return moves.schedule(ordered=True)


def _inside(position: Positions, span: Positions) -> NDArray[np.bool_]:
    """For every message (rows), which positions (columns) are in its span."""
    first, last = span[:, :, None]
    inside: NDArray[np.bool_] = (position >= first) & (position < last)
    return inside


def all_to_all(case: AlgorithmCase) -> Schedule:
    """Everything that a subtree has to send, to everybody."""
    moves = Moves(case, pairs(case))
    size = case.size
    for number, step in enumerate(doubling_steps(size)):
        first, last = step.data
        row, chunk = spans(first * size, (last - first) * size)
        moves.add(number, step.src[row], step.dst[row], chunk)
    return moves.schedule()


def _cost(case: AlgorithmCase) -> Cost:
    size, collective = case.size, case.collective
    clocks = Clocks(size, unit=size)
    for step in doubling_steps(size):
        units = np.diff(step.data, axis=0)[0]
        added = units * 0
        if collective is Collective.REDUCE_SCATTER:
            away = size - units - np.diff(step.home, axis=0)[0]
            units, added = size - units, 1 + away * (not step.passed_on)
        elif collective is Collective.ALL_TO_ALL:
            units = units * size
        clocks.step(zip(*(column.tolist() for column in (step.src, step.dst, units, added)), strict=True))
    return clocks.cost()


def _needs(case: AlgorithmCase) -> str | None:
    if case.collective is not Collective.ALL_TO_ALL or case.size <= _MOST_RANKS:
        return None
    return (
        f"recursive-doubling of an all-to-all moves P^2 (P - 1) blocks and is made for at most {_MOST_RANKS} "
        f"ranks, found {case.size}: choose bruck."
    )


ALGORITHMS = tuple(
    Algorithm(
        name="recursive-doubling",
        collective=collective,
        build=build,
        summary=summary,
        source=source,
        cost=_cost,
        needs=_needs,
    )
    for collective, build, summary, source in (
        (
            Collective.ALL_GATHER,
            all_gather,
            "partners at distance 1, 2, 4 .. exchange all they have",
            "Thakur et al. 2005; Open MPI, MPICH, MVAPICH2",
        ),
        (
            Collective.REDUCE_SCATTER,
            reduce_scatter,
            "partners at distance 1, 2, 4 .. exchange all sums that are not final, in rank order",
            "Thakur et al. 2005; Open MPI, MPICH",
        ),
        (
            Collective.ALL_TO_ALL,
            all_to_all,
            "partners at distance 1, 2, 4 .. exchange everything, whomever it is for",
            "MVAPICH2",
        ),
    )
)
