"""NCCL's side of a network library: its tables by name, its data types, and versions negotiated as the core does.

The tables are read as arrays of pointers, in the order of NCCL's headers, so that nothing here depends on the library's
own declarations.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

VERSIONS = (12, 11, 10, 9, 8)
_COLLNET = """
    name init devices getProperties listen connect reduceSupport regMr regMrDmaBuf deregMr iallreduce iallgather
    ireducescatter iflush test closeColl closeListen makeVDevice finalize
"""
_NET = """
    name init devices getProperties listen connect accept regMr regMrDmaBuf deregMr isend irecv iflush test closeSend
    closeRecv closeListen getDeviceMr irecvConsumed makeVDevice finalize setNetAttr
"""
COLLNET, NET = _COLLNET.split(), _NET.split()
LOGGER = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p
)
SUM, PRODUCT, MAXIMUM, MINIMUM = range(4)


def small_float(exponent_bits: int, mantissa_bits: int) -> dict[int, int]:
    """Codes of the whole numbers from -8 to 8 in a small floating-point type."""
    bias = 2 ** (exponent_bits - 1) - 1
    codes = {0: 0}
    for number in range(1, 9):
        exponent = number.bit_length() - 1
        fraction = (number << mantissa_bits >> exponent) - (1 << mantissa_bits)
        codes[number] = (exponent + bias) << mantissa_bits | fraction
        codes[-number] = codes[number] | 1 << (exponent_bits + mantissa_bits)
    return codes


CODED = {
    9: (np.uint16, small_float(8, 7)),
    10: (np.uint8, small_float(4, 3)),
    11: (np.uint8, small_float(5, 2)),
}
PLAIN = {
    0: np.int8, 1: np.uint8, 2: np.int32, 3: np.uint32, 4: np.int64, 5: np.uint64, 6: np.float16, 7: np.float32,
    8: np.float64,
}  # fmt: skip


def encoded(values: np.ndarray, kind: int) -> np.ndarray:
    """Whole numbers of a small range as an array of a data type."""
    if kind in CODED:
        dtype, codes = CODED[kind]
        return np.array([codes[int(value)] for value in values], dtype=dtype)
    return values.astype(PLAIN[kind])


class Piece(ctypes.Structure):
    """A part of a buffer; version 8 has 32 bits for its size, in the low half."""

    _fields_ = (("mhandle", ctypes.c_void_p), ("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Table:
    """The functions of a plugin, called by name."""

    def __init__(self, library: ctypes.CDLL, symbol: str, members: list[str], version: int) -> None:
        count = len(members) - (0 if version >= 11 else 2 if "setNetAttr" in members else 1)
        count -= 0 if version >= 9 else 1
        pointers = (ctypes.c_void_p * count).in_dll(library, symbol)
        self.pointers = dict(zip(members, pointers, strict=False))
        self.version = version

    def __call__(self, name: str, *given: Any) -> int:
        """Call a function and return its code."""
        pointer = self.pointers[name]
        assert pointer, name
        numbers = (ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64)
        types = [type(value) if isinstance(value, numbers) else ctypes.c_void_p for value in given]
        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(pointer)(*given)


def negotiated(library: ctypes.CDLL, kind: str, members: list[str], newest: int) -> Table:
    """The newest version that both sides know, as the core looks for it."""
    for version in VERSIONS:
        symbol = f"nccl{kind}Plugin_v{version}"
        if version <= newest and hasattr(library, symbol):
            return Table(library, symbol, members, version)
    raise LookupError(kind)
