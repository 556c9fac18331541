"""When each transfer of a schedule happens, and which of them meet in memory.

A *cell* is one chunk at one rank. Every transfer reads the cell of its sender and writes the cell of its receiver.
A schedule with steps keeps them, numbered without gaps. Without steps the step of a transfer is its depth: the
longest chain of transfers that must come before it, because it sends what they bring, overwrites what they read or
bring, or names them as a dependency. Reductions into one cell may share a step, for they are added up one after the
other; so may a reduction and a transfer that sends what was there before.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.schedule.columns import schedule_defects
from coppice.schedule.schedule import Op, Schedule

__all__ = ["Flow", "flow_of"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Flow:
    """Steps of a schedule's transfers, and its cells.

    Attributes:
        step: Step of each transfer, from 0 without gaps (int64).
        read_cell: Cell that each transfer sends (int64).
        write_cell: Cell that it writes (int64).
        first_write: Each transfer is the first, in row order, that writes its cell (bool).
        turn: How many transfers of the same step into the same cell come before each (int64).
        met: The cell that it writes is sent in the same step (bool).
        cell_chunk: Chunk of each cell (int64).
        cell_rank: Rank of each cell (int64).
        cell_first: Step of the first transfer into each cell; one more than the last step where there is none (int64).
        cell_writer: That transfer, or -1 (int64).
        cell_last: Last step in which the cell is read or written (int64).
        rank_rows: Transfers from or to rank r, ascending, are ``rank_rows[rank_start[r] : rank_start[r + 1]]``.
        rank_start: See there.
    """

    step: NDArray[np.int64]
    read_cell: NDArray[np.int64]
    write_cell: NDArray[np.int64]
    first_write: NDArray[np.bool_]
    turn: NDArray[np.int64]
    met: NDArray[np.bool_]
    cell_chunk: NDArray[np.int64]
    cell_rank: NDArray[np.int64]
    cell_first: NDArray[np.int64]
    cell_writer: NDArray[np.int64]
    cell_last: NDArray[np.int64]
    rank_rows: NDArray[np.int64]
    rank_start: NDArray[np.int64]


_FLOWS: WeakKeyDictionary[Schedule, Flow] = WeakKeyDictionary()


def flow_of(schedule: Schedule) -> Flow:
    """Steps and cells of a schedule, computed once.

    Raises:
        InputError: If its columns are malformed, some transfers have steps and others have none, steps decrease, or a
            transfer depends on one of its own step.
    """
    found = _FLOWS.get(schedule)
    if found is None:
        found = _FLOWS[schedule] = _flow(schedule)
    return found


def _flow(schedule: Schedule) -> Flow:
    defects = schedule_defects(schedule)
    if defects:
        msg = f"expected a schedule with well-formed columns: {defects[0]}"
        raise InputError(msg)
    rows, ranks = schedule.num_transfers, schedule.topology.num_ranks
    src, dst = schedule.src.astype(np.int64), schedule.dst.astype(np.int64)
    if (src == dst).any():
        row = int(np.flatnonzero(src == dst)[0])
        msg = f"expected transfers between two ranks, found transfer {row} from rank {src[row]} to itself."
        raise InputError(msg)
    chunk = schedule.chunk.astype(np.int64)
    key = np.empty(2 * rows, dtype=np.int64)  # what row i reads at 2 i, what it writes at 2 i + 1
    key[0::2], key[1::2] = chunk * ranks + src, chunk * ranks + dst
    order = np.argsort(key, kind="stable")
    begins = np.diff(key[order], prepend=-1) != 0
    cell_of = np.empty(2 * rows, dtype=np.int64)
    cell_of[order] = np.cumsum(begins) - 1
    cell_key = key[order][begins]
    waits = _Waits(order, begins, schedule)
    step = _given_steps(schedule) if rows and int(schedule.step[0]) >= 0 else _depths(schedule, waits)
    end = int(step.max()) + 1 if rows else 0
    writer = np.full(len(cell_key), rows, dtype=np.int64)
    np.minimum.at(writer, cell_of[1::2], np.arange(rows))
    written = writer < rows
    first = np.full(len(cell_key), end, dtype=np.int64)
    first[written] = step[writer[written]]
    last = np.zeros(len(cell_key), dtype=np.int64)
    np.maximum.at(last, cell_of, np.repeat(step, 2))
    at_rank = np.empty(2 * rows, dtype=np.int64)
    at_rank[0::2], at_rank[1::2] = src, dst
    by_rank = np.argsort(at_rank, kind="stable")
    return Flow(
        step=step,
        read_cell=cell_of[0::2],
        write_cell=cell_of[1::2],
        first_write=writer[cell_of[1::2]] == np.arange(rows),
        turn=_turns(cell_of[1::2] * max(end, 1) + step),
        met=_among(cell_of[1::2] * max(end, 1) + step, cell_of[0::2] * max(end, 1) + step),
        cell_chunk=cell_key // ranks,
        cell_rank=cell_key % ranks,
        cell_first=first,
        cell_writer=np.where(written, writer, -1),
        cell_last=last,
        rank_rows=by_rank // 2,
        rank_start=np.searchsorted(at_rank[by_rank], np.arange(ranks + 1)).astype(np.int64),
    )


def _turns(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of earlier rows with the same key."""
    order = np.argsort(key, kind="stable")
    place = np.arange(len(key))
    begins = np.diff(key[order], prepend=-1) != 0
    turn = np.empty_like(place)
    turn[order] = place - np.maximum.accumulate(np.where(begins, place, 0)) if len(key) else place
    return turn


def _among(keys: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Each key is one of the members."""
    if not len(members):
        return np.zeros(len(keys), dtype=np.bool_)
    ascending = np.sort(members)
    return np.asarray(ascending[np.searchsorted(ascending[:-1], keys)] == keys)


def _given_steps(schedule: Schedule) -> NDArray[np.int64]:
    """The steps that the schedule gives, without gaps."""
    step = schedule.step
    if int(step.min()) < 0:
        msg = "expected steps of all transfers or of none, found both: verify the schedule."
        raise InputError(msg)
    if (np.diff(step) < 0).any():
        row = int(np.flatnonzero(np.diff(step) < 0)[0]) + 1
        msg = f"expected steps that do not decrease, found less at transfer {row}: verify the schedule."
        raise InputError(msg)
    waiting = np.repeat(np.arange(len(step)), np.diff(schedule.after_start))
    together = np.flatnonzero(step[schedule.after] >= step[waiting])
    if len(together):
        row = int(waiting[together[0]])
        msg = (
            f"expected dependencies on earlier steps, found transfer {row} of step {step[row]} waiting for "
            f"transfer {schedule.after[together[0]]} of the same: give it a later step."
        )
        raise InputError(msg)
    return (np.cumsum(np.diff(step, prepend=step[:1]) > 0)).astype(np.int64)


class _Waits:
    """Which transfer waits for which, and whether it must have a later step (1) or may share one (0)."""

    def __init__(self, order: NDArray[np.int64], begins: NDArray[np.bool_], schedule: Schedule) -> None:
        # Events in the order of `order`: even ones read, odd ones write; row = event // 2.
        place = np.arange(len(order))
        row, writes = order // 2, order % 2 == 1
        start = np.maximum.accumulate(np.where(begins, place, 0)) if len(order) else place
        upto = np.maximum.accumulate(np.where(writes, place, -1)) if len(order) else place
        before = np.concatenate([[-1], upto[:-1]])[: len(order)]  # last write before the event
        earlier = np.flatnonzero((before >= start) & (before >= 0))
        copies = schedule.op[row] == Op.COPY
        after_copy = copies[before[earlier]]
        strict = ~writes[earlier] | copies[earlier] | after_copy
        self.source, self.target, self.gap = [row[before[earlier]]], [row[earlier]], [strict]
        # The next write after each read of the same cell waits for it.
        following = np.minimum.accumulate(np.where(writes, place, len(order))[::-1])[::-1]
        group = np.cumsum(begins)
        reads = np.flatnonzero(~writes & (following < len(order)))
        reads = reads[group[following[reads]] == group[reads]]
        self.source.append(row[reads])
        self.target.append(row[following[reads]])
        self.gap.append(copies[following[reads]])
        waiting = np.repeat(np.arange(schedule.num_transfers), np.diff(schedule.after_start))
        self.source.append(schedule.after.astype(np.int64))
        self.target.append(waiting)
        self.gap.append(np.ones(len(waiting), dtype=np.bool_))

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(earlier transfer, later transfer, steps between them at least)."""
        return (
            np.concatenate(self.source).astype(np.int64),
            np.concatenate(self.target).astype(np.int64),
            np.concatenate(self.gap).astype(np.int64),
        )


def _depths(schedule: Schedule, waits: _Waits) -> NDArray[np.int64]:
    """Length of the longest chain before each transfer, wave by wave."""
    rows = schedule.num_transfers
    if rows and int(schedule.step.max()) >= 0:
        msg = "expected steps of all transfers or of none, found both: verify the schedule."
        raise InputError(msg)
    source, target, gap = waits.columns()
    if (source >= target).any():
        row = int(target[np.flatnonzero(source >= target)[0]])
        msg = f"expected dependencies on earlier transfers, found another at transfer {row}: verify the schedule."
        raise InputError(msg)
    order = np.argsort(source, kind="stable")
    target, gap = target[order], gap[order]
    start = np.searchsorted(source[order], np.arange(rows + 1))
    left = np.bincount(target, minlength=rows)
    depth = np.zeros(rows, dtype=np.int64)
    wave = np.flatnonzero(left == 0)
    while len(wave):
        count = start[wave + 1] - start[wave]
        total = int(count.sum())
        shift = np.repeat(start[wave] - (np.cumsum(count) - count), count)
        edge = np.arange(total) + shift
        reached = target[edge]
        np.maximum.at(depth, reached, np.repeat(depth[wave], count) + gap[edge])
        np.subtract.at(left, reached, 1)
        wave = np.sort(reached[left[reached] == 0])
        wave = wave[np.diff(wave, prepend=-1) != 0]
    return depth
