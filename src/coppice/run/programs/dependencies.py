"""Which reads and writes of memory must keep their order: read after write, write after write, and write after read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.rows import distinct, ranges

__all__ = ["Accesses", "dependences", "predecessors_of"]

_BUFFER = 2**60


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Accesses(Brief):
    """Ranges of memory that rows read or write, in any order.

    Attributes:
        row: Row (int64).
        writes: It writes the range, otherwise it reads it (bool). A row that does both reads first.
        buffer: Which memory (int64).
        offset: First element (int64).
        length: Elements, 1 or more (int64).
    """

    row: NDArray[np.int64]
    writes: NDArray[np.bool_]
    buffer: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


def dependences(
    location: NDArray[np.int64], writes: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of accesses, earlier and later, that order all conflicting ones, those between being implied.

    A read depends on the last write before it, and a write on all reads since the last write, or on that write itself
    where nothing has read.

    Args:
        location: What each access touches, ascending; accesses to one location are in their order.
        writes: It writes, otherwise it reads.

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
    """Columns ``predecessors_start`` and ``predecessors``: for each row the earlier rows that it must wait for.

    Ranges are cut at all bounds of ranges, so that any overlap counts.

    Args:
        accesses: What rows read and write; their numbers say in which order.
        rows: Number of rows.

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
