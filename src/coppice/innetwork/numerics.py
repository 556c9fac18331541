"""Arithmetic of in-network sums: saturating integers, block floating point, and FPISA's unnormalised mantissas.

Every sum takes the contributions of all workers as an array of shape (workers, count) and adds them in the order of its
rows, with the kernels that the software switch uses. What comes back says how far it can be from the exact sum.

Sums of int32 that saturate or wrap around, and ATP's fixed-point numbers on top of the former. Source: ATP (NSDI'21):
factor 10^6, the ends of the range read as overflow. That the ends absorb is ours: a register that only clamps forgets
an overflow when the next value has the other sign.

SwitchML's block floating point: float32 summed by switches that add int32, at exponents that workers agree on. Source:
SwitchML (NSDI'21), section 3.7; the scale of whole steps is ours (cpp/numerics/block_float.h says why).

FPISA's floating-point sums in a switch's integer pipeline: mantissas are normalised only when they are read. Source:
FPISA (NSDI'22), sections 3 and 4; cpp/numerics/fpisa.h describes the registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.native import _switch

__all__ = [
    "BlockSum",
    "FixedPointSum",
    "FpisaSum",
    "block_dequantise",
    "block_exponent",
    "block_quantise",
    "block_scale",
    "block_sum",
    "fixed_point_sum",
    "float_sum",
    "fpisa_sum",
    "saturating_sum",
    "wrapping_sum",
]


_NAMES = {"float32": "float32", "float16": "float16", "uint16": "bfloat16"}


def rows(values: object, *kinds: str) -> NDArray[Any]:
    """Check workers' contributions: a contiguous array of two dimensions, one row each, of one of the types."""
    if not isinstance(values, np.ndarray) or values.ndim != 2 or len(values) == 0:
        raise InputError(
            f"expected `values` to be an array of shape (workers, count), found {_shape(values)}: one row for each "
            f"worker."
        )
    return _of_type(values, "values", kinds)


def column(values: object, name: str, kind: str) -> NDArray[Any]:
    """Check for a contiguous array of one dimension and one type."""
    if not isinstance(values, np.ndarray) or values.ndim != 1:
        raise InputError(
            f"expected `{name}` to be an array of one dimension, found {_shape(values)}: use `.ravel()`."
        )
    return _of_type(values, name, (kind,))


def float_format(values: NDArray[Any]) -> str:
    """Name of the format of floating-point numbers; bits in uint16 are bfloat16."""
    return _NAMES[values.dtype.name]


def require_within(name: str, value: int, least: int, most: int, why: str) -> None:
    """Raise unless a number is in its range."""
    if not least <= value <= most:
        raise InputError(f"expected `{name}` from {least} to {most}, found {value}: {why}.")


def _of_type(values: NDArray[Any], name: str, kinds: tuple[str, ...]) -> NDArray[Any]:
    if values.dtype.name not in kinds:
        raise InputError(
            f"expected `{name}` of type {' or '.join(kinds)}, found {values.dtype.name}: convert it with "
            f"`.astype(numpy.{kinds[0]})`."
        )
    return np.ascontiguousarray(values)


def _shape(values: object) -> str:
    return f"shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__


@checked
def float_sum(values: NDArray[Any]) -> NDArray[Any]:
    """Sum over workers in float32, in the order of the rows, rounded once to the type of the values.

    Args:
        values: Shape (workers, count), float32, float16, or bfloat16 as its bits in uint16.

    Examples:
        >>> float_sum(np.array([[2048.0], [1.0], [1.0]], dtype=np.float16)).tolist()
        [2050.0]
        >>> hex(float_sum(np.array([[0x3F80], [0x4000]], dtype=np.uint16))[0])
        '0x4040'
    """
    table = rows(values, "float32", "float16", "uint16")
    if table.dtype == np.float32:
        return _switch.float_sum(table)
    half = table.dtype == np.float16
    return _switch.float_sum(table.view(np.uint16), bfloat16=not half).view(table.dtype)


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


_SIGNIFICANT = {"float32": 24, "float16": 11, "bfloat16": 8}
_LEAST_EXPONENT = {"float32": -126, "float16": -14, "bfloat16": -126}


@dataclass(frozen=True, kw_only=True)
class FpisaSum:
    """A sum over workers in registers of exponents and mantissas."""

    sums: NDArray[Any]  # Shape (count,), of the type of the values; NaN where a register overflowed
    # How far each finite sum is from the exact one at most: workers - 1 units in the last place of the
    # largest magnitude (of 2^-guard of them), and the rounding of the reading. Shape (count,), float64. None
    # of approximate sums, whose error is whatever was overwritten.
    bound: NDArray[np.float64] | None
    overflowed: int  # How many sums left their register
    overwritten: int  # How often a sum was lost to a larger value (approximate only)
    not_finite: int  # Infinities and NaN among the values


@checked
def fpisa_sum(
    values: NDArray[Any],  # Shape (workers, count), float32, float16, or bfloat16 as its bits in uint16
    *,
    # `full` needs registers that shift what they hold; `approximate` (FPISA-A) shifts the value of the packet
    # alone, and overwrites a sum that is smaller by more than its headroom
    mode: Literal["full", "approximate"] = "full",
    # Bits kept below the last place, 0 to 7 (float16 20, bfloat16 23); each takes a bit of headroom
    guard: int = 0,
    # Bits of the register above a value that approximate sums may shift into; None: all there are
    headroom: int | None = None,
    # How sums are read: to the nearest, ties to even, or cut towards zero
    rounding: Literal["nearest", "truncate"] = "nearest",
) -> FpisaSum:
    """Sum over workers in the integer pipeline of a switch, in the order of the rows.

    The order decides the last bits: a mantissa that is shifted to the right is rounded towards minus infinity.

    Examples:
        >>> values = np.array([[1.0, 1.0], [256.0, 1e-3]], dtype=np.float32)
        >>> found = fpisa_sum(values, mode="approximate")
        >>> found.sums.tolist(), found.overwritten
        ([256.0, 1.000999927520752], 1)
        >>> fpisa_sum(values).sums.tolist()
        [257.0, 1.000999927520752]
    """
    table = rows(values, "float32", "float16", "uint16")
    name = float_format(table)
    room = 31 - _SIGNIFICANT[name]
    require_within("guard", guard, 0, room, f"a {name} leaves {room} bits of its register")
    most = room - guard
    if headroom is not None:
        require_within("headroom", headroom, 0, most, f"a {name} with {guard} guard bits leaves {most}")
    bits = table.view(np.uint32 if name == "float32" else np.uint16)
    exponents = np.ones(table.shape[1], dtype=np.int32)
    mantissas = np.zeros(table.shape[1], dtype=np.int32)
    counts = np.zeros(3, dtype=np.int64)
    for row in bits:
        counts += _switch.fpisa_add(
            name, mode == "full", guard, most if headroom is None else headroom, exponents, mantissas, row
        )
    read = _switch.fpisa_read(name, guard, rounding == "nearest", exponents, mantissas)
    overflowed, overwritten, not_finite = map(int, counts)
    return FpisaSum(
        sums=read.view(table.dtype),
        bound=_bound(table, read, name, guard, rounding) if mode == "full" else None,
        overflowed=overflowed,
        overwritten=overwritten,
        not_finite=not_finite,
    )


def _bound(
    table: NDArray[Any], read: NDArray[Any], name: str, guard: int, rounding: str
) -> NDArray[np.float64]:
    """Largest error of a full sum of finite values."""
    largest = np.abs(_as_float64(table, name)).max(axis=0)
    lost = (len(table) - 1) * _last_place(largest, name) * 2.0**-guard
    cut = _last_place(_as_float64(read.view(table.dtype), name), name)
    return lost + cut * (1 if rounding == "truncate" else 0.5)


def _last_place(values: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """The unit in the last place of magnitudes in a format."""
    exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))[1] - 1
    exponent = np.where(values == 0, _LEAST_EXPONENT[name], np.maximum(exponent, _LEAST_EXPONENT[name]))
    unit: NDArray[np.float64] = np.ldexp(1.0, exponent - (_SIGNIFICANT[name] - 1))
    return unit


def _as_float64(values: NDArray[Any], name: str) -> NDArray[np.float64]:
    if name == "bfloat16":
        values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return values.astype(np.float64)
