"""Sums in floating-point adders, as switches with such have them (SHARP, NVLS, FPGA switches)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.innetwork.numerics.arrays import rows
from coppice.native import _switch


@checked
def float_sum(values: NDArray[Any]) -> NDArray[Any]:
    """The sum over workers in float32, in the order of the rows, rounded once to the type of the values.

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
