"""Programs carried out with numbers by thread blocks that share nothing but memory and connections of a few messages.

An account of what a program means that knows nothing of the verifier: every rank holds real memory (random numbers,
garbage where nothing was put), every connection is a queue, and at every moment one of the thread blocks that can go
on begins its next step (takes its message and reads) or ends it (writes and sends): between the two, others may write
what was read. Which one it is is chosen at random, in one of two ways: any of them alike, or always the first in an
order of thread blocks drawn before, so that some run far ahead and others starve.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass

from coppice.collectives import Collective
from coppice.program.dialects.thread_blocks.program import Program, StepOp

_TAKES = {StepOp.RECV, StepOp.RECV_COPY_SEND, StepOp.RECV_REDUCE_COPY, StepOp.RECV_REDUCE_SEND}
_TAKES |= {StepOp.RECV_REDUCE_COPY_SEND}
_GIVES = {StepOp.SEND, StepOp.RECV_COPY_SEND, StepOp.RECV_REDUCE_SEND, StepOp.RECV_REDUCE_COPY_SEND}
_KEEPS = {StepOp.RECV, StepOp.COPY, StepOp.REDUCE, StepOp.RECV_COPY_SEND, StepOp.RECV_REDUCE_COPY}
_KEEPS |= {StepOp.RECV_REDUCE_COPY_SEND}


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        finished: All steps were done.
        leftover: Messages that nobody took.
        fault: What cannot be done at all (memory that is not there, a message of another length), or "".
        right: The output is what the collective promises.
        output: Values of the outputs that matter, rank after rank.
    """

    finished: bool
    leftover: int
    fault: str
    right: bool
    output: tuple[int, ...]

    @property
    def good(self) -> bool:
        """Everything is as it should be."""
        return self.finished and self.right and not self.leftover and not self.fault


class FaultError(Exception):
    """Something that cannot be done."""


class _Slots:
    """Two buffers of a rank, apart or sharing memory, and its scratch."""

    def __init__(self, program: Program, rank: int, *, in_place: bool, rng: random.Random) -> None:
        self.inputs, self.outputs, shift = _shape(program, rank)
        self.scratch = [_number(rng) for _ in range(int(program.scratch_chunks[rank]))]
        if in_place and program.collective not in _BLOCKS:
            self.inputs = self.outputs = max(self.inputs, self.outputs)
        if in_place and self.inputs and self.outputs:  # the smaller lies in the larger
            length = max(self.inputs, self.outputs)
            self.input_at = shift if self.inputs < self.outputs else 0
            self.output_at = shift if self.outputs < self.inputs else 0
        else:
            length = self.inputs + self.outputs
            self.input_at, self.output_at = 0, self.inputs
        self.main = [_number(rng) for _ in range(length)]

    def place(self, buffer: int, offset: int, count: int) -> tuple[list[int], int]:
        """The list and the first index that ``count`` slots mean."""
        sizes = (self.inputs, self.outputs, len(self.scratch))
        if not 0 <= buffer < 3 or offset < 0 or count < 1 or offset + count > sizes[buffer]:
            raise FaultError(f"no slots {offset} to {offset + count - 1} of buffer {buffer}")
        if buffer == 2:
            return self.scratch, offset
        return self.main, offset + (self.output_at if buffer else self.input_at)


_BLOCKS = (Collective.ALL_GATHER, Collective.GATHER, Collective.REDUCE_SCATTER, Collective.SCATTER)


def _number(rng: random.Random) -> int:
    return rng.getrandbits(60)


def _shape(program: Program, rank: int) -> tuple[int, int, int]:
    """(slots of input, slots of output, where the smaller lies in the larger in place)."""
    chunks, root = program.num_chunks, rank == program.root
    block = chunks // program.num_ranks
    shift = rank * block
    return {
        Collective.ALL_GATHER: (block, chunks, shift),
        Collective.REDUCE_SCATTER: (chunks, block, shift),
        Collective.ALL_REDUCE: (chunks, chunks, 0),
        Collective.ALL_TO_ALL: (chunks, chunks, 0),
        Collective.BROADCAST: (chunks if root else 0, chunks, 0),
        Collective.REDUCE: (chunks, chunks if root else 0, 0),
        Collective.GATHER: (block, chunks if root else 0, shift),
        Collective.SCATTER: (chunks if root else 0, block, shift),
    }[program.collective]


def _promised(program: Program, data: list[list[int]], rank: int) -> list[int]:
    """The output that a rank should have, from the inputs of all ranks."""
    ranks, chunks = program.num_ranks, program.num_chunks
    block = chunks // ranks
    match program.collective:
        case Collective.ALL_GATHER:
            return [value for each in data for value in each]
        case Collective.GATHER:
            return [value for each in data for value in each] if rank == program.root else []
        case Collective.ALL_REDUCE:
            return [sum(column) for column in zip(*data, strict=True)]
        case Collective.REDUCE:
            return [sum(column) for column in zip(*data, strict=True)] if rank == program.root else []
        case Collective.REDUCE_SCATTER:
            return [sum(column) for column in zip(*data, strict=True)][rank * block : (rank + 1) * block]
        case Collective.BROADCAST:
            return data[program.root]
        case Collective.SCATTER:
            return data[program.root][rank * block : (rank + 1) * block]
        case _:
            return [value for each in data for value in each[rank * block : (rank + 1) * block]]


class _Run:
    def __init__(
        self, program: Program, *, in_place: bool, depth: int, rng: random.Random, data_seed: int
    ) -> None:
        self.program, self.depth, self.rng = program, depth, rng
        fixed = random.Random(data_seed)  # the same data and garbage in every order
        self.slots = [
            _Slots(program, rank, in_place=in_place, rng=fixed) for rank in range(program.num_ranks)
        ]
        self.data: list[list[int]] = []
        for rank, slots in enumerate(self.slots):
            length = _shape(program, rank)[0]
            memory, first = slots.place(0, 0, length) if length else ([], 0)
            self.data.append(memory[first : first + length])
        self.queue: defaultdict[tuple[int, int, int], deque[list[int]]] = defaultdict(deque)
        self.rank: list[int] = program.block_rank.tolist()
        self.at = [0] * program.num_blocks
        self.held: dict[int, list[int]] = {}  # what steps that were begun have read
        self.length: list[int] = (program.step_start[1:] - program.step_start[:-1]).tolist()
        self.order = list(range(program.num_blocks))
        rng.shuffle(self.order)
        self.turn = {block: place for place, block in enumerate(self.order)} if rng.random() < 0.5 else None

    def step_of(self, block: int) -> int:
        return int(self.program.step_start[block]) + self.at[block]

    def inbound(self, block: int) -> tuple[int, int, int]:
        program = self.program
        return int(program.block_recv[block]), self.rank[block], int(program.block_channel[block])

    def outbound(self, block: int) -> tuple[int, int, int]:
        program = self.program
        return self.rank[block], int(program.block_send[block]), int(program.block_channel[block])

    def waits_for(self, block: int) -> object:
        """What the next step still waits for, or None."""
        program, step = self.program, self.step_of(block)
        op = int(program.op[step])
        for row in range(int(program.dep_start[step]), int(program.dep_start[step + 1])):
            other = int(program.rank_start[self.rank[block]]) + int(program.dep_block[row])
            if self.at[other] <= int(program.dep_step[row]):
                return "done", other
        if op in _TAKES and not self.queue[self.inbound(block)]:
            return "message", self.inbound(block)
        if op in _GIVES and len(self.queue[self.outbound(block)]) >= self.depth:
            return "room", self.outbound(block)
        return None

    def begin(self, block: int) -> list[object]:
        """Take and read what the next step needs; what comes true by it."""
        program, step = self.program, self.step_of(block)
        op, count = int(program.op[step]), int(program.count[step])
        slots = self.slots[self.rank[block]]
        came: list[object] = []
        value: list[int] = []
        if op in _TAKES:
            value = self.queue[self.inbound(block)].popleft()
            came.append(("room", self.inbound(block)))
            if len(value) != count:
                raise FaultError(f"a message of {len(value)} for one of {count}")
        if op not in (StepOp.NOP, StepOp.RECV, StepOp.RECV_COPY_SEND):
            memory, first = slots.place(int(program.src_buffer[step]), int(program.src_offset[step]), count)
            read = memory[first : first + count]
            value = [a + b for a, b in zip(value, read, strict=True)] if value else read
        if op == StepOp.REDUCE:
            memory, first = slots.place(int(program.dst_buffer[step]), int(program.dst_offset[step]), count)
            value = [a + b for a, b in zip(value, memory[first : first + count], strict=True)]
        self.held[block] = value
        return came

    def end(self, block: int) -> list[object]:
        """Write and give what the step that was begun has made; what comes true by it."""
        program, step = self.program, self.step_of(block)
        op, count = int(program.op[step]), int(program.count[step])
        value = self.held.pop(block)
        came: list[object] = [("done", block)]
        if op in _KEEPS:
            slots = self.slots[self.rank[block]]
            memory, first = slots.place(int(program.dst_buffer[step]), int(program.dst_offset[step]), count)
            memory[first : first + count] = value
        if op in _GIVES:
            self.queue[self.outbound(block)].append(value)
            came.append(("message", self.outbound(block)))
        self.at[block] += 1
        return came

    def go(self) -> str:
        """Run until nothing can go on; what could not be done, or ""."""
        ready = [block for block in self.order if self.length[block]]
        waiting: defaultdict[object, list[int]] = defaultdict(list)
        while ready:
            if self.turn is None:
                place = self.rng.randrange(len(ready))
            else:
                place = min(range(len(ready)), key=lambda each: self.turn[ready[each]])  # type: ignore[index]
            block = ready.pop(place)
            reason = None if block in self.held else self.waits_for(block)
            if reason is not None:
                waiting[reason].append(block)
                continue
            try:
                came = self.end(block) if block in self.held else self.begin(block)
            except FaultError as fault:
                return str(fault)
            for each in came:
                ready += waiting.pop(each, [])
            if self.at[block] < self.length[block]:
                ready.append(block)
        return ""


def run_program(program: Program, *, in_place: bool, depth: int, seed: int, data_seed: int = 0) -> Outcome:
    """Carry out a program once.

    Args:
        program: Thread blocks with peers and operations that exist; all else may be wrong.
        in_place: Input and output share memory.
        depth: Messages that fit into a connection.
        seed: Chooses the order.
        data_seed: Chooses the data.
    """
    run = _Run(program, in_place=in_place, depth=depth, rng=random.Random(seed), data_seed=data_seed)
    fault = run.go()
    output: list[int] = []
    right = True
    for rank, slots in enumerate(run.slots):
        promised = _promised(program, run.data, rank)
        memory, first = slots.place(1, 0, len(promised)) if promised else ([], 0)
        held = memory[first : first + len(promised)]
        output += held
        right = right and held == promised
    return Outcome(
        finished=run.at == run.length,
        leftover=sum(map(len, run.queue.values())),
        fault=fault,
        right=right,
        output=tuple(output),
    )
