"""One rank's calls of a put/signal program, with bytes instead of slots, and their issue on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import Buffer, memory_of
from coppice.program.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.put_signal.device import Awaited, Put, PutSignalDevice
from coppice.run.engines.put_signal.kernels import LocalCall, LocalWork


@dataclass(frozen=True, slots=True)
class WindowInterval:
    """A buffer of a rank in its window."""

    offset: int  # First byte
    blocks: int  # Equal blocks in it, each as long as `pitch`
    pitch: int  # Elements from one block to the next
    length: int  # Elements of a block that count; what is left pads it to whole chunks


@dataclass(frozen=True, slots=True)
class _Movement:
    """Puts and signals that are one group."""

    communicator: int
    stream: int
    puts: list[Put]


@dataclass(frozen=True, slots=True)
class _Wait:
    """Signals that a stream waits for."""

    communicator: int
    stream: int
    awaited: list[Awaited]


@dataclass(frozen=True, slots=True)
class _Local:
    """Copies and sums."""

    stream: int
    call: LocalCall


class IssuedCalls:
    """The calls of one rank, out of place, for M elements of a type.

    Args:
        program: The program, verified.
        rank: This rank.
        count: M in elements; in blocks, of which all are equal.
        dtype: Their type.

    Attributes:
        given: Where the input lies.
        wanted: Where the output lies.
    """

    def __init__(self, program: PutSignalProgram, rank: int, count: int, dtype: DataType) -> None:
        self.program, self.rank, self.dtype = program, rank, dtype
        blocks = program.num_ranks if program.collective.sharded else 1
        in_block = program.num_chunks // blocks
        length = count // blocks
        elements = -(-length // in_block)
        self._chunk_bytes = elements * dtype.itemsize
        memory = memory_of(program, in_place=False)
        first = memory.base.min(axis=0)
        words = np.diff(np.append(first, memory.words))
        # What a window must hold, the same on all ranks
        self.window_bytes = int(words.max(initial=0)) * self._chunk_bytes
        self._base = (memory.base - first) * self._chunk_bytes

        def interval(buffer: Buffer) -> WindowInterval:
            slots = int(memory.size[buffer, rank])
            return WindowInterval(
                int(self._base[buffer, rank]), slots // max(in_block, 1), in_block * elements, length
            )

        self.given, self.wanted = interval(Buffer.INPUT), interval(Buffer.OUTPUT)
        self._calls = self._compiled()

    def _compiled(self) -> list[_Movement | _Wait | _Local]:
        program, chunk = self.program, self._chunk_bytes
        names = (
            "act", "peer", "count", "signal", "context", "source_buffer", "source", "addend_buffer", "addend",
            "target_buffer", "target",
        )  # fmt: skip
        columns: dict[str, NDArray[np.int64]] = {name: getattr(program, name) for name in names}
        whose = np.where(columns["act"] == PutSignalAct.PUT, columns["peer"], program.rank_of)
        at = {
            name: self._base[np.maximum(columns[f"{name}_buffer"], 0), owner] + columns[name] * chunk
            for name, owner in (("source", program.rank_of), ("addend", program.rank_of), ("target", whose))
        }
        source, addend, target = (at[name].tolist() for name in ("source", "addend", "target"))
        act, peer, count, signal, context = (columns[name].tolist() for name in names[:5])
        start, streams, lines = (
            column.tolist() for column in (program.call_start, program.stream, program.communicator)
        )
        calls: list[_Movement | _Wait | _Local] = []
        for call in range(int(program.rank_start[self.rank]), int(program.rank_start[self.rank + 1])):
            rows = range(start[call], start[call + 1])
            kind, line, stream = int(program.call_kind[call]), lines[call], streams[call]
            if kind == PutSignalCall.TRANSFER:
                puts = [
                    Put(peer[op], source[op], target[op], count[op] * chunk, signal[op], context[op])
                    if act[op] == PutSignalAct.PUT
                    else Put(peer[op], 0, 0, 0, signal[op], context[op])
                    for op in rows
                ]
                calls.append(_Movement(line, stream, puts))
            elif kind == PutSignalCall.WAIT:
                awaited = [Awaited(peer[op], count[op], signal[op], context[op]) for op in rows]
                calls.append(_Wait(line, stream, awaited))
            else:
                work = [
                    LocalWork(
                        source[op],
                        addend[op] if act[op] == PutSignalAct.SUM else -1,
                        target[op],
                        count[op] * chunk,
                    )
                    for op in rows
                    if chunk and (act[op] == PutSignalAct.SUM or source[op] != target[op])
                ]
                if work:
                    calls.append(_Local(stream, LocalCall(work, chunk)))
        return calls

    def issue(self, device: PutSignalDevice, op: ReduceOp) -> None:
        """Issue all calls, in the order of the program."""
        for call in self._calls:
            if isinstance(call, _Movement):
                device.transfer(call.communicator, call.stream, call.puts)
            elif isinstance(call, _Wait):
                device.wait(call.communicator, call.stream, call.awaited)
            else:
                device.local(call.stream, call.call, self.dtype, op)
