"""Element types and reductions that engines know."""

from __future__ import annotations

import enum

from coppice.errors import InputError

__all__ = ["DataType", "ReduceOp", "check_reduction"]


class DataType(enum.StrEnum):
    """Type of the elements of a buffer, by the name that NumPy and torch give it.

    >>> DataType("bfloat16").itemsize, DataType.BFLOAT16.numpy_name, DataType.INT32.is_integer
    (2, 'uint16', True)
    """

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    BOOL = "bool"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        if self is DataType.BOOL:
            return 1
        return int(self.value.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8

    @property
    def is_float(self) -> bool:
        """One of the four floating-point types."""
        return "float" in self.value

    @property
    def is_integer(self) -> bool:
        """A signed or unsigned integer type; bool is not one."""
        return "int" in self.value

    @property
    def numpy_name(self) -> str:
        """Name of the NumPy type that holds an element: bfloat16 is held as its bits, in uint16."""
        return "uint16" if self is DataType.BFLOAT16 else self.value


class ReduceOp(enum.StrEnum):
    """How the values of ranks become one.

    Integers wrap around as in C. ``avg`` is the sum in the type itself, divided by the number of ranks once, at the
    end; integers are then cut towards zero. Of bool, ``sum`` and ``max`` are "or", ``product`` and ``min`` are "and".
    A NaN among floats stays NaN in ``min`` and ``max``. The bitwise operations are for integers and bool.
    """

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    @property
    def is_bitwise(self) -> bool:
        """For integers and bool only."""
        return self in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)

    def serves(self, dtype: DataType) -> bool:
        """The operation has a meaning for ``dtype``."""
        if self.is_bitwise:
            return not dtype.is_float
        return self is not ReduceOp.AVG or dtype is not DataType.BOOL


def check_reduction(op: ReduceOp, dtype: DataType) -> None:
    """Refuse an operation that has no meaning for a type.

    Raises:
        InputError: If ``op`` does not serve ``dtype``.

    Examples:
        >>> check_reduction(ReduceOp.BXOR, DataType.FLOAT32)
        Traceback (most recent call last):
        coppice.errors.InputError: expected integers or bool for bxor, found float32: choose another operation.
    """
    if not op.serves(dtype):
        wanted = "integers or bool" if op.is_bitwise else "numbers"
        msg = f"expected {wanted} for {op}, found {dtype}: choose another operation."
        raise InputError(msg)
