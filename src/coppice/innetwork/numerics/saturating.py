"""Sums of int32 that saturate or wrap around, and ATP's fixed-point numbers on top of the former.

Source: ATP (NSDI'21): factor 10^6, the ends of the range read as overflow. That the ends absorb is ours: a register
that only clamps forgets an overflow when the next value has the other sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.innetwork.numerics.arrays import rows
from coppice.native import _switch

_ENDS = np.iinfo(np.int32)


@dataclass(frozen=True, kw_only=True)
class FixedPointSum:
    """A sum over workers in fixed point."""

    sums: NDArray[np.float32]  # Shape (count,), float32; an infinity where it overflowed
    # Where an end of the range was reached: these have to be added in floating point. Shape (count,).
    overflowed: NDArray[np.bool_]
    # How far the other sums can be from the exact ones before they are rounded to float32, which adds 2^-24
    # of themselves: workers / (2 factor)
    bound: float


@checked
def saturating_sum(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Sum over workers in saturating int32 registers, in the order of the rows.

    A sum that is no end of the range is exact; an end says that some partial sum left the range.

    Args:
        values: Shape (workers, count), int32.

    Examples:
        >>> saturating_sum(np.array([[2**31 - 1, 7], [1, 1], [-5, -5]], dtype=np.int32)).tolist()
        [2147483647, 3]
    """
    table = rows(values, "int32")
    sums = np.zeros(table.shape[1], dtype=np.int32)
    for row in table:
        _switch.add_saturating(sums, row)
    return sums


@checked
def wrapping_sum(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Sum over workers modulo 2^32, as two's complement.

    Args:
        values: Shape (workers, count), int32.

    Examples:
        >>> wrapping_sum(np.array([[2**31 - 1, 7], [1, 1]], dtype=np.int32)).tolist()
        [-2147483648, 8]
    """
    sums: NDArray[np.int32] = rows(values, "int32").sum(axis=0, dtype=np.int32)
    return sums


@checked
def fixed_point_sum(values: NDArray[np.float32], *, factor: float = 1e6) -> FixedPointSum:
    """Sum over workers as ATP does: round(x factor) in saturating registers.

    Args:
        values: Shape (workers, count), float32. Infinities and NaN overflow.

    Examples:
        >>> found = fixed_point_sum(np.array([[1.5, 2000.0], [0.25, 2000.0]], dtype=np.float32))
        >>> found.sums.tolist(), found.overflowed.tolist(), found.bound
        ([1.75, inf], [False, True], 1e-06)
    """
    table = rows(values, "float32")
    if not 0 < factor < float("inf"):
        raise InputError(f"expected `factor` above 0, found {factor}: how many integers make a unit.")
    total = np.zeros(table.shape[1], dtype=np.int32)
    for row in table:
        _switch.add_saturating(total, _switch.to_fixed(row, factor))
    return FixedPointSum(
        sums=_switch.from_fixed(total, factor),
        overflowed=(total == _ENDS.min) | (total == _ENDS.max),
        bound=len(table) / (2 * factor),
    )
