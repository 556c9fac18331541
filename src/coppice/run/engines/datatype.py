"""Element types and reductions of the engines, implemented in NumPy."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError


class DataType(enum.StrEnum):
    """Element type, named as in NumPy and torch.

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
        """Whether it is one of the four floating-point types."""
        return "float" in self.value

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer type; bool is not."""
        return "int" in self.value

    @property
    def numpy_name(self) -> str:
        """Name of the NumPy storage type; bfloat16 is stored as uint16 bits."""
        return "uint16" if self is DataType.BFLOAT16 else self.value


class ReduceOp(enum.StrEnum):
    """Reduction operation.

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
        """Whether it is bitwise, for integers and bool only."""
        return self in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)

    def serves(self, dtype: DataType) -> bool:
        """Whether it is defined for ``dtype``."""
        if self.is_bitwise:
            return not dtype.is_float
        return self is not ReduceOp.AVG or dtype is not DataType.BOOL


def check_reduction(op: ReduceOp, dtype: DataType) -> None:
    """Refuse an operation that is undefined for a type.

    Examples:
        >>> check_reduction(ReduceOp.BXOR, DataType.FLOAT32)
        Traceback (most recent call last):
        coppice.errors.InputError: expected integers or bool for bxor, found float32: choose another operation.
    """
    if not op.serves(dtype):
        wanted = "integers or bool" if op.is_bitwise else "numbers"
        raise InputError(f"expected {wanted} for {op}, found {dtype}: choose another operation.")


Array = NDArray[Any]


def array_of(buffer: Any) -> Array:
    """View a buffer as a NumPy array, without a copy.

    Examples:
        >>> array_of([1.0, 2.0])
        Traceback (most recent call last):
        coppice.errors.InputError: expected an array or other memory of elements, found list: make an array of it first.
    """
    if buffer is None:
        raise InputError("expected an array, found None: give one.")
    is_bytes = isinstance(buffer, bytes)
    array: Array = np.frombuffer(buffer, dtype=np.uint8) if is_bytes else np.asarray(buffer)
    if array is not buffer and array.base is None:  # a copy, whose result nobody would see
        kind = type(buffer).__name__
        raise InputError(
            f"expected an array or other memory of elements, found {kind}: make an array of it first."
        )
    return array


def data_type_of(buffer: Any, dtype: DataType | str | None) -> DataType:
    """Element type of a buffer, as given or by its own dtype."""
    name = array_of(buffer).dtype.name if dtype is None else str(dtype)
    if name not in tuple(DataType):
        raise InputError(
            f"expected elements of type {', '.join(DataType)}, found {name}: convert them first."
        )
    return DataType(name)


def elements_of(buffer: Any, dtype: DataType, elements: int, *, name: str, writable: bool = False) -> Array:
    """The first ``elements`` elements of a buffer, without a copy.

    Args:
        buffer: Anything contiguous with the buffer protocol or ``__array_interface__``; None where nothing is
            needed.
        dtype: Type of the elements: what the buffer holds, unless it holds bytes.
        name: Name of the buffer, for messages.

    Examples:
        >>> elements_of(bytearray(8), DataType.INT16, 3, name="the input").tolist()
        [0, 0, 0]
    """
    kind = np.dtype(dtype.numpy_name)
    if elements == 0:
        return np.zeros(0, dtype=kind)
    if buffer is None:
        raise InputError(f"expected {elements} elements of {dtype} in {name}, found none: give a buffer.")
    array = array_of(buffer)
    if not (array.flags.c_contiguous and (array.flags.writeable or not writable)):
        wanted = "writable, contiguous" if writable else "contiguous"
        raise InputError(f"expected {wanted} memory in {name}: make a copy of it first.")
    flat = array.reshape(-1)
    bits = dtype is DataType.BFLOAT16 and flat.dtype.itemsize == 2 and flat.dtype.kind == "V"
    if flat.dtype != kind and flat.dtype != np.uint8 and not bits:
        raise InputError(f"expected elements of {dtype} in {name}, found {flat.dtype}: convert them first.")
    if flat.nbytes < elements * kind.itemsize:
        raise InputError(
            f"expected {elements} elements of {dtype} in {name}, found memory for "
            f"{flat.nbytes // kind.itemsize}: give a longer buffer."
        )
    return flat.view(np.uint8)[: elements * kind.itemsize].view(kind)


def combine(op: ReduceOp, dtype: DataType, own: Array, received: Array, out: Array) -> None:
    """``out = own (op) received`` element by element; ``out`` may be ``own`` or ``received``.

    The average adds; :func:`divide` does the rest. Overflow is silent: integers wrap, floats become infinite.

    Examples:
        >>> own = np.array([250, 3], dtype=np.uint8)
        >>> combine(ReduceOp.SUM, DataType.UINT8, own, np.array([10, 4], dtype=np.uint8), own)
        >>> own.tolist()
        [4, 7]
    """
    function = _BOOL[op] if dtype is DataType.BOOL else _FUNCTIONS[op]
    with np.errstate(all="ignore"):
        if dtype is DataType.BFLOAT16:
            out[:] = to_bfloat16(function(from_bfloat16(own), from_bfloat16(received)))
        else:
            function(own, received, out=out)


def divide(dtype: DataType, values: Array, ranks: int) -> None:
    """Divide a sum by the number of ranks, in place: rounded to nearest for floats, towards zero for integers.

    Examples:
        >>> values = np.array([-7, 7])
        >>> divide(DataType.INT64, values, 2)
        >>> values.tolist()
        [-3, 3]
    """
    with np.errstate(all="ignore"):
        if dtype is DataType.BFLOAT16:
            values[:] = to_bfloat16(from_bfloat16(values) / np.float32(ranks))
        elif dtype.is_float:
            np.divide(values, values.dtype.type(ranks), out=values)
        else:
            # The number of ranks may not fit into the type itself.
            wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
            quotient = wide // wide.dtype.type(ranks)
            if wide.dtype.kind == "i":
                quotient += (wide < 0) & (quotient * ranks != wide)
            values[:] = quotient.astype(values.dtype)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Convert bfloat16 bits to floats.

    Examples:
        >>> from_bfloat16(np.array([0x3F80, 0xC000], dtype=np.uint16)).tolist()
        [1.0, -2.0]
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even; NaN stays NaN.

    Examples:
        >>> [hex(bits) for bits in to_bfloat16(np.array([1.0, 1.00390625, 1.01171875], dtype=np.float32)).tolist()]
        ['0x3f80', '0x3f80', '0x3f82']
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(values), quiet, rounded)


_FUNCTIONS = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}

_BOOL = {
    ReduceOp.SUM: np.logical_or,
    ReduceOp.MAX: np.logical_or,
    ReduceOp.BOR: np.logical_or,
    ReduceOp.MIN: np.logical_and,
    ReduceOp.PRODUCT: np.logical_and,
    ReduceOp.BAND: np.logical_and,
    ReduceOp.BXOR: np.logical_xor,
}
