"""Grouped sums of integers without overflow.

64-bit columns are added in two 32-bit halves, so that no partial sum of fewer than 2^31 rows can pass 2^63;
the halves meet as Python integers, which know no limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_HALF = 32
_MASK = (1 << _HALF) - 1
_INT64_MAX = 2**63 - 1


def grouped_sums(
    group: NDArray[np.integer], values: NDArray[np.int64] | Sequence[int], size: int
) -> list[int]:
    """``sums[g]`` = exact sum of ``values[i]`` over all rows i with ``group[i] == g``.

    Args:
        group: Group of each row, 0 .. size - 1.
        values: Non-negative integers, one a row; a list may hold integers of any size.

    Examples:
        >>> grouped_sums(np.array([0, 1, 0]), np.array([2**62, 5, 2**62]), 2)
        [9223372036854775808, 5]
    """
    if not isinstance(values, np.ndarray):
        if max(values, default=0) > _INT64_MAX:
            sums = [0] * size
            for row, value in zip(group.tolist(), values, strict=True):
                sums[row] += value
            return sums
        values = np.array(values, dtype=np.int64)
    total = np.zeros(size, dtype=np.int64)
    if not len(values):
        return [0] * size
    if int(values.max()) * len(values) <= _INT64_MAX:
        np.add.at(total, group, values)
        return [int(value) for value in total.tolist()]
    high = np.zeros(size, dtype=np.int64)
    np.add.at(total, group, values & _MASK)
    np.add.at(high, group, values >> _HALF)
    return [low + (top << _HALF) for low, top in zip(total.tolist(), high.tolist(), strict=True)]


def exact_total(values: NDArray[np.integer]) -> int:
    """Exact sum of a column of non-negative 64-bit integers.

    Examples:
        >>> exact_total(np.array([2**62, 2**62, 1]))
        9223372036854775809
    """
    wide = values.astype(np.int64, copy=False)
    return int((wide & _MASK).sum()) + (int((wide >> _HALF).sum()) << _HALF)
