"""Checks of the arrays that sums take, and sums in floating-point adders, as SHARP, NVLS and FPGAs have them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.native import _switch

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
