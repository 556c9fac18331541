"""Columns of rows in groups of unequal length: offsets, ranges, positions within groups, sorting by several columns.

A *ragged* table keeps group g in rows ``start[g] : start[g + 1]`` of its columns, as in compressed sparse rows; counts
are the lengths of the groups.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "distinct",
    "first_rows",
    "nth_in_group",
    "offsets",
    "positions",
    "ranges",
    "sorted_rows",
]

_Ints = NDArray[np.int64]
_MOST = 2**62


def first_rows(counts: NDArray[np.integer]) -> _Ints:
    """Row at which each group begins: the sums of the counts before it.

    Args:
        counts: Rows of each group.

    Examples:
        >>> first_rows(np.array([2, 0, 3])).tolist()
        [0, 2, 2]
    """
    sums = np.cumsum(counts, dtype=np.int64)
    return sums - counts


def offsets(counts: NDArray[np.integer]) -> _Ints:
    """Row at which each group begins, and after the last the number of all rows.

    Args:
        counts: Rows of each group.

    Examples:
        >>> offsets(np.array([2, 0, 3])).tolist()
        [0, 2, 2, 5]
    """
    found = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=found[1:])
    return found


def positions(counts: NDArray[np.integer]) -> _Ints:
    """Position of every row within its group.

    Args:
        counts: Rows of each group.

    Examples:
        >>> positions(np.array([2, 0, 3])).tolist()
        [0, 1, 0, 1, 2]
    """
    return ranges(np.zeros(len(counts), dtype=np.int64), counts)


def ranges(first: NDArray[np.integer], counts: NDArray[np.integer]) -> _Ints:
    """The numbers ``first[g], first[g] + 1, ...``, ``counts[g]`` of them, group after group.

    Args:
        first: First number of each group.
        counts: How many numbers each group has.

    Examples:
        >>> ranges(np.array([7, 0, 3]), np.array([2, 0, 3])).tolist()
        [7, 8, 3, 4, 5]
    """
    return np.arange(int(np.sum(counts)), dtype=np.int64) + np.repeat(first - first_rows(counts), counts)


def nth_in_group(group: NDArray[np.integer]) -> _Ints:
    """How many rows before each row belong to the same group.

    Args:
        group: Group of each row, in any order.

    Examples:
        >>> nth_in_group(np.array([4, 1, 4, 4, 1])).tolist()
        [0, 0, 1, 2, 1]
    """
    order = np.argsort(group, kind="stable")
    nth = np.empty(len(group), dtype=np.int64)
    nth[order] = positions(distinct(group.astype(np.int64, copy=False))[1])
    return nth


def sorted_rows(*keys: _Ints) -> _Ints:
    """Rows in the order of the first column, those that are equal there in the order of the second, and so on.

    Rows that are equal everywhere keep their order. Columns that fit into 62 bits together are sorted as one number,
    several times faster than one after the other.

    Args:
        keys: Columns of equal length.

    Examples:
        >>> sorted_rows(np.array([1, 0, 1, -1]), np.array([5, 7, 4, 0])).tolist()
        [3, 1, 2, 0]
    """
    if not len(keys[0]):
        return np.zeros(0, dtype=np.int64)
    product = 1
    lows, spans = [], []
    for key in keys:
        lows.append(int(key.min()))
        spans.append(int(key.max()) - lows[-1] + 1)
        product *= spans[-1]
    if product > _MOST:
        return np.lexsort(keys[::-1])
    packed = np.zeros(len(keys[0]), dtype=np.int64)
    for key, low, span in zip(keys, lows, spans, strict=True):
        packed *= span
        packed += key
        packed -= low
    return np.argsort(packed, kind="stable")


def distinct(keys: _Ints) -> tuple[_Ints, _Ints]:
    """The different numbers of a column in ascending order, and how often each occurs.

    Args:
        keys: The column.

    Examples:
        >>> [found.tolist() for found in distinct(np.array([5, 3, 5]))]
        [[3, 5], [1, 2]]
    """
    if not len(keys):
        return keys, np.zeros(0, dtype=np.int64)
    ordered = np.sort(keys)  # sorting is several times faster than the hashing of np.unique
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return ordered[first], np.diff(np.append(first, len(ordered)))
