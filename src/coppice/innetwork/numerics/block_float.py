"""SwitchML's block floating point: float32 summed by switches that add int32, at exponents that workers agree on.

Source: SwitchML (NSDI'21), section 3.7; the scale of whole steps is ours (cpp/numerics/block_float.h says why).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.innetwork.numerics.arrays import column, require_within, rows
from coppice.native import _switch

LEAST_EXPONENT, GREATEST_EXPONENT = -126, 127
_NOT_FINITE = 128


@dataclass(frozen=True, kw_only=True)
class BlockSum:
    """A sum over workers in block floating point."""

    sums: NDArray[np.float32]  # Shape (count,), float32
    exponents: NDArray[np.int8]  # What the workers agreed on, one for each block, int8
    # How far a sum can be from the exact one before it is rounded to float32, which adds 2^-24 of itself:
    # workers / (2 scale) of its block. Shape (count,), float64.
    bound: NDArray[np.float64]


def block_exponent(values: NDArray[np.float32]) -> int:
    """Exponent that a worker announces for a block: the least whose power of 2 is above every magnitude.

    It fits a byte: -126 stands for zeros and subnormal numbers as well, and 127 for all from 2^126 on.

    Args:
        values: Shape (count,), float32.

    Examples:
        >>> block_exponent(np.array([0.3, -5.0], dtype=np.float32))
        3
        >>> block_exponent(np.zeros(4, dtype=np.float32))
        -126
    """
    found = _switch.block_exponent(column(values, "values", "float32"))
    if found == _NOT_FINITE:
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(
            f"expected finite values, found {values[at]} at position {at}: block floating point has no exponent "
            f"for it; add it in a format of its own, or find out where it comes from."
        )
    return found


@checked
def block_scale(exponent: int, *, workers: int) -> float:
    """Integers per unit: L / 2^exponent, where workers L <= 2^31 - 1, so that no sum of theirs wraps.

    Args:
        exponent: What the workers agreed on, -126 to 127 (which stands for 128).

    Examples:
        >>> block_scale(0, workers=8)
        268435455.0
    """
    _require(exponent, workers)
    return _switch.block_scale(exponent, workers)


def block_quantise(values: NDArray[np.float32], *, exponent: int, workers: int) -> NDArray[np.int32]:
    """Quantise values to integers, to the nearest, ties to even; values beyond the exponent saturate.

    Args:
        values: Shape (count,), float32.

    Examples:
        >>> block_quantise(np.array([1.0, -0.5], dtype=np.float32), exponent=1, workers=8).tolist()
        [134217728, -67108864]
    """
    _require(exponent, workers)
    return _switch.block_quantise(column(values, "values", "float32"), exponent, workers)


def block_dequantise(sums: NDArray[np.int32], *, exponent: int, workers: int) -> NDArray[np.float32]:
    """Dequantise sums of such integers, rounded to float32.

    Args:
        sums: Shape (count,), int32.

    Examples:
        >>> block_dequantise(np.array([2**28 - 1], dtype=np.int32), exponent=1, workers=8).tolist()
        [2.0]
    """
    _require(exponent, workers)
    return _switch.block_dequantise(column(sums, "sums", "int32"), exponent, workers)


@checked
def block_sum(values: NDArray[np.float32], *, block: int = 256) -> BlockSum:
    """Sum over workers as SwitchML does: agree on the largest exponent of each block, then add integers.

    Args:
        values: Shape (workers, count), float32.
        block: Values that share an exponent: those of one packet.

    Examples:
        >>> found = block_sum(np.array([[1.0, 2.0], [0.5, -2.0]], dtype=np.float32))
        >>> found.sums.tolist(), found.exponents.tolist()
        ([1.5, 0.0], [2])
        >>> bool(found.bound[0] < 4e-9)
        True
    """
    table = rows(values, "float32")
    require_within("block", block, 1, 1 << 20, "a packet has one value or more")
    workers, count = table.shape
    sums, bounds, exponents = np.empty(count, dtype=np.float32), np.empty(count), []
    for begin in range(0, count, block):
        part = slice(begin, min(begin + block, count))
        exponent = max(block_exponent(row[part]) for row in table)
        total = np.zeros(part.stop - begin, dtype=np.int32)
        for row in table:
            total += _switch.block_quantise(row[part], exponent, workers)
        sums[part] = _switch.block_dequantise(total, exponent, workers)
        bounds[part] = workers / (2 * _switch.block_scale(exponent, workers))
        exponents.append(exponent)
    return BlockSum(sums=sums, exponents=np.array(exponents, dtype=np.int8), bound=bounds)


def _require(exponent: int, workers: int) -> None:
    require_within(
        "exponent", exponent, LEAST_EXPONENT, GREATEST_EXPONENT, "it is the largest that a worker announced"
    )
    require_within("workers", workers, 1, 2**31 - 1, "each of them needs a step of the integers")
