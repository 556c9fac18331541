"""Slot operations, the instructions of every rank for a list of them, and receives fused with the send of their data.

An operation is a copy or sum within a rank or between two, with scheduling hints.

An instruction waits for the last write of what it reads (read after write) and of what it overwrites (write after
write), and for the reads of what it overwrites (write after read). A receive waits for its send.

Fuse a receive with the send that forwards its data. A receive that copies and sends on becomes ``rcs``. One that adds
and sends on becomes ``rrcs``, or ``rrs`` where nobody else reads the sum before it is overwritten, and the collective
does not want it there. Of several sends of one value the one with the longest way still to go is joined; the others
stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from coppice.program.dialects.thread_blocks.program import NOWHERE, Slot, StepOp
from coppice.program.memory import ProgramMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """Scheduling hints of an operation; None leaves the choice to the lowering."""

    channel: int | None = None  # Channel of its message
    send_block: int | None = None  # Label of the thread block of the sender that sends it
    # Label of the thread block of the receiver (for work within a rank, of that rank)
    recv_block: int | None = None
    # Place of the send in its thread block: its steps come in ascending order of these numbers
    send_step: int | None = None
    recv_step: int | None = None  # Place of the receive, or of work within a rank, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOperation:
    """Copy or sum of ``count`` slots."""

    src_rank: int  # Rank that has them
    src_buffer: int  # :class:`~coppice.program.memory.Buffer` that they lie in
    src_offset: int  # First slot
    dst_rank: int  # Rank that gets them; the same one for work within a rank
    dst_buffer: int  # Buffer that they go to
    dst_offset: int  # First slot
    count: int  # Slots, 1 or more
    adds: bool  # They are added to what is there; otherwise they take its place
    where: str = ""  # Where it was written down, such as `ring.py:12`, for messages
    hints: Hints = Hints()  # What its author wants


@dataclass(slots=True)
class Instruction:
    """A step of a rank, before it has a thread block."""

    op: StepOp  # What it does
    rank: int  # Who does it
    src: Slot  # Slot that it reads
    dst: Slot  # Slot that it writes
    count: int  # Slots
    where: str  # Where it was written down
    block: int | None  # Label of the thread block that is asked for, or None
    step: int | None  # Place in it that is asked for, or None
    received: int = -1  # Message that it receives, or -1
    sent: int = -1  # Message that it sends, or -1
    before: set[int] = field(default_factory=set)  # Instructions that it waits for, within its rank
    # For each slot that it writes, the instructions that read the value before it is overwritten
    readers: list[list[int]] = field(default_factory=list)
    # For each slot that it writes, whether the value is there at the end
    kept: list[bool] = field(default_factory=list)


@dataclass(slots=True)
class SlotMessage:
    """A message with sender, receiver, and the requested channel, or None."""

    src: int
    dst: int
    send: int
    recv: int
    channel: int | None


@dataclass(frozen=True)
class InstructionGraph:
    """Instructions in an executable order, with their messages."""

    instructions: list[Instruction | None]  # All instructions; those that were joined to another are None
    messages: list[SlotMessage]  # All messages

    def present(self) -> list[int]:
        """Numbers of existing instructions."""
        return [number for number, each in enumerate(self.instructions) if each is not None]

    def at(self, number: int) -> Instruction:
        """An existing instruction."""
        found = self.instructions[number]
        if found is None:
            raise LookupError(f"instruction {number} was joined to another")
        return found

    def waits_for(self, number: int) -> set[int]:
        """All dependencies of an instruction, its message's send included."""
        each = self.at(number)
        return each.before | ({self.messages[each.received].send} if each.received >= 0 else set())


def instructions_of(operations: Sequence[SlotOperation], memory: ProgramMemory) -> InstructionGraph:
    """Instructions of sequential operations."""
    made = _Making(memory)
    for operation in operations:
        made.add(operation)
    return InstructionGraph(list(made.instructions), made.messages)


class _Making:
    def __init__(self, memory: ProgramMemory) -> None:
        self.memory = memory
        self.instructions: list[Instruction] = []
        self.messages: list[SlotMessage] = []
        self.writer: list[int] = [-1] * memory.words
        self.place: list[int] = [0] * memory.words  # which slot of the last writer it is
        self.readers: list[list[int]] = [[] for _ in range(memory.words)]
        self.final = {
            first + slot for _, first, values in memory.end for slot in range(len(values))
        }  # addresses that the collective leaves something at

    def add(self, operation: SlotOperation) -> None:
        """The instructions of one operation."""
        src = (operation.src_buffer, operation.src_offset)
        dst = (operation.dst_buffer, operation.dst_offset)
        hints, count, where = operation.hints, operation.count, operation.where
        there = (operation.dst_rank, count, where, hints.recv_block, hints.recv_step)
        if operation.src_rank == operation.dst_rank:
            self._instruction(StepOp.REDUCE if operation.adds else StepOp.COPY, src, dst, *there)
            return
        message = len(self.messages)
        here = (operation.src_rank, count, where, hints.send_block, hints.send_step)
        send = self._instruction(StepOp.SEND, src, NOWHERE, *here)
        if operation.adds:
            recv = self._instruction(StepOp.RECV_REDUCE_COPY, dst, dst, *there)
        else:
            recv = self._instruction(StepOp.RECV, NOWHERE, dst, *there)
        self.instructions[send].sent = self.instructions[recv].received = message
        self.messages.append(SlotMessage(operation.src_rank, operation.dst_rank, send, recv, hints.channel))

    def _instruction(
        self,
        op: StepOp,
        src: Slot,
        dst: Slot,
        rank: int,
        count: int,
        where: str,
        block: int | None,
        step: int | None,
    ) -> int:
        number = len(self.instructions)
        made = Instruction(op, rank, src, dst, count, where, block, step)
        self.instructions.append(made)
        reads = [src] if op.reads_src else []
        reads += [dst] if op.reads_dst else []
        for buffer, offset in reads:
            first = int(self.memory.base[buffer, rank]) + offset
            for address in range(first, first + count):
                self._waits(made, self.writer[address])
                self.readers[address].append(number)
        if op.writes_dst:
            first = int(self.memory.base[dst[0], rank]) + dst[1]
            for slot, address in enumerate(range(first, first + count)):
                self._write(number, made, slot, address)
        return number

    def _write(self, number: int, made: Instruction, slot: int, address: int) -> None:
        last = self.writer[address]
        self._waits(made, last)
        if last >= 0:
            self.instructions[last].kept[self.place[address]] = False
        for reader in self.readers[address]:
            if reader != number:
                self._waits(made, reader)
        made_readers: list[int] = []
        self.readers[address] = made_readers
        self.writer[address], self.place[address] = number, slot
        made.readers.append(made_readers)
        made.kept.append(address in self.final)

    @staticmethod
    def _waits(made: Instruction, earlier: int) -> None:
        if earlier >= 0:
            made.before.add(earlier)


def depths_of(graph: InstructionGraph) -> list[int]:
    """Longest path from the start to each instruction."""
    depth = [0] * len(graph.instructions)
    for number in graph.present():
        depth[number] = max((depth[earlier] + 1 for earlier in graph.waits_for(number)), default=0)
    return depth


def heights_of(graph: InstructionGraph) -> list[int]:
    """Longest path from each instruction to an end."""
    height = [0] * len(graph.instructions)
    for number in reversed(graph.present()):
        for earlier in graph.waits_for(number):
            height[earlier] = max(height[earlier], height[number] + 1)
    return height


def fuse(graph: InstructionGraph, memory: ProgramMemory, *, apart: Collection[int] = ()) -> None:
    """Fuse in place where possible.

    Args:
        graph: Instructions as :func:`instructions_of` makes them.
        apart: Messages that are not to be passed on in the step that receives them.
    """
    height = heights_of(graph)
    joined: dict[int, int] = {}
    channel = [message.channel for message in graph.messages]
    for number in graph.present():
        taking = graph.instructions[number]
        if taking is None or taking.received < 0 or taking.received in apart:
            continue
        found = [
            send
            for send in _passing_on(graph, number, taking, memory)
            if _agree(graph, taking, send, channel)
        ]
        if not found:
            continue
        best = max(found, key=lambda send: (height[send], -send))
        _join(graph, taking, best)
        joined[best] = number
        both = channel[taking.received], channel[taking.sent]
        channel[taking.sent] = both[0] if both[1] is None else both[1]
    for number in graph.present():
        each = graph.at(number)
        each.before = {joined.get(earlier, earlier) for earlier in each.before} - {number}
    for message in graph.messages:
        message.send = joined.get(message.send, message.send)


def _passing_on(
    graph: InstructionGraph, number: int, taking: Instruction, memory: ProgramMemory
) -> list[int]:
    """Sends of just what an instruction receives."""
    first = int(memory.base[taking.dst[0], taking.rank]) + taking.dst[1]
    found = []
    for reader in taking.readers[0]:
        send = graph.instructions[reader]
        if send is None or send.op is not StepOp.SEND or send.count != taking.count:
            continue
        if int(memory.base[send.src[0], send.rank]) + send.src[1] == first and send.before == {number}:
            found.append(reader)
    return found


def _agree(graph: InstructionGraph, taking: Instruction, send: int, channel: list[int | None]) -> bool:
    """Whether nothing that is asked for keeps the two apart."""
    other = graph.at(send)
    one, two = channel[taking.received], channel[other.sent]
    return (
        (one is None or two is None or one == two)
        and (taking.block is None or other.block is None or taking.block == other.block)
        and taking.step == other.step
    )


def _join(graph: InstructionGraph, taking: Instruction, send: int) -> None:
    other = graph.at(send)
    taking.sent = other.sent
    taking.block = other.block if taking.block is None else taking.block
    if taking.op is StepOp.RECV:
        taking.op = StepOp.RECV_COPY_SEND
    elif any(taking.kept) or any(set(readers) != {send} for readers in taking.readers):
        taking.op = StepOp.RECV_REDUCE_COPY_SEND
    else:
        taking.op, taking.dst = StepOp.RECV_REDUCE_SEND, NOWHERE
    graph.instructions[send] = None
