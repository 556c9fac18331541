"""A strict reader of Chakra traces for the tests, written from the schema and not from the writer."""

from __future__ import annotations

from dataclasses import dataclass, field

COMP, COMM_SEND, COMM_RECV = 4, 5, 6

_VALUES = {7: "int32", 8: "int32 list", 9: "int64", 13: "uint64", 27: "bool", 29: "string"}
_NODE = {1: 0, 2: 2, 3: 0, 5: 2, 7: 0, 10: 2}
"""Wire type of each field of a node."""


@dataclass
class Node:
    """A node as a file has it."""

    id: int
    name: str
    type: int
    waits: list[int]
    micros: int
    values: dict[str, object] = field(default_factory=dict)

    def number(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int)
        return value

    @property
    def chunks(self) -> list[int]:
        value = self.values.get("chunks", [])
        assert isinstance(value, list)
        return value


def read_trace(data: bytes) -> tuple[dict[str, object], list[Node]]:
    """Header and nodes of a file, every byte of which must mean something."""
    messages: list[bytes] = []
    at = 0
    while at < len(data):
        length, at = _varint(data, at)
        assert length < 2**28
        assert at + length <= len(data)
        messages.append(data[at : at + length])
        at += length
    header, nodes = messages[0], messages[1:]
    values: dict[str, object] = {}
    for number, value in _fields(header, {1: 2, 2: 2}):
        if number == 1:
            assert isinstance(value, bytes)
            values["version"] = value.decode()
        else:
            values |= _attribute(value)
    return values, [_node(each) for each in nodes]


def _node(data: bytes) -> Node:
    found: dict[int, list[object]] = {}
    for number, value in _fields(data, _NODE):
        found.setdefault(number, []).append(value)
    values: dict[str, object] = {}
    for each in found.get(10, []):
        attribute = _attribute(each)
        assert not attribute.keys() & values.keys()
        values |= attribute
    assert {1, 2, 3} <= found.keys()
    assert all(len(found[number]) == 1 for number in found if number != 10)
    (identity,), (name,), (kind,) = found[1], found[2], found[3]
    assert isinstance(identity, int)
    assert isinstance(name, bytes)
    assert isinstance(kind, int)
    (waits,) = found.get(5, [b""])
    (micros,) = found.get(7, [0])
    assert isinstance(waits, bytes)
    assert isinstance(micros, int)
    return Node(identity, name.decode(), kind, _list(waits), micros, values)


def _attribute(data: object) -> dict[str, object]:
    assert isinstance(data, bytes)
    wire = {1: 2, 7: 0, 8: 2, 9: 0, 13: 0, 27: 0, 29: 2}
    (first, name), (second, value) = list(_fields(data, wire))
    assert first == 1
    assert isinstance(name, bytes)
    kind = _VALUES[second]
    if kind == "string":
        assert isinstance(value, bytes)
        return {name.decode(): value.decode()}
    if kind == "int32 list":
        assert isinstance(value, bytes)
        inner = list(_fields(value, {1: 2}))
        assert len(inner) <= 1
        return {name.decode(): _list(inner[0][1]) if inner else []}
    assert isinstance(value, int)
    limit = {"int32": 2**31, "int64": 2**63, "uint64": 2**64, "bool": 2}[kind]
    assert value < limit
    return {name.decode(): value}


def _fields(data: bytes, wire: dict[int, int]) -> list[tuple[int, int | bytes]]:
    """Fields in ascending order, of the wire types that the schema has."""
    found: list[tuple[int, int | bytes]] = []
    at, before = 0, 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        assert number >= before
        assert wire[number] == kind
        before = number
        value, at = _varint(data, at)
        if kind == 0:
            found.append((number, value))
            continue
        assert at + value <= len(data)
        found.append((number, data[at : at + value]))
        at += value
    return found


def _list(data: object) -> list[int]:
    assert isinstance(data, bytes)
    values, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        values.append(value)
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in as few bytes as it needs, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            assert byte or not shift
            assert value < 2**64
            return value, at
        shift += 7
