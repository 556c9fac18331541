"""The bytes of Chakra traces against the reference implementation of protocol buffers."""

from __future__ import annotations

from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.export.chakra import wire
from coppice.export.chakra.traces import chakra_trace
from coppice.planners.planning import plan
from coppice.topology.presets import preset

descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="needs the package protobuf")

Field = tuple[str, int, str, bool]
"""Name, number, type (a scalar or a message of ours), and whether it is a list."""

SCHEMA: dict[str, list[Field]] = {
    "Numbers": [("values", 1, "INT32", True)],
    "Attribute": [
        ("name", 1, "STRING", False),
        ("int32", 7, "INT32", False),
        ("int32_list", 8, "Numbers", False),
        ("int64", 9, "INT64", False),
        ("uint64", 13, "UINT64", False),
        ("flag", 27, "BOOL", False),
        ("string", 29, "STRING", False),
    ],
    "Header": [("version", 1, "STRING", False), ("attr", 2, "Attribute", True)],
    "Node": [
        ("id", 1, "UINT64", False),
        ("name", 2, "STRING", False),
        ("type", 3, "INT32", False),
        ("data_deps", 5, "UINT64", True),
        ("duration_micros", 7, "UINT64", False),
        ("attr", 10, "Attribute", True),
    ],
}


@pytest.fixture(scope="module")
def messages() -> dict[str, Any]:
    """Classes of the messages, made from descriptors of our own; values of an attribute are one-of."""
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="chakra.proto", package="trace", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        if name == "Attribute":
            message.oneof_decl.add(name="value")
        for field, number, kind, repeated in fields:
            made = message.field.add(name=field, number=number)
            made.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in SCHEMA:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".trace.{kind}"
            else:
                made.type = getattr(kinds, f"TYPE_{kind}")
            if name == "Attribute" and field != "name":
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"trace.{name}")) for name in SCHEMA
    }


def test_files_are_what_the_reference_writes(messages: dict[str, Any]) -> None:
    from google.protobuf.internal.decoder import _DecodeVarint32

    problem = Problem(topology=preset("dgx-h100"), collective=Collective.ALL_REDUCE)
    body = plan(problem, ring=False).plan.body
    trace = chakra_trace(body, size_bytes=1 << 34, reduce_gb_per_s=100.0)
    for rank in range(trace.num_ranks):
        data = b"".join(trace.file(rank))
        at = count = 0
        types = set()
        while at < len(data):
            length, at = _DecodeVarint32(data, at)
            message = messages["Node" if count else "Header"]()
            message.ParseFromString(data[at : at + length])
            assert message.SerializeToString(deterministic=True) == data[at : at + length]
            if count:
                assert message.id == count
                types.add(message.type)
            at += length
            count += 1
        assert at == len(data)
        assert types == {4, 5, 6}


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**31 - 1])
def test_attributes_are_what_the_reference_writes(messages: dict[str, Any], value: int) -> None:
    made = messages["Attribute"]
    assert wire.int32_value("a", value) == made(name="a", int32=value).SerializeToString()
    assert wire.int64_value("a", value << 31) == made(name="a", int64=value << 31).SerializeToString()
    assert wire.uint64_value("a", value << 32) == made(name="a", uint64=value << 32).SerializeToString()
    assert wire.bool_value("a", value=bool(value)) == made(name="a", flag=bool(value)).SerializeToString()
    numbers = messages["Numbers"](values=[value, 0])
    assert wire.int32_list("a", [value, 0]) == made(name="a", int32_list=numbers).SerializeToString()


@pytest.mark.parametrize("value", ["", "plain", "Größe 8 × 8", "x" * 200])
def test_text_is_what_the_reference_writes(messages: dict[str, Any], value: str) -> None:
    made = messages["Attribute"]
    assert wire.string_value("a", value) == made(name="a", string=value).SerializeToString()
