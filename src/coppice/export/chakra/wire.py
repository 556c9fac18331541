"""Encode the protocol buffers of Chakra traces: varints, bytes, and nested messages.

Fields are written in the order of their numbers, with packed lists, which are the bytes that the reference
implementation writes as well. A file of messages has the length of each one before it, as a varint.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache

_VARINT, _BYTES = 0, 2
"""Wire types."""

_NAME = 1
_INT32, _INT32_LIST, _INT64, _UINT64, _BOOL, _STRING = 7, 8, 9, 13, 27, 29
"""Fields of an attribute."""


def varint(value: int) -> bytes:
    """Encode a non-negative integer as a varint.

    >>> varint(300).hex()
    'ac02'
    """
    if value < 0x80:
        return bytes((value,))
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


@cache
def _tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return text(_NAME, name)


def number(field: int, value: int) -> bytes:
    """Encode a field with a non-negative integer."""
    return _tag(field, _VARINT) + varint(value)


def within(field: int, content: bytes) -> bytes:
    """Encode a field with bytes or a nested message.

    >>> within(2, b"ab").hex()
    '12026162'
    """
    return _tag(field, _BYTES) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """Encode a field with text; empty text is omitted."""
    return within(field, value.encode()) if value else b""


def packed(field: int, values: Iterable[int]) -> bytes:
    """Encode a packed repeated field of non-negative integers; an empty list is omitted."""
    content = b"".join(map(varint, values))
    return within(field, content) if content else b""


def delimited(message: bytes) -> bytes:
    """Encode a length-delimited message."""
    return varint(len(message)) + message


def int32_value(name: str, value: int) -> bytes:
    """Encode an int32 attribute (non-negative)."""
    return _name(name) + number(_INT32, value)


def int64_value(name: str, value: int) -> bytes:
    """Encode an int64 attribute."""
    return _name(name) + number(_INT64, value)


def uint64_value(name: str, value: int) -> bytes:
    """Encode a uint64 attribute."""
    return _name(name) + number(_UINT64, value)


def bool_value(name: str, *, value: bool) -> bytes:
    """Encode a boolean attribute."""
    return _name(name) + number(_BOOL, int(value))


def string_value(name: str, value: str) -> bytes:
    """Encode a text attribute; empty text is written too, since the field gives the type."""
    return _name(name) + within(_STRING, value.encode())


def int32_list(name: str, values: Iterable[int]) -> bytes:
    """Encode an attribute with a list of int32 numbers (non-negative)."""
    return _name(name) + within(_INT32_LIST, packed(1, values))
