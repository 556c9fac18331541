"""Write a one-sided program as an execution plan of MSCCL++.

Every operation stands on a line of its own. A program that passes a limit of the executor is refused: most limits are
not checked when a plan is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from coppice.errors import InputError
from coppice.export.formats import require_none
from coppice.export.mscclpp.limits import block_excesses, largest_message
from coppice.program.dialects.puts.program import Act, Block, OneSidedProgram, Operation, Slots
from coppice.program.memory import Buffer, buffer_sizes

_LETTERS = {Buffer.INPUT: "i", Buffer.OUTPUT: "o", Buffer.SCRATCH: "s"}
_WRITTEN = ("nop", "put", "pws", "pwsf", "signal", "wait", "rlxsignal", "rlxwait", "copy", "re")


def mscclpp_json(program: OneSidedProgram) -> str:
    """Encode a program as an execution plan, deterministically."""
    require_none(block_excesses(program), "the MSCCL++ executor", advice=": use more thread blocks.")
    return "".join(encode_mscclpp(program))


def encode_mscclpp(program: OneSidedProgram) -> Iterator[str]:
    """Encode in pieces, without checking limits."""
    from coppice.version import __version__

    largest = largest_message(program)
    head = {
        "name": program.name,
        "collective": program.collective.dialects.mscclpp_json,
        "protocol": program.protocol,
        "inplace": program.in_place,
        "reuse_resources": program.scratch_bytes is not None,
        "use_double_scratch_buffer": program.two_scratch,
        "buffer_alignment": program.alignment,
        "num_threads_per_block": program.threads,
        "min_message_size": program.min_bytes,
        "max_message_size": largest if program.max_bytes is None else min(program.max_bytes, largest),
        "generator": f"coppice {__version__}",
    }
    yield "{\n" + "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    yield '  "gpus": ['
    sizes = buffer_sizes(program.collective, program.num_ranks, program.num_chunks, -1).tolist()
    for rank in range(program.num_ranks):
        gpu = _GpuWriter(program, rank)
        yield ("" if rank == 0 else ",") + "\n    {\n"
        yield f'      "id": {rank}, "input_chunks": {sizes[0][rank]}, "output_chunks": {sizes[1][rank]}, '
        yield f'"scratch_chunks": {program.scratch[rank]},\n'
        blocks = [gpu.block(number, block) for number, block in enumerate(gpu.blocks)]
        for key, value in (("channels", gpu.channels()), ("remote_buffers", gpu.remote), ("semaphores", [])):
            yield f'      "{key}": {json.dumps(value)},\n'
        yield '      "threadblocks": [\n' + ",\n".join(blocks) + "\n      ]\n    }"
    yield "\n  ]\n}\n"


class _GpuWriter:
    """One GPU of the plan."""

    def __init__(self, program: OneSidedProgram, rank: int) -> None:
        self.program, self.rank = program, rank
        self.blocks = [block for block in program.blocks if block.rank == rank]
        rows = [row for row, end in enumerate(program.channels) if end.rank == rank]
        self._lines = {
            port: [row for row in rows if program.channels[row].port is port] for port in (False, True)
        }
        self._number = {row: place for line in self._lines.values() for place, row in enumerate(line)}
        wanted: dict[tuple[int, Buffer], set[bool]] = {}
        for block in self.blocks:
            for op in block.operations:
                for slots in _remote(op, rank):
                    wanted.setdefault((slots.ranks[0], slots.buffer), set()).add(op.port)
        self._buffers = sorted(wanted)
        self.remote = [
            {
                "rank": peer,
                "type": _LETTERS[buffer],
                "access_channel_types": [_kind(port) for port in sorted(wanted[peer, buffer])],
            }
            for peer, buffer in self._buffers
        ]

    def channels(self) -> list[dict[str, Any]]:
        """Its channels."""
        return [
            {
                "channel_type": _kind(port),
                "connected_to": [self.program.channels[row].peer for row in line],
            }
            for port, line in self._lines.items()
            if line
        ]

    def block(self, number: int, block: Block) -> str:
        """The text of a thread block."""
        used: dict[bool, list[int]] = {}
        buffers: dict[bool, list[tuple[int, Buffer]]] = {}
        for op in block.operations:
            for row in op.channels:
                _once(used.setdefault(self.program.channels[row].port, []), row)
            for slots in _remote(op, self.rank):
                _once(buffers.setdefault(op.port, []), (slots.ranks[0], slots.buffer))
        channels = [
            {"channel_type": _kind(port), "channel_ids": [self._number[row] for row in rows]}
            for port, rows in sorted(used.items())
        ]
        references = [
            {
                "access_channel_type": _kind(port),
                "remote_buffer_ids": [self._buffers.index(key) for key in keys],
            }
            for port, keys in sorted(buffers.items())
        ]
        ops = ",\n".join(
            f"          {json.dumps(self._operation(op, used, buffers))}" for op in block.operations
        )
        return (
            f'        {{"id": {number}, "channels": {json.dumps(channels)}, '
            f'"remote_buffer_refs": {json.dumps(references)}, "ops": [\n{ops}]}}'
        )

    def _operation(
        self,
        op: Operation,
        used: dict[bool, list[int]],
        buffers: dict[bool, list[tuple[int, Buffer]]],
    ) -> dict[str, Any]:
        if op.name not in _WRITTEN or op.share != (0, 1):
            known = ", ".join(_WRITTEN)
            raise InputError(
                f"expected operations that are written ({known}), found {op.name}: keep the file as it is."
            )
        made: dict[str, Any] = {"name": op.name}
        if op.act.on_data:
            made["src_buff"] = [self._slots(slots, op, buffers) for slots in op.sources]
            made["dst_buff"] = [self._slots(slots, op, buffers) for slots in op.targets]
        if op.channels:
            port = self.program.channels[op.channels[0]].port
            made["channel_ids"] = [used[port].index(row) for row in op.channels]
            made["channel_type"] = _kind(port)
        elif op.name == "put":
            made["channel_type"] = _kind(op.port)
        if op.act is Act.SUM:
            made["reduce_op"] = "sum"
        return made

    def _slots(
        self, slots: Slots, op: Operation, buffers: dict[bool, list[tuple[int, Buffer]]]
    ) -> dict[str, Any]:
        place = {"index": slots.index, "size": slots.size}
        if slots.ranks == (self.rank,):
            return {"type": _LETTERS[slots.buffer], **place}
        return {"buffer_id": buffers[op.port].index((slots.ranks[0], slots.buffer)), **place}


def _remote(op: Operation, rank: int) -> Iterator[Slots]:
    for slots in (*op.sources, *op.targets):
        if slots.ranks != (rank,):
            yield slots


def _kind(port: bool) -> str:  # noqa: FBT001
    return "port" if port else "memory"


def _once(members: list[Any], member: Any) -> None:
    if member not in members:
        members.append(member)
