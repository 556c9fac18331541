"""The program of a barrier: it moves no data, so every message is one element that nobody reads."""

from __future__ import annotations

import numpy as np

from coppice.run.programs.rank_program import Kind, Place, RankProgram
from coppice.run.programs.steps import flow_of
from coppice.schedule.schedule import Schedule

__all__ = ["barrier_program"]


def barrier_program(schedule: Schedule, rank: int) -> RankProgram:
    """What ``rank`` does: it sends only once everything of earlier steps has arrived.

    Element 0 of SCRATCH is sent, and what arrives in one step lands side by side behind it.
    """
    flow = flow_of(schedule)
    rows = flow.rank_rows[flow.rank_start[rank] : flow.rank_start[rank + 1]]
    sends = schedule.src[rows] == rank
    kind = np.where(sends, Kind.SEND, Kind.RECV)
    order = np.lexsort((rows, kind, flow.step[rows]))
    rows, sends, kind = rows[order], sends[order], kind[order]
    step = flow.step[rows]
    total, place = len(rows), np.arange(len(rows))
    peer = np.where(sends, schedule.dst[rows], schedule.src[rows])
    tag = np.empty(total, dtype=np.int64)
    same = np.lexsort((place, kind, peer))
    begins = (np.diff(peer[same], prepend=-1) != 0) | (np.diff(kind[same], prepend=-1) != 0)
    tag[same] = place - np.maximum.accumulate(np.where(begins, place, 0)) if total else place
    arrivals = np.flatnonzero(~sends)
    times, group_start = np.unique(step[arrivals], return_index=True)
    group_end = np.append(group_start[1:], len(arrivals))
    offset = np.zeros(total, dtype=np.int64)
    offset[arrivals] = np.arange(len(arrivals)) - group_start[np.searchsorted(times, step[arrivals])] + 1
    # Every row waits for all that arrived in the last step before its own in which anything did.
    group = np.searchsorted(times, step) - 1
    known = group >= 0
    first, end = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
    first[known], end[known] = group_start[group[known]], group_end[group[known]]
    needs_start = np.concatenate([[0], np.cumsum(end - first)])
    needs = arrivals[np.arange(needs_start[-1]) + np.repeat(first - needs_start[:-1], end - first)]
    return RankProgram(
        rank=rank,
        ranks=schedule.topology.num_ranks,
        collective=schedule.collective,
        root=-1,
        count=0,
        in_place=True,
        input_elements=0,
        output_elements=0,
        scratch_elements=int(offset.max()) + 1 if total else 0,
        result_offset=0,
        result_elements=0,
        step=step.astype(np.int32),
        kind=kind.astype(np.int8),
        peer=peer.astype(np.int32),
        tag=tag.astype(np.int32),
        place=np.full(total, Place.SCRATCH, dtype=np.int8),
        offset=offset,
        length=np.ones(total, dtype=np.int64),
        source=np.full(total, -1, dtype=np.int8),
        source_offset=np.zeros(total, dtype=np.int64),
        needs_start=needs_start.astype(np.int64),
        needs=needs.astype(np.int32),
    )
