"""Columns of rows in groups of unequal length: offsets, ranges, positions within groups, last and next marked rows.

A *ragged* table keeps group g in rows ``start[g] : start[g + 1]`` of its columns, as in compressed sparse rows; counts
are the lengths of the groups. A *run* is a sequence of rows that follow each other and have equal keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def offsets(counts: NDArray[np.integer] | NDArray[np.bool_]) -> _Ints:
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
    nth[order] = nth_in_run(group[order])
    return nth


def begins_run(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row is the first of a run: whether it differs from the row before it in any of the columns.

    Args:
        keys: Columns of equal length.

    Examples:
        >>> begins_run(np.array([4, 4, 1, 1]), np.array([0, 0, 0, 2])).tolist()
        [True, False, True, True]
    """
    begins = np.ones(len(keys[0]), dtype=np.bool_)
    if len(begins):
        begins[1:] = keys[0][1:] != keys[0][:-1]
        for key in keys[1:]:
            begins[1:] |= key[1:] != key[:-1]
    return begins


def nth_in_run(*keys: NDArray[Any]) -> _Ints:
    """Position of every row within its run.

    Args:
        keys: Columns of equal length.

    Examples:
        >>> nth_in_run(np.array([4, 4, 1, 4])).tolist()
        [0, 1, 0, 0]
    """
    begins = begins_run(*keys)
    row = np.arange(len(begins), dtype=np.int64)
    return row - np.maximum.accumulate(np.where(begins, row, 0)) if len(row) else row


def last_before(group: NDArray[Any], marked: NDArray[np.bool_]) -> _Ints:
    """The last marked row before each row in its group, -1 where there is none.

    With rows in the order of time, a group for each address and writes marked, this is the write that each access sees.

    Args:
        group: Group of each row; rows of a group follow each other.
        marked: Which rows count.

    Examples:
        >>> last_before(np.array([7, 7, 7, 2, 2]), np.array([True, False, True, False, True])).tolist()
        [-1, 0, 0, -1, -1]
    """
    found = np.full(len(group), -1, dtype=np.int64)
    if len(group):
        found[1:] = np.maximum.accumulate(np.where(marked, np.arange(len(group)), -1))[:-1]
        found[(found >= 0) & (group[found] != group)] = -1
    return found


def next_after(group: NDArray[Any], marked: NDArray[np.bool_]) -> _Ints:
    """The next marked row after each row in its group, -1 where there is none.

    With rows in the order of time, a group for each address and writes marked, this is the write that ends the life of
    what each access sees or writes.

    Args:
        group: Group of each row; rows of a group follow each other.
        marked: Which rows count.

    Examples:
        >>> next_after(np.array([7, 7, 7, 2, 2]), np.array([True, False, True, False, True])).tolist()
        [2, 2, -1, 4, -1]
    """
    backwards = last_before(group[::-1], marked[::-1])[::-1]
    return np.where(backwards >= 0, len(group) - 1 - backwards, -1)


def grouped(group: NDArray[np.integer], number: int) -> tuple[_Ints, _Ints]:
    """The rows of each group: row numbers group after group, and where each group begins among them.

    Args:
        group: Group of each row, 0 to ``number`` - 1, in any order.
        number: How many groups there are.

    Returns:
        Row numbers, ascending within a group, and offsets as of :func:`offsets`.

    Examples:
        >>> [found.tolist() for found in grouped(np.array([2, 0, 2]), 3)]
        [[1, 0, 2], [0, 1, 1, 3]]
    """
    return np.argsort(group, kind="stable"), offsets(np.bincount(group, minlength=number))


def rows_of_groups(start: NDArray[np.integer], groups: NDArray[np.integer]) -> tuple[_Ints, _Ints]:
    """Where the rows of some groups of a ragged table lie: row numbers group after group, and their own offsets.

    Args:
        start: Offsets of the table.
        groups: Groups that are wanted, in any order and as often as they are named.

    Examples:
        >>> [found.tolist() for found in rows_of_groups(np.array([0, 2, 2, 5]), np.array([2, 0, 2]))]
        [[2, 3, 4, 0, 1, 2, 3, 4], [0, 3, 5, 8]]
    """
    first = start[groups]
    counts = start[np.asarray(groups) + 1] - first
    return ranges(first, counts), offsets(counts)


def inverse(order: NDArray[np.integer]) -> _Ints:
    """Inverse permutation.

    Args:
        order: Every row once.

    Examples:
        >>> inverse(np.array([2, 0, 1])).tolist()
        [1, 2, 0]
    """
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


def sorted_rows(*keys: _Ints | NDArray[np.bool_]) -> _Ints:
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
    """Distinct numbers of a column in ascending order, with counts.

    Args:
        keys: The column.

    Examples:
        >>> [found.tolist() for found in distinct(np.array([5, 3, 5]))]
        [[3, 5], [1, 2]]
    """
    if not len(keys):
        return keys, np.zeros(0, dtype=np.int64)
    ordered = np.sort(keys)  # sorting is several times faster than the hashing of np.unique
    first = np.flatnonzero(begins_run(ordered))
    return ordered[first], np.diff(np.append(first, len(ordered)))
