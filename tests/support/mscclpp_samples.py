"""Small execution plans for the tests of MSCCL++ JSON, as values that `json.dumps` takes."""

from __future__ import annotations

import copy
import json
from typing import Any

Plan = dict[str, Any]
MEMORY = {"channel_type": "memory"}
NOP: Plan = {"name": "nop"}


def here(letter: str, index: int, size: int = 1) -> Plan:
    """Chunks of a rank's own memory."""
    return {"type": letter, "index": index, "size": size}


def there(number: int, index: int, size: int = 1) -> Plan:
    """Chunks of a remote buffer."""
    return {"buffer_id": number, "index": index, "size": size}


def multi(index: int, size: int = 1) -> Plan:
    """Chunks of all ranks of the first switch channel."""
    return {"switch_channel_id": 0, "index": index, "size": size}


def act(name: str, source: list[Plan] | None = None, target: list[Plan] | None = None, **more: Any) -> Plan:
    """An operation."""
    found: Plan = {"name": name}
    if source is not None:
        found["src_buff"] = source
    if target is not None:
        found["dst_buff"] = target
    return {**found, **more}


def tell(name: str, *channels: int, kind: str = "memory") -> Plan:
    """A signal or wait."""
    return {"name": name, "channel_ids": list(channels), "channel_type": kind}


def block(
    number: int,
    ops: list[Plan],
    *,
    memory: tuple[int, ...] = (),
    port: tuple[int, ...] = (),
    switch: tuple[int, ...] = (),
    remote: tuple[int, ...] = (),
    by: str = "memory",
) -> Plan:
    """A thread block."""
    kinds = (("memory", memory), ("port", port), ("switch", switch))
    return {
        "id": number,
        "channels": [{"channel_type": kind, "channel_ids": list(ids)} for kind, ids in kinds if ids],
        "remote_buffer_refs": (
            [{"access_channel_type": by, "remote_buffer_ids": list(remote)}] if remote else []
        ),
        "ops": ops,
    }


def gpu(
    rank: int,
    blocks: list[Plan],
    chunks: tuple[int, int, int],
    *,
    memory: tuple[int, ...] = (),
    port: tuple[int, ...] = (),
    switch: str = "",
    ranks: int = 2,
    remote: tuple[tuple[int, str], ...] = (),
    by: str = "memory",
    semaphores: tuple[int, ...] = (),
) -> Plan:
    """A GPU; ``chunks`` are those of its input, output and scratch memory."""
    channels = [
        {"channel_type": kind, "connected_to": list(peers)}
        for kind, peers in (("memory", memory), ("port", port))
        if peers
    ]
    if switch:
        group = {"size": 1, "ranks": list(range(ranks))}
        channels.append({"channel_type": "switch", "buffer_type": switch, "rank_groups": [group]})
    return {
        "id": rank,
        "input_chunks": chunks[0],
        "output_chunks": chunks[1],
        "scratch_chunks": chunks[2],
        "threadblocks": blocks,
        "channels": channels,
        "remote_buffers": [
            {"rank": peer, "type": letter, "access_channel_types": [by]} for peer, letter in remote
        ],
        "semaphores": [{"init_value": value} for value in semaphores],
    }


def plan(collective: str, gpus: list[Plan], **more: Any) -> Plan:
    """A plan."""
    head: Plan = {
        "name": "sample",
        "collective": collective,
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "num_threads_per_block": 1024,
        "min_message_size": 0,
        "max_message_size": 2**30,
    }
    return {**head, **more, "gpus": gpus}


def pair() -> Plan:
    """An all-gather of two ranks in place: hello, put, done."""
    gpus = []
    for rank in range(2):
        ops = [
            tell("rlxsignal", 0),
            tell("rlxwait", 0),
            NOP,
            act("put", [here("o", rank)], [there(0, rank)], **MEMORY),
            NOP,
            tell("signal", 0),
            tell("wait", 0),
        ]
        gpus.append(
            gpu(
                rank,
                [block(0, ops, memory=(0,), remote=(0,))],
                (1, 2, 0),
                memory=(1 - rank,),
                remote=((1 - rank, "o"),),
            )
        )
    return copy.deepcopy(plan("allgather", gpus))


def packets() -> Plan:
    """An all-reduce of two ranks by packets: each adds up its half and sends it back."""
    gpus = []
    for rank in range(2):
        other = 1 - rank
        first = [
            act("ppkt", [here("i", other)], [there(0, 0)], **MEMORY),
            act("respkt", [here("i", rank), here("s", 0)], [here("i", rank), there(0, 1)], **MEMORY),
        ]
        second = [act("upkt", [here("s", 1)], [here("i", other)])]
        gpus.append(
            gpu(
                rank,
                [block(0, first, memory=(0,), remote=(0,)), block(1, second)],
                (2, 2, 2),
                memory=(other,),
                remote=((other, "s"),),
            )
        )
    return copy.deepcopy(plan("allreduce", gpus, protocol="LL", use_double_scratch_buffer=True))


def switched() -> Plan:
    """An all-reduce of two ranks through a switch: each adds up one chunk of both and stores it at both."""
    gpus = []
    for rank in range(2):
        ops = [
            tell("signal", 0),
            tell("wait", 0),
            NOP,
            act("glres", [multi(rank)], [multi(rank)], channel_type="switch"),
            NOP,
            tell("signal", 0),
            tell("wait", 0),
        ]
        gpus.append(
            gpu(rank, [block(0, ops, memory=(0,), switch=(0,))], (2, 2, 0), memory=(1 - rank,), switch="i")
        )
    return copy.deepcopy(plan("allreduce", gpus))


def pipelined(*, credit: int = 64, unit: int = 2**19) -> Plan:
    """An all-reduce of two ranks in three stages: copy to scratch memory, add through the switch, copy back.

    Scratch memory has a fixed size; ``credit`` pieces may be on their way at a time.
    """
    gpus = []
    for rank in range(2):
        context = {"unit_size": unit, "num_chunks": 1}
        take, give = "sem_acquire", "sem_release"
        stages = [
            [
                act(take, semaphore_ids=[2]),
                NOP,
                *(act("copy", [here("i", k)], [here("s", k)]) for k in range(2)),
                NOP,
                tell("signal", 0),
                tell("wait", 0),
                NOP,
                act(give, semaphore_ids=[0]),
            ],
            [
                act(take, semaphore_ids=[0]),
                NOP,
                act("glres", [multi(rank)], [multi(rank)], channel_type="switch"),
                NOP,
                act(give, semaphore_ids=[1]),
            ],
            [
                act(take, semaphore_ids=[1]),
                NOP,
                tell("signal", 0),
                tell("wait", 0),
                NOP,
                *(act("copy", [here("s", k)], [here("i", k)]) for k in range(2)),
                NOP,
                act(give, semaphore_ids=[2]),
            ],
        ]
        blocks = [
            block(number, [act("pipeline", iter_context=context, ops=ops)], **wires)
            for number, (ops, wires) in enumerate(
                zip(stages, ({"memory": (0,)}, {"switch": (0,)}, {"memory": (1,)}), strict=True)
            )
        ]
        gpus.append(
            gpu(rank, blocks, (2, 2, 2), memory=(1 - rank, 1 - rank), switch="s", semaphores=(0, 0, credit))
        )
    return copy.deepcopy(plan("allreduce", gpus, reuse_resources=True, max_message_size=2**34))


def shared() -> Plan:
    """A reduce-scatter of two ranks by two thread blocks each, out of place, with barriers and remote reads."""
    gpus = []
    for rank in range(2):
        blocks = []
        for number in range(2):
            part = {"tbg_info": {"tb_id": number, "tbg_size": 2}}
            ops = [
                tell("signal", 0),
                tell("wait", 0),
                {"name": "barrier", "barrier_id": 0, "num_threadblocks": 2},
                act("rre", [here("i", rank), there(0, rank)], [here("o", 0)], **MEMORY, **part),
                NOP,
                tell("signal", 0),
                tell("wait", 0),
            ]
            blocks.append(block(number, ops, memory=(number,), remote=(0,)))
        gpus.append(gpu(rank, blocks, (2, 1, 0), memory=(1 - rank, 1 - rank), remote=((1 - rank, "i"),)))
    return copy.deepcopy(plan("reducescatter", gpus, inplace=False))


def across() -> Plan:
    """An all-to-all of two ranks by port, out of place."""
    gpus = []
    for rank in range(2):
        other = 1 - rank
        ops = [
            tell("signal", 0, kind="port"),
            tell("wait", 0, kind="port"),
            NOP,
            act("pwsf", [here("i", other)], [there(0, rank)], channel_type="port", channel_ids=[0]),
            act("copy", [here("i", rank)], [here("o", rank)]),
            tell("wait", 0, kind="port"),
        ]
        gpus.append(
            gpu(
                rank,
                [block(0, ops, port=(0,), remote=(0,), by="port")],
                (2, 2, 0),
                port=(other,),
                remote=((other, "o"),),
                by="port",
            )
        )
    return copy.deepcopy(plan("alltoall", gpus, inplace=False))


SAMPLES = (pair, packets, switched, pipelined, shared, across)


def text(values: Plan) -> bytes:
    """The bytes of a file."""
    return json.dumps(values, indent=1).encode()
