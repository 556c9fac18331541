"""Read execution plans of MSCCL++ into one-sided programs, with the semantics of its executor.

What the executor would do is what is read, not what its author meant: where the two differ (see the operations marked
with a defect), the program says so, and its verification fails.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field

from coppice.collectives import Collective
from coppice.export.mscclpp.document import JsonText, Value, parse_document
from coppice.export.mscclpp.operations import BlockReferences, operation_of
from coppice.files import file_name, read_bytes
from coppice.program.dialects.puts.program import Block, ChannelEnd, OneSidedProgram, Operation
from coppice.program.memory import Buffer

COLLECTIVES = {
    "allgather": Collective.ALL_GATHER,
    "allreduce": Collective.ALL_REDUCE,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
}
"""Collectives by their name in the file."""

BUFFERS = {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}
"""Buffers by their letter in the file."""

SCRATCH_BYTES = 2**26
"""Scratch memory of a plan with ``reuse_resources``."""

_NO_LIMIT = 2**64 - 1
_MOST_CHUNKS = 2**24


@dataclass(frozen=True, eq=False)
class MscclppReading:
    """A file as a program with remarks."""

    program: OneSidedProgram  # What it says
    document: JsonText  # Its values, with their places
    warnings: tuple[str, ...]  # What was assumed, a sentence each


def read_mscclpp(path: str | os.PathLike[str]) -> MscclppReading:
    """Read an execution plan.

    Args:
        path: The file; ``-`` is standard input.
    """
    return program_of(parse_document(read_bytes(path), file=file_name(path)))


def program_of(document: JsonText) -> MscclppReading:
    """Program of JSON text."""
    return _PlanReader(document).read()


@dataclass
class _GpuReader:
    """What thread blocks of one GPU refer to."""

    memory: list[int] = field(default_factory=list)  # rows of channels
    port: list[int] = field(default_factory=list)
    switch: list[tuple[Buffer, tuple[int, ...]]] = field(default_factory=list)
    remote: list[tuple[int, Buffer, frozenset[str]]] = field(default_factory=list)


class _PlanReader:
    def __init__(self, document: JsonText) -> None:
        self.document = document
        self.warnings: list[str] = []
        self.ends: list[tuple[int, int, bool]] = []  # rank, peer, port

    def read(self) -> MscclppReading:
        top = self.document.top
        name = top["name"].string()
        told = top["collective"].string()
        if told not in COLLECTIVES:
            top["collective"].refuse(
                f"a collective whose outcome is known ({', '.join(COLLECTIVES)}); others cannot be verified"
            )
        collective = COLLECTIVES[told]
        protocol = top["protocol"].string("Simple", "LL")
        in_place = top["inplace"].flag()
        reuse = top.has("reuse_resources") and top["reuse_resources"].flag()
        two = top.has("use_double_scratch_buffer") and top["use_double_scratch_buffer"].flag()
        alignment = top["buffer_alignment"].integer(1) if top.has("buffer_alignment") else 16
        threads = top["num_threads_per_block"].integer(1) if top.has("num_threads_per_block") else 1024
        low = top["min_message_size"].integer() if top.has("min_message_size") else 0
        high = top["max_message_size"].integer() if top.has("max_message_size") else _NO_LIMIT
        gpus = list(top["gpus"].items())
        if not gpus:
            top["gpus"].refuse("one GPU or more")
        for rank, gpu in enumerate(gpus):
            if gpu["id"].integer() != rank:
                gpu["id"].refuse(f"{rank}, its place in the list")
        chunks = self._chunks(collective, gpus)
        kept = [self._connections(rank, gpu, len(gpus)) for rank, gpu in enumerate(gpus)]
        channels = self._channels()
        blocks = [
            self._block(rank, place, block, kept[rank])
            for rank, gpu in enumerate(gpus)
            for place, block in enumerate(gpu["threadblocks"].items())
        ]
        scratch = tuple(gpu["scratch_chunks"].integer(0, _MOST_CHUNKS) for gpu in gpus)
        if chunks * len(gpus) + sum(scratch) > _MOST_CHUNKS:
            top["gpus"].refuse(f"at most {_MOST_CHUNKS:,} chunks in all buffers")
        if reuse and len(set(scratch)) > 1:
            rank = next(rank for rank, size in enumerate(scratch) if size != scratch[0])
            gpus[rank]["scratch_chunks"].refuse(
                f"{scratch[0]} as at rank 0: with reuse_resources ranks find each other's scratch memory by their own"
            )
        program = OneSidedProgram(
            collective=collective,
            num_ranks=len(gpus),
            num_chunks=chunks,
            in_place=in_place,
            scratch=scratch,
            blocks=tuple(blocks),
            channels=channels,
            semaphores=tuple(self._semaphores(gpu) for gpu in gpus),
            name=name,
            protocol=protocol,
            alignment=alignment,
            threads=threads,
            scratch_bytes=SCRATCH_BYTES if reuse and any(scratch) else None,
            two_scratch=two,
            min_bytes=low,
            max_bytes=None if high >= _NO_LIMIT else high,
        )
        return MscclppReading(program, self.document, tuple(dict.fromkeys(self.warnings)))

    def _chunks(self, collective: Collective, gpus: list[Value]) -> int:
        """C, on which all GPUs must agree."""
        ranks = len(gpus)
        found: set[int] = set()
        for gpu in gpus:
            inputs, outputs = (gpu[key].integer(0, _MOST_CHUNKS) for key in ("input_chunks", "output_chunks"))
            if not inputs or not outputs:
                empty = "input_chunks" if not inputs else "output_chunks"
                self.warnings.append(f"a GPU has {empty} 0, by which the current executor would divide.")
            into = inputs * ranks if collective is Collective.ALL_GATHER else inputs
            out = outputs * ranks if collective is Collective.REDUCE_SCATTER else outputs
            if into and out and into != out:
                gpu["output_chunks"].refuse(
                    f"as many chunks as the collective makes of the {inputs} of its input"
                )
            if not into and not out:
                gpu["input_chunks"].refuse("1 chunk or more")
            chunks = into or out
            if collective is not Collective.ALL_REDUCE and chunks % ranks:
                gpu["output_chunks"].refuse(f"blocks of whole chunks for {ranks} ranks")
            found.add(chunks)
            if len(found) > 1:
                gpu["input_chunks"].refuse("as many chunks as at rank 0")
        return found.pop()

    def _connections(self, rank: int, gpu: Value, ranks: int) -> _GpuReader:
        kept = _GpuReader()
        for channel in gpu["channels"].items():
            kind = channel["channel_type"].string("memory", "port", "switch", "none")
            if kind == "none":
                continue
            if kind == "switch":
                kept.switch += self._groups(channel, ranks)
                continue
            for each in channel["connected_to"].items():
                peer = each.integer(0, ranks)
                if peer == rank:
                    each.refuse("another rank")
                (kept.port if kind == "port" else kept.memory).append(len(self.ends))
                self.ends.append((rank, peer, kind == "port"))
        for buffer in gpu["remote_buffers"].items() if gpu.has("remote_buffers") else ():
            access = frozenset(
                each.string("memory", "port", "switch", "none")
                for each in buffer["access_channel_types"].items()
            )
            peer = buffer["rank"].integer(0, ranks)
            kept.remote.append((peer, BUFFERS[buffer["type"].string(*BUFFERS)], access))
        return kept

    def _groups(self, channel: Value, ranks: int) -> list[tuple[Buffer, tuple[int, ...]]]:
        key = "buffer_type"
        if not channel.has(key) and channel.has("buff"):
            key = "buff"
            self.warnings.append("a switch channel has buff, which the current loader wants as buffer_type.")
        buffer = BUFFERS[channel[key].string(*BUFFERS)]
        groups = []
        for group in channel["rank_groups"].items():
            members = tuple(each.integer(0, ranks) for each in group["ranks"].items())
            if not members or len(set(members)) < len(members):
                group["ranks"].refuse("different ranks, one or more")
            groups.append((buffer, members))
        return groups

    def _channels(self) -> tuple[ChannelEnd, ...]:
        """All ends: the k-th of a rank to a peer, of a kind, belongs to the k-th of the peer to the rank."""
        lines: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
        for row, key in enumerate(self.ends):
            lines[key].append(row)
        peer_channels = [-1] * len(self.ends)
        for (rank, peer, port), rows in lines.items():
            for row, peer_channel in zip(rows, lines.get((peer, rank, port), ()), strict=False):
                peer_channels[row] = peer_channel
        return tuple(
            ChannelEnd(rank=rank, peer=peer, port=port, peer_channel=peer_channel)
            for (rank, peer, port), peer_channel in zip(self.ends, peer_channels, strict=True)
        )

    def _semaphores(self, gpu: Value) -> tuple[int, ...]:
        if not gpu.has("semaphores"):
            return ()
        return tuple(each["init_value"].integer() for each in gpu["semaphores"].items())

    def _block(self, rank: int, number: int, block: Value, gpu: _GpuReader) -> Block:
        if block["id"].integer() != number:
            block["id"].refuse(f"{number}, its place in the list")
        place = BlockReferences(rank=rank)
        for channel in block["channels"].items():
            kind = channel["channel_type"].string("memory", "port", "switch", "none")
            for each in channel["channel_ids"].items():
                if kind == "switch":
                    place.switch.append(gpu.switch[each.integer(0, len(gpu.switch))])
                elif kind != "none":
                    rows = gpu.port if kind == "port" else gpu.memory
                    (place.port if kind == "port" else place.memory).append(rows[each.integer(0, len(rows))])
        for reference in block["remote_buffer_refs"].items() if block.has("remote_buffer_refs") else ():
            kind = reference["access_channel_type"].string("memory", "port")
            for each in reference["remote_buffer_ids"].items():
                peer, buffer, access = gpu.remote[each.integer(0, len(gpu.remote))]
                if kind not in access:
                    each.refuse(f"a remote buffer that is open to {kind} channels")
                (place.remote_port if kind == "port" else place.remote_memory).append((peer, buffer))
        made: list[Operation] = [operation_of(op, place) for op in block["ops"].items()]
        return Block(rank=rank, operations=tuple(made))
