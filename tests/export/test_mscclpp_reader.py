"""Reading execution plans: every operation that the executor knows, and refusals with line and JSON path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.export.mscclpp.document import is_mscclpp, parse_document
from coppice.export.mscclpp.operations import OPERATIONS
from coppice.export.mscclpp.reader import MscclppReading, program_of, read_mscclpp
from coppice.program.dialects.puts.program import Act, Operation
from coppice.program.dialects.puts.verify import verify_one_sided
from coppice.program.memory import Buffer
from support.mscclpp_samples import (
    MEMORY,
    NOP,
    Plan,
    act,
    here,
    multi,
    packets,
    pair,
    pipelined,
    tell,
    text,
    there,
)


def read(plan: Plan) -> MscclppReading:
    return program_of(parse_document(text(plan), file="p.json"))


def refused(plan: Plan) -> str:
    with pytest.raises(InputError) as caught:
        read(plan)
    return str(caught.value)


def one(op: Plan) -> Operation:
    """An operation in a thread block that has everything: memory, port and switch channels, and remote memory."""
    plan = pair()
    for gpu in plan["gpus"]:
        peer = 1 - gpu["id"]
        gpu["scratch_chunks"] = 4
        gpu["channels"] = [
            {"channel_type": "memory", "connected_to": [peer, peer]},
            {"channel_type": "port", "connected_to": [peer]},
            {"channel_type": "switch", "buffer_type": "o", "rank_groups": [{"size": 2, "ranks": [0, 1]}]},
        ]
        gpu["remote_buffers"] = [
            {"rank": peer, "type": "o", "access_channel_types": ["memory", "port"]},
            {"rank": peer, "type": "s", "access_channel_types": ["memory", "port"]},
        ]
        gpu["semaphores"] = [{"init_value": 1}]
        block = gpu["threadblocks"][0]
        block["channels"] = [
            {"channel_type": "memory", "channel_ids": [1, 0]},
            {"channel_type": "port", "channel_ids": [0]},
            {"channel_type": "switch", "channel_ids": [0]},
        ]
        block["remote_buffer_refs"] = [
            {"access_channel_type": kind, "remote_buffer_ids": [1, 0]} for kind in ("memory", "port")
        ]
        block["ops"] = [op]
    return read(plan).program.blocks[0].operations[0]


PORT = {"channel_type": "port", "channel_ids": [0]}
D, P = [here("i", 0)], [here("s", 1)]
EVERY: list[tuple[Plan, Act, int, int]] = [
    (NOP, Act.JOIN, 0, 0),
    ({"name": "barrier", "barrier_id": 3, "num_threadblocks": 2}, Act.BARRIER, 0, 0),
    (act("put", D, [there(0, 0)], **MEMORY), Act.MOVE, 1, 1),
    (act("put", D, [there(0, 0)], **PORT), Act.MOVE, 1, 1),
    (act("pws", D, [there(0, 0)], **PORT), Act.MOVE, 1, 1),
    (act("pwsf", D, [there(0, 0)], **PORT), Act.MOVE, 1, 1),
    (act("get", [there(0, 0)], D, **MEMORY), Act.MOVE, 1, 1),
    (act("copy", D, P), Act.MOVE, 1, 1),
    (tell("signal", 0, 1), Act.SIGNAL, 0, 0),
    (tell("wait", 0, kind="port"), Act.WAIT, 0, 0),
    (tell("rlxsignal", 0), Act.SIGNAL, 0, 0),
    (tell("rlxwait", 0), Act.WAIT, 0, 0),
    (tell("flush", 0, kind="port"), Act.IDLE, 0, 0),
    (act("re", [*D, *P, *P], D), Act.SUM, 3, 1),
    (act("res", [*D, *P], [*D, there(0, 0), there(1, 0)], **MEMORY), Act.SUM, 2, 3),
    (act("rre", [*D, there(0, 0)], D, **MEMORY), Act.SUM, 2, 1),
    (act("rres", [*D, there(0, 0)], [*D, there(0, 0)], **MEMORY), Act.SUM, 2, 2),
    (act("repkt", [*D, *P], D), Act.SUM, 2, 1),
    (act("respkt", [*D, *P], [*D, there(0, 0)], **MEMORY), Act.SUM, 2, 2),
    (act("recpkt", [*D, *P], [*D, *P]), Act.SUM, 2, 2),
    (act("recspkt", [*D, *P], [*D, *P, there(0, 0)], **MEMORY), Act.SUM, 2, 3),
    (act("ppkt", D, [there(0, 0)], **MEMORY), Act.MOVE, 1, 1),
    (act("rppkt", P, [there(0, 0)], **MEMORY), Act.SUM, 1, 1),
    (act("rppkt", P, [there(0, 0)], **PORT), Act.MOVE, 1, 1),
    (act("cpkt", D, P), Act.SUM, 1, 1),
    (act("upkt", P, D), Act.SUM, 1, 1),
    (act("glres", [multi(0)], [multi(0)], channel_type="switch"), Act.SUM, 1, 1),
    (act("gstore", D, [multi(0)], channel_type="switch"), Act.SUM, 1, 1),
    (act("gstorepkt", P, [multi(0)], channel_type="switch"), Act.SUM, 1, 1),
    ({"name": "pipeline", "iter_context": {"unit_size": 64, "num_chunks": 1}, "ops": [NOP]}, Act.LOOP, 0, 0),
    ({"name": "sem_acquire", "semaphore_ids": [0]}, Act.ACQUIRE, 0, 0),
    ({"name": "sem_release", "semaphore_ids": [0]}, Act.RELEASE, 0, 0),
]


@pytest.mark.parametrize(("op", "meant", "sources", "targets"), EVERY, ids=lambda each: str(each)[:40])
def test_every_operation(op: Plan, meant: Act, sources: int, targets: int) -> None:
    found = one(op)
    assert (found.act, len(found.sources), len(found.targets)) == (meant, sources, targets)
    assert found.name == op["name"]
    assert not found.defect


def test_every_operation_is_tested() -> None:
    assert {op["name"] for op, *_ in EVERY} == set(OPERATIONS)


def test_numbers_lead_to_what_they_mean() -> None:
    """Channels, remote buffers and switches are numbered within the thread block."""
    put = one(act("put", [here("i", 0)], [there(0, 3)], **MEMORY))
    assert (put.targets[0].ranks, put.targets[0].buffer, put.targets[0].index) == ((1,), Buffer.SCRATCH, 3)
    assert one(tell("signal", 0, 1)).channels == (1, 0)
    assert one(tell("signal", 0, kind="port")).channels == (2,)
    stored = one(act("gstore", [here("i", 0)], [multi(1)], channel_type="switch"))
    assert stored.targets[0].ranks == (0, 1)
    packets_there = one(
        act("recspkt", [here("i", 0), here("s", 1)], [here("i", 0), here("s", 2), there(0, 0)], **MEMORY)
    )
    assert [slots.packets for slots in (*packets_there.sources, *packets_there.targets)] == [
        False,
        True,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (act("ppkt", P, [there(0, 0)], **PORT), "wrong memory"),
        (act("pws", D, [there(0, 0)], **MEMORY, channel_ids=[0]), "does not signal"),
        (act("get", [there(0, 1)], D, **MEMORY), "swaps"),
        (act("res", [*D, *P], [*D, there(0, 0)], **PORT), "memory channels only"),
    ],
)
def test_defects(op: Plan, why: str) -> None:
    assert why in one(op).defect


def test_repeated_peers_are_channels_of_their_own() -> None:
    plan = pair()
    plan["gpus"][0]["channels"] = [{"channel_type": "memory", "connected_to": [1, 1]}]
    channels = read(plan).program.channels
    assert [(end.rank, end.peer, end.peer_channel) for end in channels] == [(0, 1, 2), (0, 1, -1), (1, 0, 0)]


def set_at(*path: str | int, value: object) -> Callable[[Plan], None]:
    def change(plan: Plan) -> None:
        place: object = plan
        for part in path[:-1]:
            place = place[part]  # type: ignore[index]
        if value is None:
            del place[path[-1]]  # type: ignore[attr-defined]
        else:
            place[path[-1]] = value  # type: ignore[index]

    return change


OPS = ("gpus", 0, "threadblocks", 0, "ops")
REFUSALS = {
    "no name": (set_at("name", value=None), "p.json:1 $: expected the key 'name', which is missing: add it."),
    "collective": (
        set_at("collective", value="sendrecv"),
        (
            "p.json:3 $.collective: expected a collective whose outcome is known (allgather, allreduce, reducescatter, "
            'alltoall); others cannot be verified, found "sendrecv".'
        ),
    ),
    "protocol": (set_at("protocol", value="LL128"), '$.protocol: expected one of Simple, LL, found "LL128".'),
    "inplace": (set_at("inplace", value=1), "$.inplace: expected true or false, found 1."),
    "no GPUs": (set_at("gpus", value=[]), "$.gpus: expected one GPU or more, found a list of 0."),
    "GPUs": (set_at("gpus", value={}), "$.gpus: expected a list [..], found an object of 0."),
    "id": (set_at("gpus", 1, "id", value=0), "$.gpus[1].id: expected 1, its place in the list, found 0."),
    "block id": (
        set_at("gpus", 0, "threadblocks", 0, "id", value=1),
        "$.gpus[0].threadblocks[0].id: expected 0",
    ),
    "chunks": (
        set_at("gpus", 0, "output_chunks", value=3),
        "expected as many chunks as the collective makes of the 1",
    ),
    "fewer chunks": (
        lambda plan: plan["gpus"][1].update(input_chunks=2, output_chunks=4),
        "$.gpus[1].input_chunks: expected as many chunks as at rank 0, found 2.",
    ),
    "no chunks": (
        lambda plan: plan["gpus"][0].update(input_chunks=0, output_chunks=0),
        "$.gpus[0].input_chunks: expected 1 chunk or more, found 0.",
    ),
    "many chunks": (set_at("gpus", 0, "scratch_chunks", value=10**9), "an integer from 0 to 16777215"),
    "a boolean number": (set_at("gpus", 0, "scratch_chunks", value=True), "found true"),
    "peer": (
        lambda plan: plan["gpus"][0]["channels"][0].update(connected_to=[0]),
        "$.gpus[0].channels[0].connected_to[0]: expected another rank, found 0.",
    ),
    "no peer": (
        lambda plan: plan["gpus"][0]["channels"][0].update(connected_to=[2]),
        "$.gpus[0].channels[0].connected_to[0]: expected an integer from 0 to 1, found 2.",
    ),
    "channel": (set_at(*OPS, 0, "channel_ids", value=[1]), "$.gpus[0].threadblocks[0].ops[0].channel_ids[0]"),
    "type": (set_at(*OPS, 0, "channel_type", value="switch"), "expected one of memory, port"),
    "operation": (
        set_at(*OPS, 0, "name", value="bcast"),
        "expected an operation that the executor knows (nop, ",
    ),
    "glre": (
        set_at(*OPS, 0, "name", value="glre"),
        "the executor refuses what its language writes so, found",
    ),
    "buffer": (
        set_at(*OPS, 3, "dst_buff", 0, "buffer_id", value=1),
        "dst_buff[0].buffer_id: expected an integer from",
    ),
    "no target": (
        set_at(*OPS, 3, "dst_buff", value=[]),
        "ops[3].dst_buff: expected 1 or more entries, found a list",
    ),
    "sources": (
        set_at(*OPS, 3, "src_buff", value=[]),
        "ops[3].src_buff: expected 1 entries, found a list of 0.",
    ),
    "remote source": (
        set_at(*OPS, 3, "src_buff", value=[there(0, 0)]),
        "expected memory of its own rank, with a type, found an object of 3.",
    ),
    "local target": (
        set_at(*OPS, 3, "dst_buff", value=[here("o", 0)]),
        "expected memory of another rank, with a buffer_id, found an object of 3.",
    ),
    "closed buffer": (
        set_at("gpus", 0, "remote_buffers", 0, "access_channel_types", value=["port"]),
        (
            "$.gpus[0].threadblocks[0].remote_buffer_refs[0].remote_buffer_ids[0]: expected a remote buffer that is "
            "open to memory channels, found 0."
        ),
    ),
    "letter": (
        set_at(*OPS, 3, "src_buff", 0, "type", value="x"),
        'src_buff[0].type: expected one of i, o, s, found "x"',
    ),
    "part": (
        set_at(*OPS, 3, "tbg_info", value={"tb_id": 2, "tbg_size": 2}),
        "tbg_info.tb_id: expected an integer from",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    change, told = REFUSALS[name]
    plan = pair()
    change(plan)
    message = refused(plan)
    assert told in message
    assert message.startswith("p.json:")


def test_lines_are_those_of_the_file() -> None:
    plan = pair()
    plan["gpus"][1]["threadblocks"][0]["ops"][3]["src_buff"][0]["index"] = -1
    message = refused(plan)
    line = int(message.split(":")[1].split()[0])
    assert text(plan).decode().splitlines()[line - 1].strip() == '"index": -1,'
    assert (
        "$.gpus[1].threadblocks[0].ops[3].src_buff[0].index: expected an integer of 0 or more, found -1."
        in message
    )


def test_reused_scratch_memory_is_alike() -> None:
    plan = pipelined()
    plan["gpus"][1]["scratch_chunks"] = 3
    assert "$.gpus[1].scratch_chunks: expected 2 as at rank 0" in refused(plan)


def test_what_older_files_have() -> None:
    plan = pipelined()
    for gpu in plan["gpus"]:
        gpu["output_chunks"] = 0
        gpu["channels"][1]["buff"] = gpu["channels"][1].pop("buffer_type")
    reading = read(plan)
    assert reading.warnings == (
        "a GPU has output_chunks 0, by which the current executor would divide.",
        "a switch channel has buff, which the current loader wants as buffer_type.",
    )
    assert verify_one_sided(reading.program).ok


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(text(packets()))
    program = read_mscclpp(file).program
    assert (program.num_ranks, program.num_chunks, program.protocol, program.two_scratch) == (
        2,
        2,
        "LL",
        True,
    )
    with pytest.raises(InputError, match=r"cannot read .*name an existing file"):
        read_mscclpp(tmp_path / "none.json")
    for data, told in (
        (b'{"gpus": [', "bad.json:1:11 is not JSON"),
        (b"\xff\xfe", "bad.json is not UTF-8 text"),
        (b'{"name": "a", "name": "b"}', "has the key 'name' twice"),
        (b"[" * 100000, "beyond reason"),
        (b"[1]", "expected an object {..}, found a list of 1"),
    ):
        with pytest.raises(InputError) as caught:
            program_of(parse_document(data, file="bad.json"))
        assert told in str(caught.value)


def test_what_is_taken_for_an_execution_plan() -> None:
    assert is_mscclpp(text(pair()))
    assert is_mscclpp(b"\xef\xbb\xbf" + text(pair()))
    assert not is_mscclpp(b"<algo>")
    assert not is_mscclpp(b'{"gpus": ')
    assert not is_mscclpp(json.dumps({"format": "coppice-plan", "gpus": []}).encode())
