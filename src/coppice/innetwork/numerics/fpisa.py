"""FPISA's floating-point sums in a switch's integer pipeline: mantissas are normalised only when they are read.

Source: FPISA (NSDI'22), sections 3 and 4; cpp/numerics/fpisa.h describes the registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.innetwork.numerics.arrays import float_format, require_within, rows
from coppice.native import _switch

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
    return values.astype(np.float64)
