"""The wire format of protocol buffers, as far as a Chakra trace needs it: varints, bytes, and messages within messages.

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
    """A number of 0 or more in groups of seven bits, the lowest first.

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
    """A field that holds a number of 0 or more."""
    return _tag(field, _VARINT) + varint(value)


def within(field: int, content: bytes) -> bytes:
    """A field that holds bytes, or another message.

    >>> within(2, b"ab").hex()
    '12026162'
    """
    return _tag(field, _BYTES) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A field that holds text; the empty text is what an absent field means."""
    return within(field, value.encode()) if value else b""


def packed(field: int, values: Iterable[int]) -> bytes:
    """A field that holds a list of numbers of 0 or more; an empty list is what an absent field means."""
    content = b"".join(map(varint, values))
    return within(field, content) if content else b""


def delimited(message: bytes) -> bytes:
    """A message as it stands in a file: its length, then itself."""
    return varint(len(message)) + message


def int32_value(name: str, value: int) -> bytes:
    """An attribute that is a number below 2^31."""
    return _name(name) + number(_INT32, value)


def int64_value(name: str, value: int) -> bytes:
    """An attribute that is a signed number below 2^63."""
    return _name(name) + number(_INT64, value)


def uint64_value(name: str, value: int) -> bytes:
    """An attribute that is an unsigned number below 2^64."""
    return _name(name) + number(_UINT64, value)


def bool_value(name: str, *, value: bool) -> bytes:
    """An attribute that is yes or no."""
    return _name(name) + number(_BOOL, int(value))


def string_value(name: str, value: str) -> bytes:
    """An attribute that is text; an empty one is written too, since it says which kind of value there is."""
    return _name(name) + within(_STRING, value.encode())


def int32_list(name: str, values: Iterable[int]) -> bytes:
    """An attribute that is a list of numbers below 2^31."""
    return _name(name) + within(_INT32_LIST, packed(1, values))
