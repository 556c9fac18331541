"""Steps of transfers, each posted at once, and live ranges of values.

A *value* is one chunk at one rank. Every transfer reads the value of its sender and writes that of its receiver. A
schedule with steps keeps them, numbered without gaps. Without steps the step of a transfer is its depth: the longest
chain of transfers that must come before it, because it sends what they bring (read after write), overwrites what they
read or bring (write after read, write after write), or names them as a dependency. Reductions into one value may share
a step, for they are added up one after the other; so may a reduction and a transfer that sends what was there before.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.program.order import levels
from coppice.rows import distinct, nth_in_group, ranges
from coppice.schedule.columns import schedule_defects
from coppice.schedule.schedule import Op, Schedule


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TransferSteps(Brief):
    """Steps of a schedule's transfers, and the values they read and write."""

    step: NDArray[np.int64]  # Step of each transfer, from 0 without gaps (int64)
    reads: NDArray[np.int64]  # Value that each transfer sends (int64)
    writes: NDArray[np.int64]  # Value that it writes (int64)
    first_write: NDArray[np.bool_]  # Each transfer is the first, in row order, that writes its value (bool)
    # How many transfers of the same step into the same value come before each (int64)
    write_order: NDArray[np.int64]
    write_after_read: NDArray[np.bool_]  # The value that it writes is sent in the same step (bool)
    value_chunk: NDArray[np.int64]  # Chunk of each value (int64)
    value_rank: NDArray[np.int64]  # Rank of each value (int64)
    first_writer: NDArray[np.int64]  # First transfer into each value, or -1 (int64)
    live_from: NDArray[np.int64]  # Its step; one more than the last step where there is none (int64)
    live_until: NDArray[np.int64]  # Last step in which the value is read or written (int64)
    # Transfers from or to rank r, ascending, are `rank_rows[rank_start[r] : rank_start[r + 1]]`
    rank_rows: NDArray[np.int64]
    rank_start: NDArray[np.int64]  # See there


_STEPS: WeakKeyDictionary[Schedule, TransferSteps] = WeakKeyDictionary()


def transfer_steps(schedule: Schedule) -> TransferSteps:
    """Compute the steps and values of a schedule (cached)."""
    found = _STEPS.get(schedule)
    if found is None:
        found = _STEPS[schedule] = _computed(schedule)
    return found


def _computed(schedule: Schedule) -> TransferSteps:
    defects = schedule_defects(schedule)
    if defects:
        raise InputError(f"expected a schedule with well-formed columns: {defects[0]}")
    rows, ranks = schedule.num_transfers, schedule.topology.num_ranks
    src, dst = schedule.src.astype(np.int64), schedule.dst.astype(np.int64)
    if (src == dst).any():
        row = int(np.flatnonzero(src == dst)[0])
        raise InputError(
            f"expected transfers between two ranks, found transfer {row} from rank {src[row]} to itself."
        )
    chunk = schedule.chunk.astype(np.int64)
    key = np.empty(2 * rows, dtype=np.int64)  # what row i reads at 2 i, what it writes at 2 i + 1
    key[0::2], key[1::2] = chunk * ranks + src, chunk * ranks + dst
    order = np.argsort(key, kind="stable")
    begins = np.diff(key[order], prepend=-1) != 0
    value, value_key = np.empty(2 * rows, dtype=np.int64), key[order][begins]
    value[order] = np.cumsum(begins) - 1
    reads, writes = value[0::2], value[1::2]
    given = rows and int(schedule.step[0]) >= 0
    step = _given_steps(schedule) if given else _depths(schedule, order, value)
    end = int(step.max()) + 1 if rows else 0
    writer = np.full(len(value_key), rows, dtype=np.int64)
    np.minimum.at(writer, writes, np.arange(rows))
    written = writer < rows
    live_from = np.full(len(value_key), end, dtype=np.int64)
    live_from[written] = step[writer[written]]
    live_until = np.zeros(len(value_key), dtype=np.int64)
    np.maximum.at(live_until, value, np.repeat(step, 2))
    at_rank = np.empty(2 * rows, dtype=np.int64)
    at_rank[0::2], at_rank[1::2] = src, dst
    by_rank = np.argsort(at_rank, kind="stable")
    written_at = writes * max(end, 1) + step
    return TransferSteps(
        step=step,
        reads=reads,
        writes=writes,
        first_write=writer[writes] == np.arange(rows),
        write_order=nth_in_group(written_at),
        write_after_read=_among(written_at, reads * max(end, 1) + step),
        value_chunk=value_key // ranks,
        value_rank=value_key % ranks,
        first_writer=np.where(written, writer, -1),
        live_from=live_from,
        live_until=live_until,
        rank_rows=by_rank // 2,
        rank_start=np.searchsorted(at_rank[by_rank], np.arange(ranks + 1)).astype(np.int64),
    )


def _among(keys: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Each key is one of the members; ``numpy.isin`` sorts more."""
    if not len(members):
        return np.zeros(len(keys), dtype=np.bool_)
    ascending = np.sort(members)
    return np.asarray(ascending[np.searchsorted(ascending[:-1], keys)] == keys)


def _given_steps(schedule: Schedule) -> NDArray[np.int64]:
    """The steps that the schedule gives, without gaps."""
    step = schedule.step
    if int(step.min()) < 0:
        raise InputError("expected steps of all transfers or of none, found both: verify the schedule.")
    if (np.diff(step) < 0).any():
        row = int(np.flatnonzero(np.diff(step) < 0)[0]) + 1
        raise InputError(
            f"expected steps that do not decrease, found less at transfer {row}: verify the schedule."
        )
    waiting = np.repeat(np.arange(len(step)), np.diff(schedule.after_start))
    together = np.flatnonzero(step[schedule.after] >= step[waiting])
    if len(together):
        row = int(waiting[together[0]])
        raise InputError(
            f"expected dependencies on earlier steps, found transfer {row} of step {step[row]} waiting for "
            f"transfer {schedule.after[together[0]]} of the same: give it a later step."
        )
    return (np.cumsum(np.diff(step, prepend=step[:1]) > 0)).astype(np.int64)


def _depths(schedule: Schedule, order: NDArray[np.int64], value: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length of the longest chain before each transfer, wave by wave.

    Args:
        order: Accesses by value, then in row order: access 2 i is what row i reads, 2 i + 1 what it writes.
    """
    rows = schedule.num_transfers
    if rows and int(schedule.step.max()) >= 0:
        raise InputError("expected steps of all transfers or of none, found both: verify the schedule.")
    row, writes = order // 2, order % 2 == 1
    earlier, later = dependences(value[order], writes)
    copies = schedule.op[row] == Op.COPY
    # A write may share the step of reads and reductions before it, unless one of the two writes is a copy.
    apart = np.where(writes[later], copies[later] | (writes[earlier] & copies[earlier]), 1)
    waiting = np.repeat(np.arange(rows), np.diff(schedule.after_start))
    source = np.concatenate([row[earlier], schedule.after.astype(np.int64)])
    target = np.concatenate([row[later], waiting])
    gap = np.concatenate([apart, np.ones(len(waiting), dtype=np.bool_)]).astype(np.int64)
    if (source >= target).any():
        first = int(target[np.flatnonzero(source >= target)[0]])
        raise InputError(
            f"expected dependencies on earlier transfers, found another at transfer {first}: verify the schedule."
        )
    return levels(rows, source, target, gap)


_BUFFER = 2**60


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Accesses(Brief):
    """Memory ranges read or written by rows."""

    row: NDArray[np.int64]  # Row (int64)
    # It writes the range, otherwise it reads it (bool). A row that does both reads first.
    writes: NDArray[np.bool_]
    buffer: NDArray[np.int64]  # Which memory (int64)
    offset: NDArray[np.int64]  # First element (int64)
    length: NDArray[np.int64]  # Elements, 1 or more (int64)


def dependences(
    location: NDArray[np.int64], writes: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Transitively reduced dependences between conflicting accesses, as (earlier, later) pairs.

    A read depends on the last write before it, and a write on all reads since the last write, or on that write itself
    where nothing has read.

    Args:
        location: What each access touches, ascending; accesses to one location are in their order.

    Examples:
        Two reads of what access 0 wrote, and a write behind them:

        >>> earlier, later = dependences(np.zeros(4, dtype=np.int64), np.array([True, False, False, True]))
        >>> list(zip(earlier.tolist(), later.tolist()))
        [(0, 1), (0, 2), (1, 3), (2, 3)]
    """
    access = np.arange(len(location))
    last_write = np.maximum.accumulate(np.where(writes, access, -1))
    before = np.concatenate([[-1], last_write])[: len(access)]
    following = np.minimum.accumulate(np.where(writes, access, len(access))[::-1])[::-1]
    later = np.flatnonzero((before >= 0) & (~writes | (before == access - 1)))
    later = later[location[before[later]] == location[later]]
    reads = np.flatnonzero(~writes & (following < len(access)))
    reads = reads[location[following[reads]] == location[reads]]
    return np.concatenate([before[later], reads]), np.concatenate([later, following[reads]])


def predecessors_of(accesses: Accesses, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Columns ``predecessors_start`` and ``predecessors``: earlier rows that each row must wait for.

    Ranges are cut at all bounds of ranges, so that any overlap counts.

    Args:
        accesses: What rows read and write; their numbers say in which order.

    Examples:
        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> start, found = predecessors_of(
        ...     Accesses(row=column(0, 1, 2), writes=column(1, 0, 1) > 0, buffer=column(0, 0, 0),
        ...              offset=column(0, 2, 3), length=column(4, 1, 4)),
        ...     3)
        >>> start.tolist(), found.tolist()
        ([0, 0, 1, 2], [0, 0])
    """
    begin = accesses.buffer * _BUFFER + accesses.offset
    bounds, _ = distinct(np.concatenate([begin, begin + accesses.length]))
    first = np.searchsorted(bounds, begin)
    count = np.searchsorted(bounds, begin + accesses.length) - first
    location = ranges(first, count)
    row, writes = np.repeat(accesses.row, count), np.repeat(accesses.writes, count)
    order = np.lexsort((row * 2 + writes, location))
    row = row[order]
    earlier, later = dependences(location[order], writes[order])
    pairs, _ = distinct(row[later] * rows + row[earlier])
    waiting, awaited = pairs // max(rows, 1), pairs % max(rows, 1)
    kept = waiting != awaited
    waiting, awaited = waiting[kept], awaited[kept]
    return np.searchsorted(waiting, np.arange(rows + 1)).astype(np.int64), awaited.astype(np.int32)
