"""Arithmetic of in-network sums: saturating integers, block floating point, and FPISA's unnormalised mantissas.

Every sum takes the contributions of all workers as an array of shape (workers, count) and adds them in the order of its
rows, with the kernels that the software switch uses. What comes back says how far it can be from the exact sum.
"""

from coppice.innetwork.numerics.arrays import float_sum
from coppice.innetwork.numerics.block_float import (
    BlockSum,
    block_dequantise,
    block_exponent,
    block_quantise,
    block_scale,
    block_sum,
)
from coppice.innetwork.numerics.fpisa import FpisaSum, fpisa_sum
from coppice.innetwork.numerics.saturating import FixedPointSum, fixed_point_sum, saturating_sum, wrapping_sum

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
