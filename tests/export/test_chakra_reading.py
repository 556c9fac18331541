"""Chakra traces that we read: what we export comes back, and files that are none are refused in one sentence."""

from __future__ import annotations

import struct

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.chakra import wire
from coppice.export.chakra.reading import ChakraNodeType, read_chakra
from coppice.export.chakra.traces import chakra_trace
from coppice.planners.planning import plan
from coppice.topology.presets import preset


def test_what_is_exported_comes_back() -> None:
    problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
    trace = chakra_trace(plan(problem, ring=False).plan.body, size_bytes=1 << 20, reduce_gb_per_s=1.0)
    sent, messages = 0, 0
    for rank in range(trace.num_ranks):
        header, nodes = read_chakra(b"".join(trace.file(rank)))
        assert header["rank"] == rank
        assert header["collective"] == "ALL_REDUCE"
        assert [node.id for node in nodes] == list(range(1, len(nodes) + 1))
        assert all(before < node.id for node in nodes for before in node.data)
        sends = [node for node in nodes if node.type is ChakraNodeType.SEND]
        assert all(node.attributes["comm_src"] == rank for node in sends)
        sent += sum(node.whole("comm_size") for node in sends)
        messages += len(sends)
        assert any(node.duration_us for node in nodes if node.type is ChakraNodeType.COMP)
    assert messages == trace.messages.count
    assert sent == int(trace.messages.num_bytes.sum())


def attribute(field: int, kind: int, content: bytes) -> bytes:
    return wire.text(1, "x") + wire.varint(field << 3 | kind) + content


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (attribute(3, 1, struct.pack("<d", 1.5)), 1.5),
        (attribute(5, 5, struct.pack("<f", 0.25)), 0.25),
        (attribute(9, 0, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), -1),
        (attribute(17, 0, b"\x03"), -2),
        (attribute(21, 1, struct.pack("<Q", 2**40)), 2**40),
        (attribute(27, 0, b"\x01"), True),
        (wire.string_value("x", "Größe"), "Größe"),
        (wire.int32_list("x", [3, 300]), [3, 300]),
        (attribute(30, 2, wire.varint(4) + wire.text(1, "ab")), ["ab"]),
        (attribute(4, 2, wire.varint(10) + wire.within(1, struct.pack("<d", 2.0))), [2.0]),
        (attribute(31, 2, b"\x02ab"), b"ab"),
    ],
)
def test_attributes_of_every_type(content: bytes, value: object) -> None:
    node = wire.number(1, 1) + wire.number(3, 4) + wire.within(10, content) + wire.number(99, 5)
    _, nodes = read_chakra(wire.delimited(b"") + wire.delimited(node))
    assert nodes[0].attributes == {"x": value}


def test_dependencies_that_are_not_packed() -> None:
    node = wire.number(1, 9) + wire.number(3, 4) + wire.number(5, 7) + wire.number(5, 8) + wire.packed(4, [2])
    _, nodes = read_chakra(wire.delimited(b"") + wire.delimited(node))
    assert (nodes[0].data, nodes[0].control) == ((7, 8), (2,))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "expected a Chakra trace in t.et"),
        (b"\x05ab", "found it 3 bytes short"),
        (b"\x02\xff\xff", "expected a Chakra trace"),
        (b"\x00\x02\x18\x63", "99 is not a valid"),
        (b"\xff" * 12, "more than 64 bits"),
        (b"\x00\x01\x0b", "wire type 3"),
    ],
)
def test_files_that_are_none(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_chakra(data, file="t.et")
