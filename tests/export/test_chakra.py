"""Chakra traces: sends and receipts pair up, waits suffice whatever the order, and nothing gets stuck."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.chakra import wire
from coppice.export.chakra.graph import TraceNodeKind
from coppice.export.chakra.reading import ChakraNodeType, read_chakra
from coppice.export.chakra.traces import ChakraTrace, chakra_trace
from coppice.planners.algorithms.catalogue import algorithms, case_of, find, make
from coppice.planners.planning import plan
from coppice.schedule.lower import chunk_bounds
from coppice.schedule.messages import messages_of
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from export.chakra_reader import COMM_RECV, COMM_SEND, COMP, Node, read_trace
from export.chakra_replayer import Replay, Value
from simulation.bodies import Row, network, rows

TREES = [each for each in Collective if each.made_of_trees]


def problem_on(topology: Topology, collective: Collective) -> Problem:
    return Problem(topology=topology, collective=collective, root=1 if collective.rooted else None)


def body_of(name: str, collective: Collective, topology: Topology) -> Schedule:
    entry = find(name, collective)
    made = make(entry, case_of(entry, problem_on(topology, collective)))
    assert isinstance(made, Schedule)
    return made


def files_of(trace: ChakraTrace) -> list[bytes]:
    return [b"".join(trace.file(rank)) for rank in range(trace.num_ranks)]


def nodes_of(trace: ChakraTrace) -> list[list[Node]]:
    return [read_trace(data)[1] for data in files_of(trace)]


def key(node: Node) -> tuple[int, int, int]:
    return node.number("comm_src"), node.number("comm_dst"), node.number("comm_tag")


def ends(
    collective: Collective, ranks: int, slot: int, root: int
) -> tuple[dict[int, Value], dict[int, Value]]:
    """What ranks hold of a slot at first and must hold in the end, as sets of contributors."""
    everybody = Counter(range(ranks))
    own = {rank: Counter([rank]) for rank in range(ranks)}
    match collective:
        case Collective.ALL_GATHER:
            return {slot: own[slot]}, dict.fromkeys(range(ranks), own[slot])
        case Collective.REDUCE_SCATTER:
            return own, {slot: everybody}
        case Collective.ALL_REDUCE:
            return own, dict.fromkeys(range(ranks), everybody)
        case Collective.REDUCE:
            return own, {root: everybody}
        case Collective.BROADCAST:
            return {root: own[root]}, dict.fromkeys(range(ranks), own[root])
        case Collective.ALL_TO_ALL:
            return {slot // ranks: own[slot // ranks]}, {slot % ranks: own[slot // ranks]}
        case Collective.GATHER:
            return {slot: own[slot]}, {root: own[slot]}
        case Collective.SCATTER:
            return {root: own[root]}, {slot: own[root]}
        case _:
            return {}, {}


def check(trace: ChakraTrace, *, seeds: int = 2) -> None:
    """Replay a trace in several orders, and compare what ranks hold in the end."""
    schedule = trace.schedule
    slots = schedule.chunk_slot.tolist()
    both = [ends(schedule.collective, trace.num_ranks, slot, schedule.root) for slot in slots]
    initial = {(rank, chunk): value for chunk, (first, _) in enumerate(both) for rank, value in first.items()}
    traces = nodes_of(trace)
    for seed in range(seeds):
        replay = Replay(traces, initial)
        assert replay.run(seed, serial=seed == 0), "the replay got stuck"
        for chunk, (_, last) in enumerate(both):
            for rank, value in last.items():
                assert replay.held(rank, chunk) == value


def test_sends_and_receipts_pair_up() -> None:
    topology = preset("dgx-h100")
    body = body_of("rabenseifner", Collective.ALL_REDUCE, topology)
    trace = chakra_trace(body, size_bytes=100_003)
    _, length = chunk_bounds(body, 100_003)
    sends: dict[tuple[int, int, int], Node] = {}
    receipts: dict[tuple[int, int, int], Node] = {}
    for rank, nodes in enumerate(nodes_of(trace)):
        for node in nodes:
            if node.type == COMM_SEND:
                assert node.number("comm_src") == rank
                assert sends.setdefault(key(node), node) is node
            elif node.type == COMM_RECV:
                assert node.number("comm_dst") == rank
                assert receipts.setdefault(key(node), node) is node
    assert sends.keys() == receipts.keys()
    assert len(sends) == messages_of(body, 100_003).count
    for each, node in sends.items():
        assert node.chunks == receipts[each].chunks
        assert node.number("comm_size") == receipts[each].number("comm_size") == sum(length[node.chunks])
    carried = sum(length[body.chunk].tolist())
    assert sum(node.number("comm_size") for node in sends.values()) == carried


ENTRIES = [(name, collective) for name, collective in algorithms() if collective is not Collective.BARRIER]


@pytest.mark.parametrize(("name", "collective"), ENTRIES, ids=[f"{a}-{b}" for a, b in ENTRIES])
@pytest.mark.spread(3)
def test_algorithms_reach_their_goal(name: str, collective: Collective) -> None:
    entry = find(name, collective)
    for topology in (preset("dgx-h100"), preset("ring", gpus=5), preset("torus", dims=(2, 3))):
        case = case_of(entry, problem_on(topology, collective))
        if entry.refusal(case) is None:
            break
    else:
        pytest.skip(f"{name} serves none of the topologies")
    body = make(entry, case, relay_gpus=True)
    if not isinstance(body, Schedule) and body.branches_at_switches:
        pytest.skip("switches add or copy")
    check(chakra_trace(body, size_bytes=1 << 16))


@pytest.mark.parametrize("collective", TREES)
@pytest.mark.parametrize("pieces", [1, 3])
def test_forests_reach_their_goal(collective: Collective, pieces: int) -> None:
    body = plan(problem_on(preset("ring", gpus=4), collective), ring=False).plan.body
    check(chakra_trace(body, size_bytes=4_001, pieces=pieces))


def test_pieces_of_steps_reach_their_goal() -> None:
    body = body_of("ring", Collective.ALL_REDUCE, preset("ring", gpus=4))
    check(chakra_trace(body, size_bytes=4_001, pieces=3))


def test_forest_in_which_switches_add_is_refused() -> None:
    problem = Problem(topology=preset("dgx-h100"), collective=Collective.ALL_REDUCE)
    body = plan(problem, in_network=True, ring=False).plan.body
    with pytest.raises(InputError, match=r"switches copy or add: plan without `in_network`\.$"):
        chakra_trace(body, size_bytes=1 << 20)


def test_additions_stand_after_their_receipts() -> None:
    body = body_of("ring", Collective.REDUCE_SCATTER, preset("ring", gpus=4))
    trace = chakra_trace(body, size_bytes=8_000_000, reduce_gb_per_s=400.0, element_bytes=2)
    additions = 0
    for nodes in nodes_of(trace):
        for node in nodes:
            if node.type != COMP:
                continue
            additions += 1
            (receipt,) = (each for each in nodes if each.id in node.waits)
            assert receipt.type == COMM_RECV
            assert receipt.chunks == node.chunks
            assert node.number("tensor_size") == 2_000_000
            assert node.number("num_ops") == 1_000_000
            assert node.micros == 5
    assert additions == int((body.op == Op.REDUCE).sum())
    assert "additions are up to 0 us off" in " ".join(trace.notes)


def test_adding_takes_no_time_unless_told() -> None:
    body = body_of("ring", Collective.REDUCE_SCATTER, preset("ring", gpus=4))
    traces = nodes_of(chakra_trace(body, size_bytes=1 << 30))
    assert {node.micros for nodes in traces for node in nodes} == {0}


def test_joining_nodes_keep_edges_linear() -> None:
    topology = preset("dgx-h100")
    body = body_of("ring", Collective.ALL_GATHER, topology)
    every = np.arange(topology.num_ranks)
    pairs = [(a, b) for a in every for b in every if a != b]
    src, dst = (np.array([pair[side] for pair in pairs], dtype=np.int32) for side in (0, 1))
    crowd = Schedule(
        topology=topology,
        collective=Collective.ALL_GATHER,
        root=-1,
        slot_weight=body.slot_weight,
        chunk_slot=body.chunk_slot,
        chunk_share=body.chunk_share,
        src=np.tile(src, 2),
        dst=np.tile(dst, 2),
        chunk=np.tile(src, 2),
        op=np.zeros(2 * len(src), dtype=np.int8),
        path=np.full(2 * len(src), -1, dtype=np.int32),
        step=np.repeat(np.arange(2, dtype=np.int32), len(src)),
        after_start=np.zeros(2 * len(src) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=np.zeros(1, dtype=np.int64),
        path_nodes=np.zeros(0, dtype=np.int32),
    )
    trace = chakra_trace(crowd, size_bytes=1 << 20)
    assert int((trace.graph.kind == TraceNodeKind.JOIN).sum()) == topology.num_ranks
    for nodes in nodes_of(trace):
        assert len(nodes) == 4 * 7 + 1
        assert sum(len(node.waits) for node in nodes) == 2 * 14


def test_rank_without_messages_gets_an_idle_node() -> None:
    body = body_of("ring", Collective.ALL_GATHER, preset("ring", gpus=4))
    nothing = chakra_trace(empty(body), size_bytes=100)
    assert [
        [(node.id, node.name, node.type, node.waits) for node in nodes] for nodes in nodes_of(nothing)
    ] == [[(1, "idle", COMP, [])]] * 4


def empty(body: Schedule) -> Schedule:
    """The same without transfers."""
    none = np.zeros(0, dtype=np.int32)
    return replace(
        body,
        src=none,
        dst=none,
        chunk=none,
        op=none.astype(np.int8),
        path=none,
        step=none,
        after_start=np.zeros(1, dtype=np.int64),
        after=none,
    )


def test_messages_without_bytes_carry_one() -> None:
    body = body_of("ring", Collective.ALL_GATHER, preset("ring", gpus=4))
    trace = chakra_trace(body, size_bytes=3)
    sizes = Counter(
        node.number("comm_size") for nodes in nodes_of(trace) for node in nodes if node.type == COMM_SEND
    )
    assert sizes == {1: 12}
    assert "3 messages without bytes carry 1 byte, since simulators refuse 0." in trace.notes


def test_header_says_what_it_is() -> None:
    topology = preset("ring", gpus=4)
    trace = chakra_trace(body_of("ring", Collective.ALL_GATHER, topology), size_bytes=1 << 33, pieces=2)
    header, _ = read_trace(files_of(trace)[3])
    assert header["version"] == "0.0.4"
    assert str(header.pop("producer")).startswith("coppice ")
    assert header == {
        "version": "0.0.4",
        "collective": "ALL_GATHER",
        "size_bytes": 1 << 33,
        "rank": 3,
        "ranks": 4,
        "pieces": 2,
        "topology": topology.name,
        "topology_sha256": topology.sha256,
    }


def test_files_are_written_and_the_same_each_time(tmp_path: Path) -> None:
    body = body_of("ring", Collective.ALL_GATHER, preset("ring", gpus=4))
    trace = chakra_trace(body, size_bytes=1000)
    paths = trace.write(tmp_path / "new" / "place", name="gather")
    assert [path.name for path in paths] == [f"gather.{rank}.et" for rank in range(4)]
    again = files_of(chakra_trace(body, size_bytes=1000))
    assert [path.read_bytes() for path in paths] == again
    assert len(list((tmp_path / "new" / "place").iterdir())) == 4


@pytest.mark.parametrize("name", ["", "a/b", "a/"])
def test_names_are_plain(name: str, tmp_path: Path) -> None:
    body = body_of("ring", Collective.ALL_GATHER, preset("ring", gpus=4))
    with pytest.raises(InputError, match="expected a plain name for the files"):
        chakra_trace(body, size_bytes=1000).write(tmp_path, name=name)


def test_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    body = body_of("ring", Collective.ALL_GATHER, preset("ring", gpus=4))
    with pytest.raises(InputError, match="cannot make the directory"):
        chakra_trace(body, size_bytes=1000).write(tmp_path / "taken")


@pytest.mark.parametrize(
    "options", [{"element_bytes": 0}, {"reduce_gb_per_s": 0.0}, {"reduce_gb_per_s": float("nan")}]
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    body = body_of("ring", Collective.ALL_GATHER, preset("ring", gpus=4))
    with pytest.raises(InputError, match="expected elements of 1 byte or more"):
        chakra_trace(body, size_bytes=1000, **options)  # type: ignore[arg-type]


def chain(after: list[tuple[int, int]]) -> Schedule:
    """Chunk 0 goes 0, 1, 2; chunk 1 goes 2, 0 and chunk 2 goes 1, 0: in this order of rows."""
    topology = network(3, 0, [(a, b, 10, 1) for a in range(3) for b in range(3) if a != b])
    table: list[Row] = [
        (0, 1, 0, Op.COPY, (), -1),
        (1, 2, 0, Op.COPY, (), -1),
        (2, 0, 1, Op.COPY, (), -1),
        (1, 0, 2, Op.COPY, (), -1),
    ]
    return rows(topology, table, shares=(1, 1, 1), after=after)


def test_sends_wait_for_what_their_rows_name() -> None:
    traces = nodes_of(chakra_trace(chain([(2, 1), (3, 1), (3, 0)]), size_bytes=300))
    assert {node.name: node.waits for node in traces[2]} == {"receive 1 from 1": [], "send 2 to 0": [1]}
    assert {node.name: node.waits for node in traces[1]} == {
        "receive 0 from 0": [],
        "send 1 to 2": [1],
        "send 3 to 0": [1, 2],
    }


def test_order_that_no_rank_of_its_own_can_keep_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"found message 2 of rank 2 after message 0 from rank 0 to rank 1: leave out"
    ):
        chakra_trace(chain([(2, 0)]), size_bytes=300)


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
