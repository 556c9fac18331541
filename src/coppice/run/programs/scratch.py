"""Places in scratch memory for values that live for a few steps: memory is used again once they are dead."""

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

    A value takes the lowest free place that is long enough. A place is free again in the step after the last one of
    its value.

    Args:
        first: First step of each value; values are placed in the order of their first steps, then of their rows.
        last: Last step of each value, not before its first.
        size: Elements of each value, 1 or more.

    Examples:
        Each of three values lives for two steps, so that the third finds the place of the first free:

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
            _, place, length = heappop(alive)
            total = _free(holes, place, length, total)
        for index, (place, length) in enumerate(holes):
            if length >= wanted:
                if length == wanted:
                    del holes[index]
                else:
                    holes[index] = (place + wanted, length - wanted)
                break
        else:
            place = total
            total += wanted
        offset[value] = place
        heappush(alive, (ends[value], place, wanted))
    return offset, int((offset + size).max()) if len(offset) else 0


def _free(holes: list[tuple[int, int]], place: int, length: int, total: int) -> int:
    """Give a place back; returns where memory that was never or no longer used begins."""
    index = bisect_left(holes, (place, 0))
    if index < len(holes) and place + length == holes[index][0]:
        length += holes.pop(index)[1]
    if index and sum(holes[index - 1]) == place:
        place, before = holes.pop(index - 1)
        length += before
    if place + length == total:
        return place
    insort(holes, (place, length))
    return total
