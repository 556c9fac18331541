"""Reduce-scatter and all-gather level by level: the scheme behind tori, BlueConnect, EFLOPS and PLink.

Positions are numbers with one digit per level, the first level's digit the least: ``p = d0 + p0 (d1 + p1 (d2 + ...))``.
A level's groups are the positions that differ in its digit only; all of them work at the same time. The reduce-scatter
goes through the levels from the first: after level i, a position holds the partial sums of the blocks whose digits
0 .. i equal its own, so that level i + 1 moves fewer bytes. The all-gather is its mirror.

Level i with p_i members and ``1 / (p_0 .. p_i)`` of M for every member takes p_i - 1 steps of one such part each, as a
ring or by direct exchange, or lg p_i steps by halving; either way a rank sends ``(p_i - 1) / (p_0 .. p_i) M``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.schedule.schedule import Op, Schedule

__all__ = ["Exchange", "Level", "build_levels", "cost_of_levels"]


class Exchange(enum.Enum):
    """How the members of a group scatter and gather."""

    RING = enum.auto()
    DIRECT = enum.auto()
    HALVING = enum.auto()


@dataclass(frozen=True)
class Level:
    """One digit of the positions.

    Attributes:
        size: Members of a group; a power of two for halving.
        exchange: How they scatter and gather.
    """

    size: int
    exchange: Exchange = Exchange.RING

    def rounds(self, digit: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Reduce-scatter: for each step the digit of the receiver, and the digits of the parts that it is sent.

        Args:
            digit: Digit of every position.

        Yields:
            Receivers (one per position), and parts (one row per position).
        """
        size = self.size
        if self.exchange is Exchange.HALVING:
            mask = size // 2
            while mask:
                # What the partner keeps: its bits from the mask up, whatever lies below.
                yield digit ^ mask, ((digit ^ mask) & -mask)[:, None] + np.arange(mask)
                mask //= 2
            return
        for step in range(size - 1):
            if self.exchange is Exchange.RING:
                yield (digit + 1) % size, ((digit - 1 - step) % size)[:, None]
            else:
                partner = (digit + 1 + step) % size
                yield partner, partner[:, None]

    @property
    def steps(self) -> int:
        """Steps of a reduce-scatter, or of an all-gather."""
        return (self.size - 1).bit_length() if self.exchange is Exchange.HALVING else self.size - 1


def build_levels(case: Case, levels: Sequence[Level]) -> Schedule:
    """The all-gather, reduce-scatter or all-reduce of ``case`` through ``levels``, whose sizes multiply to P."""
    moves = Moves(case, blocks(case))
    half = sum(level.steps for level in levels)
    reduces = case.collective.reduces
    gathers = case.collective is not Collective.REDUCE_SCATTER
    last = half * (2 if reduces and gathers else 1) - 1
    step, stride = 0, 1
    position = case.positions
    for level in levels:
        outer = stride * level.size
        digit = position // stride % level.size
        rest = np.arange(case.size // outer) * outer
        for receiver, parts in level.rounds(digit):
            partner = position + (receiver - digit) * stride
            chunk = ((position % stride)[:, None] + parts * stride)[:, :, None] + rest
            width = chunk.shape[1] * chunk.shape[2]
            columns = (np.repeat(position, width), np.repeat(partner, width), chunk.reshape(-1))
            if reduces:
                moves.add(step, *columns, Op.REDUCE)
            if gathers:  # the same messages backwards
                moves.add(last - step, columns[1], columns[0], columns[2])
            step += 1
        stride = outer
    return moves.schedule()


def cost_of_levels(case: Case, levels: Sequence[Level]) -> Cost:
    """All ranks work alike in every step, so that one chain through all steps is the time."""
    moved = 1 - Fraction(1, case.size)
    steps = sum(level.steps for level in levels)
    phases = 2 if case.collective is Collective.ALL_REDUCE else 1
    chain = Chain(
        messages=phases * steps,
        sent=phases * moved,
        reduced=moved if case.collective.reduces else Fraction(0),
    )
    return Cost(steps=phases * steps, sent=phases * moved, chains=(chain,) if steps else ())
