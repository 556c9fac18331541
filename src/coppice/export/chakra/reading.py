"""Read Chakra execution traces of any producer, by the schema of MLCommons Chakra.

Files hold a header and then nodes, each with its length before it as a varint. Fields that are not known are passed
over.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coppice.errors import InputError

_Value = int | float | str | bool | list[int] | list[float] | list[str] | bytes

_SIGNED = {7: 64, 9: 64}
_ZIGZAG = (15, 17)
_FIXED = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
_LISTS = {8: 7, 10: 9, 12: 11, 14: 13, 16: 15, 18: 17, 28: 27, 30: 29}
"""Field of a list of values, and the field of one such value."""
_FIXED_LISTS = {4: 3, 6: 5, 20: 19, 22: 21, 24: 23, 26: 25}


class ChakraNodeType(enum.IntEnum):
    """Type of a node (``NodeType`` of the schema)."""

    INVALID = 0
    METADATA = 1
    LOAD = 2
    STORE = 3
    COMP = 4
    SEND = 5
    RECV = 6
    COLL = 7


@dataclass(frozen=True, kw_only=True)
class ChakraNode:
    """A trace node."""

    id: int  # Its number
    name: str  # Its name
    type: ChakraNodeType  # What it does
    control: tuple[int, ...]  # Numbers of the nodes that it hangs on
    data: tuple[int, ...]  # Numbers of the nodes that it waits for
    start_us: int  # When it began; 0: not said
    duration_us: int  # How long it took, in microseconds; 0: not said
    attributes: Mapping[str, _Value]  # Its attributes by name

    def whole(self, name: str, default: int = 0) -> int:
        """Value of an integer attribute."""
        value = self.attributes.get(name, default)
        return int(value) if isinstance(value, int | float) else default


def read_chakra(data: bytes, *, file: str = "the trace") -> tuple[dict[str, _Value], list[ChakraNode]]:
    """Read the header attributes and nodes of a file.

    Examples:
        >>> from coppice.export.chakra import wire
        >>> node = wire.number(1, 7) + wire.text(2, "matmul") + wire.number(3, 4) + wire.number(7, 12)
        >>> header, nodes = read_chakra(wire.delimited(wire.text(1, "0.0.4")) + wire.delimited(node))
        >>> header["version"], nodes[0].name, nodes[0].duration_us
        ('0.0.4', 'matmul', 12)
    """
    messages = []
    at = 0
    try:
        while at < len(data):
            length, at = _varint(data, at)
            if at + length > len(data):
                missing = at + length - len(data)
                raise InputError(f"expected a whole Chakra trace in {file}, found it {missing} bytes short.")
            messages.append(data[at : at + length])
            at += length
        if not messages:
            raise IndexError
        return _header(messages[0]), [_node(each) for each in messages[1:]]
    except (IndexError, UnicodeDecodeError, ValueError, struct.error) as error:
        reason = f" ({error})" if str(error) and not isinstance(error, IndexError) else ""
        raise InputError(
            f"expected a Chakra trace in {file} (messages with their lengths before them), found otherwise{reason}."
        ) from None


def _header(data: bytes) -> dict[str, _Value]:
    """Version and attributes."""
    found: dict[str, _Value] = {}
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            found["version"] = value.decode()
        elif number == 2 and isinstance(value, bytes):
            found |= _attribute(value)
    return found


def _node(data: bytes) -> ChakraNode:
    """A node of its bytes."""
    numbers = {1: 0, 3: 0, 6: 0, 7: 0}
    waits: dict[int, list[int]] = {4: [], 5: []}
    name = ""
    attributes: dict[str, _Value] = {}
    for number, value in _fields(data):
        if number in numbers and isinstance(value, int):
            numbers[number] = value
        elif number in waits:
            waits[number] += [value] if isinstance(value, int) else _packed(value)
        elif number == 2 and isinstance(value, bytes):
            name = value.decode(errors="replace")
        elif number == 10 and isinstance(value, bytes):
            attributes |= _attribute(value)
    return ChakraNode(
        id=numbers[1],
        name=name,
        type=ChakraNodeType(numbers[3]),
        control=tuple(waits[4]),
        data=tuple(waits[5]),
        start_us=numbers[6],
        duration_us=numbers[7],
        attributes=attributes,
    )


def _attribute(data: bytes) -> dict[str, _Value]:
    """An attribute by its name."""
    name = ""
    value: _Value = 0
    for number, found in _fields(data):
        if number == 1 and isinstance(found, bytes):
            name = found.decode()
        elif number != 2:
            value = _value(number, found)
    return {name: value}


def _value(field: int, found: int | bytes) -> _Value:
    """The value of a field of an attribute."""
    if isinstance(found, int):
        return _number(field, found)
    if field in _FIXED:
        return _unpacked(_FIXED[field], found)[0]
    if field == 29:
        return found.decode(errors="replace")
    if field in _FIXED_LISTS:
        form = _FIXED[_FIXED_LISTS[field]]
        return [
            each for _, part in _fields(found) if isinstance(part, bytes) for each in _unpacked(form, part)
        ]
    if field in _LISTS:
        of = _LISTS[field]
        parts = [part for _, part in _fields(found)]
        if of == 29:
            return [part.decode(errors="replace") for part in parts if isinstance(part, bytes)]
        numbers = [each for part in parts for each in ([part] if isinstance(part, int) else _packed(part))]
        return [int(_number(of, each)) for each in numbers]
    return found


def _number(field: int, found: int) -> int | bool:
    """A number of the type of its field."""
    if field == 27:
        return bool(found)
    if field in _SIGNED and found >= 2**63:
        return found - 2**64
    if field in _ZIGZAG:
        return (found >> 1) ^ -(found & 1)
    return found


def _unpacked(form: str, data: bytes) -> list[float]:
    """Numbers of a fixed width."""
    return [each for (each,) in struct.iter_unpack(form, data)]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a message: their number, and a number or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(data):
            raise IndexError
        yield number, data[at : at + length]
        at += length


def _packed(data: bytes) -> list[int]:
    """Numbers of a packed list."""
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
