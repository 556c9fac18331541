"""What every row of a program must wait for, from the memory that rows read and write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Accesses", "needs_of"]

_PLACE = 2**60


@dataclass(frozen=True, eq=False, kw_only=True)
class Accesses:
    """Ranges of memory that rows read or write, in any order.

    Attributes:
        row: Row (int64).
        writes: It writes the range, otherwise it reads it (bool). A row that does both reads first.
        place: Which memory (int64).
        offset: First element (int64).
        length: Elements, 1 or more (int64).
    """

    row: NDArray[np.int64]
    writes: NDArray[np.bool_]
    place: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


def needs_of(accesses: Accesses, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Columns ``needs_start`` and ``needs``: for each row the latest earlier rows that it must wait for.

    A read waits for the last write of what it reads; a write waits for the last write, and for all reads since.
    Ranges are cut at all bounds of ranges, so that any overlap counts.

    Args:
        accesses: What rows read and write; their numbers say in which order.
        rows: Number of rows.

    Examples:
        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> start, needs = needs_of(
        ...     Accesses(row=column(0, 1, 2), writes=column(1, 0, 1) > 0, place=column(0, 0, 0),
        ...              offset=column(0, 2, 3), length=column(4, 1, 4)),
        ...     3)
        >>> start.tolist(), needs.tolist()
        ([0, 0, 1, 2], [0, 0])
    """
    begin = accesses.place * _PLACE + accesses.offset
    bounds = _distinct(np.concatenate([begin, begin + accesses.length]))
    first = np.searchsorted(bounds, begin)
    count = np.searchsorted(bounds, begin + accesses.length) - first
    total = int(count.sum())
    cell = np.arange(total) + np.repeat(first - (np.cumsum(count) - count), count)
    row = np.repeat(accesses.row, count)
    writes = np.repeat(accesses.writes, count)
    order = np.lexsort((row * 2 + writes, cell))
    cell, row, writes = cell[order], row[order], writes[order]
    place = np.arange(total)
    group = np.cumsum(np.diff(cell, prepend=-1) != 0)
    if not total:
        return np.zeros(rows + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)
    upto = np.maximum.accumulate(np.where(writes, place, -1))
    before = np.concatenate([[-1], upto[:-1]])
    known = before >= 0
    known[known] = group[before[known]] == group[known]
    # A write behind reads waits for the reads; they have waited for the write before.
    waits = known & (~writes | (before == place - 1))
    following = np.minimum.accumulate(np.where(writes, place, total)[::-1])[::-1]
    reads = np.flatnonzero(~writes & (following < total))
    reads = reads[group[following[reads]] == group[reads]]
    later = np.concatenate([row[waits], row[following[reads]]])
    earlier = np.concatenate([row[before[waits]], row[reads]])
    both = _distinct(later * rows + earlier)
    late, early = both // rows, both % rows
    kept = late != early
    late, early = late[kept], early[kept]
    return np.searchsorted(late, np.arange(rows + 1)).astype(np.int64), early.astype(np.int32)


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different values, ascending; ``numpy.unique`` hashes, which takes ten times as long."""
    ascending = np.sort(values)
    different = np.ones(len(values), dtype=np.bool_)
    different[1:] = ascending[1:] != ascending[:-1]
    return ascending[different]
