"""The program of one rank: messages, reductions and copies as columns, in elements.

Memory is three arrays of elements, whatever their type: INPUT, OUTPUT and SCRATCH. The buffer of M = ``count``
elements is as :mod:`coppice.collectives` says; blocks are cut at the bounds of the schedule's slots, so that M need
not divide by the number of ranks R. With b the elements of a rank's own block:

    collective        INPUT            OUTPUT           in place, the one memory OUTPUT
    all_gather        b                M                M, the own block at its place in it
    reduce_scatter    M                b                M, the own block at its place holds the result; the others
                                                        hold partial sums afterwards
    all_reduce        M                M                M
    broadcast         M (root) or 0    M                M
    reduce            M                M (root) or 0    M; only the root's is written
    all_to_all        to every rank    from every rank  the longer of both
    gather            b                M (root) or 0    M (root) or b
    scatter           M (root) or 0    b                M (root) or b
    barrier           0                0                0

A program in place never names INPUT, and its ``input_elements`` are 0. Otherwise INPUT is never written.

How to carry it out. Rows come by *step*; both ends of a message have it in the same step. At a step, SEND and RECV
and the arrival of what RECV_REDUCE receives (into memory of the engine's own) may be posted all at once, in any order.
What a SEND of a step sends is what the memory holds when the step begins. Once the messages have arrived and the
sends of the step no longer read their memory, RECV_REDUCE rows add up and COPY rows copy, in row order. Then the next
step begins. So ranks that finish step by step never wait in a circle, and need not look at ``needs``.

An engine that does not stop between steps follows ``needs`` instead: the rows that must be complete before a row may
start; for RECV_REDUCE, before it may add up: the arrival waits for nothing. Needs of SEND and RECV lie in earlier
steps, needs of RECV_REDUCE and COPY in earlier rows. They cover the flow of data and the reuse of memory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective

__all__ = ["Kind", "Place", "RankProgram"]


class Kind(enum.IntEnum):
    """What a row does."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3


class Place(enum.IntEnum):
    """Memory that a row reads or writes."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


@dataclass(frozen=True, eq=False, kw_only=True)
class RankProgram:
    """All that one rank does in a collective, as columns of n rows.

    Attributes:
        rank: This rank.
        ranks: R, number of ranks.
        collective: What all programs together implement.
        root: Root rank of the rooted collectives, otherwise -1.
        count: M in elements.
        in_place: There is one memory, OUTPUT.
        input_elements: Elements of INPUT, 0 in place.
        output_elements: Elements of OUTPUT.
        scratch_elements: Elements of SCRATCH, which the engine provides; its content at the start does not matter.
        result_offset: First element of this rank's result in OUTPUT.
        result_elements: Elements of the result, 0 where this rank has none.
        step: Step of each row (int32), nondecreasing.
        kind: :class:`Kind` (int8); within a step in the order of its values.
        peer: The other rank, -1 for COPY (int32).
        tag: 0, 1, 2, ... among the messages from one rank to another: equal at both ends and ascending in row order
            (int32); -1 for COPY.
        place: :class:`Place` that SEND reads, RECV and COPY write, and RECV_REDUCE writes its result to (int8).
        offset: First element there (int64).
        length: Elements, 1 or more (int64).
        source: Place that COPY reads, or that holds the own operand of RECV_REDUCE, which may be where the result
            goes (int8); -1 for SEND and RECV. The result is ``source (op) received``.
        source_offset: First element there (int64); 0 for SEND and RECV.
        needs_start: Row i needs rows ``needs[needs_start[i] : needs_start[i + 1]]`` (int64, length n + 1).
        needs: Earlier rows (int32).
    """

    rank: int
    ranks: int
    collective: Collective
    root: int
    count: int
    in_place: bool
    input_elements: int
    output_elements: int
    scratch_elements: int
    result_offset: int
    result_elements: int
    step: NDArray[np.int32]
    kind: NDArray[np.int8]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    place: NDArray[np.int8]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    source: NDArray[np.int8]
    source_offset: NDArray[np.int64]
    needs_start: NDArray[np.int64]
    needs: NDArray[np.int32]

    @property
    def num_rows(self) -> int:
        """n, number of rows."""
        return len(self.step)

    @cached_property
    def step_start(self) -> NDArray[np.int64]:
        """Rows of the k-th step that has any are ``step_start[k] .. step_start[k + 1] - 1``."""
        firsts = np.flatnonzero(np.diff(self.step, prepend=-1))
        return np.append(firsts, self.num_rows).astype(np.int64)

    @cached_property
    def staging_elements(self) -> int:
        """Most elements that RECV_REDUCE rows of one step receive: memory for arrivals that always suffices."""
        if not self.num_rows:
            return 0
        arrived = np.where(self.kind == Kind.RECV_REDUCE, self.length, 0)
        return int(np.add.reduceat(arrived, self.step_start[:-1]).max())
