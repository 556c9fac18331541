"""Distances of the algorithms that count positions in base k: Bruck, dissemination, k-nomial trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.planners.algorithms.algorithm import Parameter

__all__ = ["levels", "log_floor", "num_messages", "radix_parameter", "spans"]


def radix_parameter(default: int = 2) -> dict[str, Parameter]:
    """The parameter ``radix`` of an algorithm."""
    return {"radix": Parameter(default=default, least=2, summary="base k: partners per step are k - 1")}


def levels(size: int, radix: int) -> list[tuple[int, list[int]]]:
    """Distance k^i of every digit that numbers below ``size`` have, with the multiples j k^i below ``size``.

    There are ceil(log_k size) of them.

    Examples:
        >>> levels(10, 3)
        [(1, [1, 2]), (3, [3, 6]), (9, [9])]
        >>> levels(1, 2)
        []
    """
    found = []
    distance = 1
    while distance < size:
        found.append((distance, list(range(distance, min(size, radix * distance), distance))))
        distance *= radix
    return found


def num_messages(size: int, radix: int) -> int:
    """Number of distances that :func:`levels` lists in all."""
    return sum(len(shifts) for _, shifts in levels(size, radix))


def log_floor(size: int, radix: int) -> int:
    """Largest L with radix^L <= size.

    Examples:
        >>> log_floor(8, 2), log_floor(26, 3), log_floor(1, 2)
        (3, 2, 0)
    """
    exponent = 0
    while radix ** (exponent + 1) <= size:
        exponent += 1
    return exponent


def spans(
    start: NDArray[np.integer], count: NDArray[np.integer] | int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers ``start[i] .. start[i] + count[i] - 1`` of every i in a row, and the i of each.

    Examples:
        >>> rows, numbers = spans(np.array([5, 0]), np.array([1, 3]))
        >>> rows.tolist(), numbers.tolist()
        ([0, 1, 1, 1], [5, 0, 1, 2])
    """
    count = np.broadcast_to(np.asarray(count, dtype=np.int64), np.shape(start))
    rows = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    return rows, np.asarray(start, dtype=np.int64)[rows] + np.arange(len(rows)) - first[rows]
