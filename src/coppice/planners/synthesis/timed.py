"""Convert timed transfers to a schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.schedule.schedule import Op, Schedule


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TimedTransfers(Brief):
    """Transfers of chunks with start and end, in any order."""

    start: NDArray[np.int64]  # When each begins (int64, in any unit of time)
    end: NDArray[np.int64]  # When its receiver has all of it (int64, after `start`)
    chunk: NDArray[np.int64]  # What is sent (int64)
    src: NDArray[np.int64]  # Sending rank (int64)
    dst: NDArray[np.int64]  # Receiving rank (int64)
    path: NDArray[np.int64]  # Row of the path table that it takes (int64)
    op: NDArray[np.int8]  # :class:`~coppice.schedule.schedule.Op` (int8)

    @property
    def time(self) -> int:
        """Completion time."""
        return int(self.end.max(initial=0))


def reversed_in_time(transfers: TimedTransfers) -> TimedTransfers:
    """Time-reversed transfers that reduce: an all-gather of chunks becomes a reduce-scatter.

    The paths have to be turned round by the caller.
    """
    return TimedTransfers(
        start=transfers.time - transfers.end,
        end=transfers.time - transfers.start,
        chunk=transfers.chunk,
        src=transfers.dst,
        dst=transfers.src,
        path=transfers.path,
        op=np.full(len(transfers.start), Op.REDUCE, dtype=np.int8),
    )


def joined(first: TimedTransfers, second: TimedTransfers, *, paths_before: int = 0) -> TimedTransfers:
    """Concatenate in time.

    Args:
        second: What begins when the first has ended.
        paths_before: Paths in the common table that come before those of the second.
    """
    return TimedTransfers(
        start=np.concatenate([first.start, second.start + first.time]),
        end=np.concatenate([first.end, second.end + first.time]),
        chunk=np.concatenate([first.chunk, second.chunk]),
        src=np.concatenate([first.src, second.src]),
        dst=np.concatenate([first.dst, second.dst]),
        path=np.concatenate([first.path, second.path + paths_before]),
        op=np.concatenate([first.op, second.op]),
    )


def timed_schedule(
    problem: Problem,
    transfers: TimedTransfers,  # The transfers; a rank sends a chunk only once it has it
    *,
    chunk_slot: NDArray[np.integer],
    path_start: NDArray[np.int64],  # Table of paths (see :class:`~coppice.schedule.schedule.Schedule`)
    path_nodes: NDArray[np.int32],
    chunk_share: NDArray[np.int64] | None = None,  # Share of each chunk in its slot; None: all are equal
) -> Schedule:
    """Schedule of timed transfers.

    Rows come by their starts, and wait for nothing but what they send: a link serves chunks in the order in which they
    come, those that come together in the order of these times. Making each transfer wait until the one before it on its
    link has arrived would keep these times exactly, and lose a latency between any two of them.
    """
    order = np.lexsort((transfers.end, transfers.start))
    chunks = len(chunk_slot)
    slots = (
        1 if problem.collective in (Collective.BROADCAST, Collective.REDUCE) else problem.topology.num_ranks
    )
    if problem.collective is Collective.ALL_TO_ALL:
        slots **= 2
    return Schedule(
        topology=problem.topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=np.ones(slots, dtype=np.int64),
        chunk_slot=chunk_slot.astype(np.int32),
        chunk_share=np.ones(chunks, dtype=np.int64) if chunk_share is None else chunk_share,
        src=transfers.src[order].astype(np.int32),
        dst=transfers.dst[order].astype(np.int32),
        chunk=transfers.chunk[order].astype(np.int32),
        op=transfers.op[order],
        path=transfers.path[order].astype(np.int32),
        step=np.full(len(order), -1, dtype=np.int32),
        after_start=np.zeros(len(order) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=path_start,
        path_nodes=path_nodes,
    )
