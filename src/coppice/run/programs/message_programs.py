"""Programs that move no data: a barrier, and a ring of one-element messages that measures what a message costs."""

from __future__ import annotations

import numpy as np

from coppice.rows import offsets, ranges
from coppice.run.programs.rank_program import RankBuffer, RankProgram
from coppice.run.programs.steps import transfer_steps
from coppice.schedule.schedule import Schedule

__all__ = ["barrier_program", "ring_program"]


def barrier_program(schedule: Schedule, rank: int) -> RankProgram:
    """What ``rank`` does in a barrier: it sends only once everything of earlier steps has arrived.

    Every message is one element that nobody reads: element 0 of SCRATCH is sent, and what arrives in one step lands
    side by side behind it.
    """
    steps = transfer_steps(schedule)
    rows = steps.rank_rows[steps.rank_start[rank] : steps.rank_start[rank + 1]]
    rows = rows[np.lexsort((rows, schedule.src[rows] != rank, steps.step[rows]))]
    sends, step = schedule.src[rows] == rank, steps.step[rows]
    arrivals = np.flatnonzero(~sends)
    times, first, count = np.unique(step[arrivals], return_index=True, return_counts=True)
    offset = np.zeros(len(rows), dtype=np.int64)
    offset[arrivals] = np.arange(len(arrivals)) - first[np.searchsorted(times, step[arrivals])] + 1
    # Every row waits for all that arrived in the last step before its own in which anything did.
    group = np.searchsorted(times, step) - 1
    known = group >= 0
    begin, waits = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    begin[known], waits[known] = first[group[known]], count[group[known]]
    return RankProgram.of_messages(
        rank,
        schedule.topology.num_ranks,
        buffer=RankBuffer.SCRATCH,
        step=step,
        sends=sends,
        peer=np.where(sends, schedule.dst[rows], schedule.src[rows]),
        offset=offset,
        length=np.ones(len(rows), dtype=np.int64),
        predecessors_start=offsets(waits.astype(np.int64)),
        predecessors=arrivals[ranges(begin, waits)],
    )


def ring_program(rank: int, ranks: int, steps: int, width: int) -> RankProgram:
    """``steps`` steps in which every rank sends ``width`` messages of one element to the next rank: for measuring.

    Examples:
        >>> ring_program(0, 3, 4, 2).num_rows
        16
    """
    sends = np.tile(np.repeat([True, False], width), steps)
    step = np.repeat(np.arange(steps), 2 * width)
    # An arrival of a step overwrites the same one of the step before.
    waits = ~sends & (step > 0)
    return RankProgram.of_messages(
        rank,
        ranks,
        buffer=RankBuffer.SCRATCH,
        step=step,
        sends=sends,
        peer=np.where(sends, (rank + 1) % ranks, (rank - 1) % ranks),
        offset=np.where(sends, 0, np.tile(np.arange(width), 2 * steps) + 1),
        length=np.ones(len(sends), dtype=np.int64),
        predecessors_start=offsets(waits.astype(np.int64)),
        predecessors=np.flatnonzero(waits) - 2 * width,
    )
