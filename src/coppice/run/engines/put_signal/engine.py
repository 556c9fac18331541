"""Engine for put/signal programs, on the emulated device and on stock GPU libraries.

It stands on another engine of the same ranks, which exchanges what little there is to agree on, and carries out what
cannot be done with puts: barriers, blocks of different lengths, programs whose schedule it was not told. What falls
back, and why, is logged once for each reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.order import is_graph_safe
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.program.dialects.rank.program import RankProgram
from coppice.program.memory import Buffer, memory_of
from coppice.run.engines.datatype import DataType, ReduceOp, check_reduction
from coppice.run.engines.engine import BaseEngine, DeviceMemory, Engine
from coppice.run.engines.put_signal.device import Awaited, Put, PutSignalDevice
from coppice.run.engines.put_signal.exchanged import ExchangedBlocks
from coppice.run.engines.put_signal.kernels import LocalCall, LocalWork
from coppice.run.errors import RunError
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class WindowInterval:
    """Interval of a rank's window that holds a buffer."""

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
    """Calls of one rank, out of place, for M elements of a type.

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
        """Issue all calls in program order."""
        for call in self._calls:
            if isinstance(call, _Movement):
                device.transfer(call.communicator, call.stream, call.puts)
            elif isinstance(call, _Wait):
                device.wait(call.communicator, call.stream, call.awaited)
            else:
                device.local(call.stream, call.call, self.dtype, op)


_LOG = logging.getLogger("coppice")


class PutSignalEngine(BaseEngine):
    """Endpoint of one rank in a group with puts and signals.

    Args:
        device: What puts and signals; the engine closes it.
        below: An engine of the same ranks, which the engine closes as well.
        owns_below: It does; otherwise whoever made that engine closes it.
        communicators: Communicators and streams of the programs.
        pieces: Pieces of every chunk, None for what the lowering takes.
        left_to: Who carries out what puts cannot, for messages, if not the engine below.
        capacity_bytes: Largest window of an all-to-all of unequal blocks; None lets it grow.

    Raises:
        RunError: If the warm-up of the device fails.
    """

    name = "put-signal"

    def __init__(
        self,
        device: PutSignalDevice,
        below: Engine,
        *,
        owns_below: bool = True,
        communicators: int = 1,
        pieces: int | None = None,
        left_to: str | None = None,
        capacity_bytes: int | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        if (device.rank, device.ranks) != (below.rank, below.ranks):
            raise InputError(
                f"expected a device of rank {below.rank} of {below.ranks}, found one of rank {device.rank} of "
                f"{device.ranks}: make both for one group."
            )
        super().__init__(below.rank, below.ranks, timeout_s)
        self.device, self.below = device, below
        self._owns_below, self._communicators, self._pieces = owns_below, communicators, pieces
        self._lowered: WeakKeyDictionary[Schedule | Forest, PutSignalProgram | str] = WeakKeyDictionary()
        self._programs: WeakKeyDictionary[RankProgram, PutSignalProgram] = WeakKeyDictionary()
        self._calls: WeakKeyDictionary[RankProgram, dict[DataType, IssuedCalls]] = WeakKeyDictionary()
        self._left: WeakKeyDictionary[RankProgram, str] = WeakKeyDictionary()
        self._exchanged: WeakKeyDictionary[RankProgram, ExchangedBlocks] = WeakKeyDictionary()
        self._capacity_bytes = capacity_bytes
        self._left_to = left_to or below.name
        self._told: set[str] = set()
        self._warm = 0

    def learn(self, program: RankProgram, body: Schedule | Forest) -> None:
        """See :meth:`coppice.run.engines.engine.LearningEngine.learn`."""
        reason = ""
        if program.collective.sharded and program.count % program.ranks:
            reason = f"blocks of {program.collective} that differ in length"
        elif not program.count:
            reason = f"{program.collective} without data"
        else:
            found = self._lowered.get(body)
            if found is None:
                found = self._lowered[body] = self._lower(body)
            if isinstance(found, PutSignalProgram):
                self._programs[program] = found
            else:
                reason = found
        self._left[program] = reason

    def learn_exchange(self, program: RankProgram, programs: Sequence[RankProgram]) -> None:
        """See :meth:`coppice.run.engines.engine.ExchangingEngine.learn_exchange`."""
        blocks = ExchangedBlocks(program, programs)
        self._left[program] = blocks.obstacle or (
            "an all-to-all of unequal blocks, whose counters hold more than one signal"
            if self.device.single
            else ""
        )
        self._exchanged[program] = blocks

    def obstacle(self, program: RankProgram, dtype: DataType, op: ReduceOp) -> str:
        """Why a program is left to the engine below, or nothing; the same on all ranks.

        It is logged by rank 0, once for each reason.
        """
        reason = self._left.get(program)
        if reason is None:  # such as one that measures what a message costs
            return "a program whose schedule is not known"
        if not reason and program.collective.reduces:
            reason = self.device.refusal(op, dtype)
        if reason:
            self.leave(reason)
        return reason

    def run_program(
        self,
        program: PutSignalProgram,  # The program; it should have been verified
        given: Any,  # This rank's input: `count` elements, or its block of them, as the collective says
        wanted: Any,
        *,
        count: int,  # M in elements; in blocks, of which all are equal
        dtype: DataType,
        op: ReduceOp = ReduceOp.SUM,  # The reduction; an average is divided at the end
        timeout_s: float = 300.0,
    ) -> None:
        """Run a put/signal program out of place; collective over the ranks."""
        self._check_open()
        if program.num_ranks != self.ranks:
            raise InputError(
                f"expected a program of {self.ranks} ranks, found one of {program.num_ranks}: plan for this group."
            )
        if program.collective.sharded and count % self.ranks:
            raise InputError(
                f"expected equal blocks for {self.ranks} ranks, found {count} elements: pad them."
            )
        reason = _obstacle(program, self.device)
        if reason:
            raise InputError(
                f"expected a program that {self.device.name} runs, found {reason}: export it with other options."
            )
        calls = IssuedCalls(program, self.rank, count, dtype)
        elements = self.device.elements
        source = elements(given, dtype, calls.given.blocks * calls.given.length, name="the input")
        target = elements(
            wanted, dtype, calls.wanted.blocks * calls.wanted.length, name="the output", writable=True
        )
        self._run(calls, source, target, op, timeout_s)

    def _carry_out(
        self, program: RankProgram, given: Any, wanted: Any, dtype: DataType, op: ReduceOp, timeout_s: float
    ) -> None:
        if self.obstacle(program, dtype, op):
            self.below.run(program, given, wanted, dtype=dtype, op=op, timeout_s=timeout_s)
            return
        if program in self._exchanged:
            self._exchange(program, given, wanted, dtype, timeout_s)
            return
        if program.collective.reduces:
            check_reduction(op, dtype)
        kept = self._calls.setdefault(program, {})
        if dtype not in kept:
            kept[dtype] = IssuedCalls(self._programs[program], self.rank, program.count, dtype)
        calls = kept[dtype]
        output = self.device.elements(
            wanted, dtype, program.output_elements, name="the output", writable=True
        )
        if program.in_place:
            first, length = _place_of_input(program), calls.given.blocks * calls.given.length
            source = output[first : first + length]
        else:
            source = self.device.elements(given, dtype, program.input_elements, name="the input")
        target = output[program.result_offset : program.result_offset + program.result_elements]
        self._run(calls, source, target, op, timeout_s)

    def _run(self, calls: IssuedCalls, source: Any, target: Any, op: ReduceOp, timeout_s: float) -> None:
        """Stage in, issue, wait, stage out."""
        device, program = self.device, calls.program
        if device.recording():
            self._check_recordable(program)
        with self._failing(str(program.collective)):
            device.prepare(
                calls.window_bytes, communicators=program.num_communicators, streams=program.num_streams
            )
            self._warm_up(program.num_communicators, timeout_s)
            for offset, part in _parts(calls.given, source):
                device.write(offset, part)
            device.begin()
            calls.issue(device, op)
            device.join(str(program.collective), timeout_s, into=target)
            for offset, part in _parts(calls.wanted, target):
                device.read(offset, part)
            if op is ReduceOp.AVG and program.collective.reduces:
                device.divide(calls.dtype, target, self.ranks)

    def _exchange(
        self, program: RankProgram, given: Any, wanted: Any, dtype: DataType, timeout_s: float
    ) -> None:
        """Run an all-to-all of unequal blocks."""
        blocks, device = self._exchanged[program], self.device
        blocks.check_capacity(dtype.itemsize, self._capacity_bytes)
        if device.recording():
            raise InputError(
                "expected calls that are the same at each replay, found an all-to-all of unequal blocks: leave it "
                "out of the graph."
            )
        source = device.elements(given, dtype, program.input_elements, name="the input")
        target = device.elements(wanted, dtype, program.output_elements, name="the output", writable=True)
        with self._failing(str(program.collective)):
            device.prepare(blocks.window_bytes(dtype.itemsize), communicators=1, streams=1)
            self._warm_up(1, timeout_s)
            blocks.carry_out(device, source, target, dtype=dtype, timeout_s=timeout_s)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Tell the other ranks when the body raises; the engine is of no more use then."""
        device = self.device
        try:
            yield
        except RunError as error:
            self._lost = str(error)
            device.abort(str(error))
            raise
        except InputError:  # on all ranks alike, before anything was sent
            raise
        except BaseException as error:
            self._lost = f"{what} failed on {device.name} with {type(error).__name__}: {error}."
            device.abort(self._lost)
            if isinstance(error, Exception):  # of the library
                raise RunError(self._lost) from error
            raise

    def try_out(self, timeout_s: float, *, num_bytes: int = 1, communicators: int = 1) -> None:
        """Test the device by a window, communicators and self-signals; collective over the ranks."""
        self.device.prepare(num_bytes, communicators=communicators, streams=1)
        self._warm_up(communicators, timeout_s)

    @property
    def device_memory(self) -> DeviceMemory | None:
        """Memory of the device; None for host memory."""
        return self.device if isinstance(self.device, DeviceMemory) else None

    def own_below(self) -> None:
        """Take ownership of the engine below."""
        self._owns_below = True

    def _check_recordable(self, program: PutSignalProgram) -> None:
        """Refuse to record what no graph can hold, or what is not set up yet."""
        if not self.device.captures:
            raise InputError(
                f"expected a library whose calls can be recorded, found {self.device.name}: NCCL 2.30.3 is the first."
            )
        if not is_graph_safe(program):
            raise InputError(
                "expected a program that may be captured, found one whose counters hold more than one signal: lower "
                "it with `graphs=True`."
            )
        if self._warm < program.num_communicators:
            raise InputError(
                "expected a call that has run before it is recorded, found a new one: make the same call once before."
            )

    def _warm_up(self, communicators: int, timeout_s: float) -> None:
        """Every rank signals itself on new communicators: the first call of one is collective before NCCL 2.31."""
        for line in range(self._warm, communicators):
            self.device.transfer(line, 0, [Put(self.rank, 0, 0, 0, 0, 0)])
            self.device.wait(line, 0, [Awaited(self.rank, 1, 0, 0)])
            self.device.finish(f"the warm-up of {self.device.name}", timeout_s)
        self._warm = max(self._warm, communicators)

    def _lower(self, body: Schedule | Forest) -> PutSignalProgram | str:
        """The program of a plan, the same on all ranks, or why there is none."""
        try:  # as graphs, which also keeps a pair's puts in flight few: before NCCL 2.30.7 a 257th may be lost
            program = lower_put_signal(
                body, communicators=self._communicators, pieces=self._pieces, graphs=True
            )
        except InputError as error:
            return str(error)
        report = verify_put_signal(program)
        if not report.ok:
            return f"a program that does not verify: {report.failures[0]}"
        return _obstacle(program, self.device) or program

    def leave(self, reason: str) -> None:
        """Log once that a collective runs without puts, and why."""
        if reason not in self._told:
            self._told.add(reason)
            if self.rank == 0:
                _LOG.warning("%s carries out what puts cannot: %s", self._left_to, reason)

    def native(
        self, collective: Collective, given: Any, output: Any, *, dtype: DataType, op: ReduceOp, root: int
    ) -> None:
        """The library's own collective, by the engine below; see :class:`coppice.run.bench.measuring.Native`."""
        own = getattr(self.below, "native", None)
        if own is None:
            raise InputError(f"the engine {self.below.name} has no collectives of its own: leave native out.")
        own(collective, given, output, dtype=dtype, op=op, root=root)

    def exchange(self, data: bytes) -> list[bytes]:
        """See :meth:`coppice.run.engines.engine.Engine.exchange`."""
        self._check_open()
        return self.below.exchange(data)

    def close(self) -> None:
        """See :meth:`coppice.run.engines.engine.Engine.close`."""
        super().close()
        self.device.close()
        if self._owns_below:
            self.below.close()


def _obstacle(program: PutSignalProgram, device: PutSignalDevice) -> str:
    """Why a device cannot run a program that verifies; empty if it can."""
    if int(program.signal.max(initial=0)) >= device.signals or int(program.context.max(initial=0)):
        return f"more than {device.signals} signals of a pair, or several contexts"
    if device.single and not is_graph_safe(program):
        return "a program in which a counter must hold more than one signal"
    return ""


def _place_of_input(program: RankProgram) -> int:
    """First element of what a rank contributes, in place."""
    gathers = program.collective in (Collective.ALL_GATHER, Collective.GATHER)
    if gathers and program.output_elements == program.count:
        return program.count * program.rank // program.ranks
    return 0


def _parts(interval: WindowInterval, values: Any) -> Sequence[tuple[int, Any]]:
    """(first byte in the window, values) of each run of values that lies together in both."""
    if not interval.blocks or not interval.length or not len(values):
        return []
    if interval.pitch == interval.length:
        return [(interval.offset, values[: interval.blocks * interval.length])]
    size = values.itemsize
    return [
        (
            interval.offset + block * interval.pitch * size,
            values[block * interval.length : (block + 1) * interval.length],
        )
        for block in range(interval.blocks)
    ]
