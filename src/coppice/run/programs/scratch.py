"""Allocation of scratch memory by liveness: values that are not live in the same step share addresses."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

__all__ = ["allocate"]


def allocate(
    first: NDArray[np.int64], last: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Offsets at which values that live at the same time do not overlap, and the elements that this takes.

    A value takes the lowest hole that is long enough, which is free again in the step after the last one of the value.

    Args:
        first: First step of each value; values are placed in the order of their first steps, then of their rows.
        last: Last step of each value, not before its first.
        size: Elements of each value, 1 or more.

    Examples:
        Each of three values lives for two steps, so that the third takes the memory of the first:

        >>> offset, total = allocate(np.array([0, 1, 2]), np.array([1, 2, 3]), np.array([4, 4, 4]))
        >>> offset.tolist(), total
        ([0, 4, 0], 8)
    """
    offset = np.zeros(len(first), dtype=np.int64)
    order = np.argsort(first, kind="stable").tolist()
    starts: list[int] = first.tolist()
    ends: list[int] = last.tolist()
    sizes: list[int] = size.tolist()
    alive: list[tuple[int, int, int]] = []
    holes: list[tuple[int, int]] = []  # (offset, elements), ascending, never next to each other
    total = 0
    for value in order:
        now, wanted = starts[value], sizes[value]
        while alive and alive[0][0] < now:
            _, at, length = heappop(alive)
            total = _free(holes, at, length, total)
        for index, (at, length) in enumerate(holes):
            if length >= wanted:
                if length == wanted:
                    del holes[index]
                else:
                    holes[index] = (at + wanted, length - wanted)
                break
        else:
            at = total
            total += wanted
        offset[value] = at
        heappush(alive, (ends[value], at, wanted))
    return offset, int((offset + size).max()) if len(offset) else 0


def _free(holes: list[tuple[int, int]], at: int, length: int, total: int) -> int:
    """Give memory back; returns where memory that was never or no longer used begins."""
    index = bisect_left(holes, (at, 0))
    if index < len(holes) and at + length == holes[index][0]:
        length += holes.pop(index)[1]
    if index and sum(holes[index - 1]) == at:
        at, before = holes.pop(index - 1)
        length += before
    if at + length == total:
        return at
    insort(holes, (at, length))
    return total
