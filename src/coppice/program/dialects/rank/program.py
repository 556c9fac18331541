"""Program of one rank: sends, receives, reductions and copies as columns, in elements.

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
step begins. So ranks that finish step by step never deadlock, and need not look at ``predecessors``.

An engine that does not stop between steps follows ``predecessors`` instead: the rows that must be complete before a
row may start; for RECV_REDUCE, before it may add up: the arrival waits for nothing. Predecessors of SEND and RECV lie
in earlier steps, those of RECV_REDUCE and COPY in earlier rows. They cover the flow of data (read after write) and
the reuse of memory (write after read, write after write).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.rows import nth_in_group

_NO_ROWS = np.zeros(0, dtype=np.int32)


class RowKind(enum.IntEnum):
    """Kind of a row."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3


class RankBuffer(enum.IntEnum):
    """Buffer of a row."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RankProgram(Brief):
    """Program of one rank, as columns of n rows."""

    rank: int  # This rank
    ranks: int  # R, number of ranks
    collective: Collective  # What all programs together implement
    root: int  # Root rank of the rooted collectives, otherwise -1
    count: int  # M in elements
    in_place: bool  # There is one memory, OUTPUT
    input_elements: int  # Elements of INPUT, 0 in place
    output_elements: int  # Elements of OUTPUT
    # Elements of SCRATCH, which the engine provides; its content at the start does not matter
    scratch_elements: int
    result_offset: int  # First element of this rank's result in OUTPUT
    result_elements: int  # Elements of the result, 0 where this rank has none
    step: NDArray[np.int32]  # Step of each row (int32), nondecreasing
    kind: NDArray[np.int8]  # :class:`RowKind` (int8); within a step in the order of its values
    peer: NDArray[np.int32]  # The other rank, -1 for COPY (int32)
    # 0, 1, 2, ... among the messages from one rank to another: equal at both ends and ascending in row order
    # (int32); -1 for COPY.
    tag: NDArray[np.int32]
    # :class:`RankBuffer` that SEND reads, RECV and COPY write, and RECV_REDUCE writes its result to (int8)
    buffer: NDArray[np.int8]
    offset: NDArray[np.int64]  # First element there (int64)
    length: NDArray[np.int64]  # Elements, 1 or more (int64)
    # Buffer that COPY reads, or that holds the own operand of RECV_REDUCE, which may be where the result goes
    # (int8); -1 for SEND and RECV. The result is `source (op) received`.
    source: NDArray[np.int8]
    source_offset: NDArray[np.int64]  # First element there (int64); 0 for SEND and RECV
    # Row i waits for rows `predecessors[predecessors_start[i] : predecessors_start[i + 1]]` (int64, length n
    # + 1)
    predecessors_start: NDArray[np.int64]
    predecessors: NDArray[np.int32]  # Earlier rows (int32)
    pieces: int = 1  # Pieces into which every chunk is cut

    @classmethod
    def of_messages(
        cls,
        rank: int,
        ranks: int,
        *,
        buffer: RankBuffer,
        step: NDArray[np.integer],
        sends: NDArray[np.bool_],
        peer: NDArray[np.integer],
        offset: NDArray[np.integer],
        length: NDArray[np.integer],
        predecessors_start: NDArray[np.int64] | None = None,
        predecessors: NDArray[np.integer] = _NO_ROWS,
    ) -> RankProgram:
        """Program of sends and receives without data, for barriers and measurements.

        Args:
            rank: This rank.
            ranks: Number of ranks.
            buffer: The one memory of all messages, OUTPUT or SCRATCH, as long as they need.
            step: As in the program.
            sends: SEND, otherwise RECV; within a step sends come first.
            peer: As in the program.
            offset: As in the program.
            length: As in the program.
            predecessors_start: As in the program; None where no row waits for another.
            predecessors: As in the program.
        """
        rows = len(step)
        elements = int((offset + length).max(initial=0))
        return cls(
            rank=rank,
            ranks=ranks,
            collective=Collective.BARRIER,
            root=-1,
            count=0,
            in_place=True,
            input_elements=0,
            output_elements=elements if buffer is RankBuffer.OUTPUT else 0,
            scratch_elements=elements if buffer is RankBuffer.SCRATCH else 0,
            result_offset=0,
            result_elements=0,
            step=step.astype(np.int32),
            kind=np.where(sends, RowKind.SEND, RowKind.RECV).astype(np.int8),
            peer=peer.astype(np.int32),
            tag=message_tags(peer, sends).astype(np.int32),
            buffer=np.full(rows, buffer, dtype=np.int8),
            offset=offset.astype(np.int64),
            length=length.astype(np.int64),
            source=np.full(rows, -1, dtype=np.int8),
            source_offset=np.zeros(rows, dtype=np.int64),
            predecessors_start=(
                np.zeros(rows + 1, dtype=np.int64) if predecessors_start is None else predecessors_start
            ),
            predecessors=predecessors.astype(np.int32),
        )

    @property
    def num_rows(self) -> int:
        """n, number of rows."""
        return len(self.step)

    @cached_property
    def step_start(self) -> NDArray[np.int64]:
        """Rows of the k-th non-empty step are ``step_start[k] .. step_start[k + 1] - 1``."""
        firsts = np.flatnonzero(np.diff(self.step, prepend=-1))
        return np.append(firsts, self.num_rows).astype(np.int64)

    @cached_property
    def staging_elements(self) -> int:
        """Sufficient receive staging: most elements of RECV_REDUCE rows in one step."""
        if not self.num_rows:
            return 0
        arrived = np.where(self.kind == RowKind.RECV_REDUCE, self.length, 0)
        return int(np.add.reduceat(arrived, self.step_start[:-1]).max())


def message_tags(peer: NDArray[np.integer], sends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sequence number of each message within its pair of ranks and direction.

    Args:
        sends: It is sent there, otherwise received from there.

    Examples:
        >>> message_tags(np.array([1, 2, 1, 1]), np.array([True, True, True, False])).tolist()
        [0, 0, 1, 0]
    """
    return nth_in_group(2 * peer.astype(np.int64) + sends)


def buffer_elements(collective: Collective, count: int, block: int, *, at_root: bool) -> tuple[int, int]:
    """Elements of a rank's separate input and output, as the table above defines.

    Args:
        collective: Any but the all-to-all, in which the blocks of all other ranks count.

    Examples:
        >>> buffer_elements(Collective.GATHER, 12, 3, at_root=False)
        (3, 0)
    """
    match collective:
        case Collective.ALL_GATHER:
            return block, count
        case Collective.REDUCE_SCATTER:
            return count, block
        case Collective.BROADCAST:
            return count if at_root else 0, count
        case Collective.REDUCE:
            return count, count if at_root else 0
        case Collective.GATHER:
            return block, count if at_root else 0
        case Collective.SCATTER:
            return count if at_root else 0, block
        case Collective.BARRIER:
            return 0, 0
        case _:
            return count, count


def block_bounds(count: int, ranks: int) -> list[int]:
    """First element of every rank's block of M for equal weights, and M.

    Examples:
        >>> block_bounds(10, 4)
        [0, 2, 5, 7, 10]
    """
    return [count * rank // ranks for rank in range(ranks + 1)]
