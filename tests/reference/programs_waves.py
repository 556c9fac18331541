"""Programs carried out by the waves of threads of RCCL's kernel with LL, one memory access at a time.

A thread block is several waves, which run on their own but for barriers. Where these stand is read from RCCL's kernel
(`msccl_kernel_impl.h`, `prims_ll.h`, ROCm 6.0 and later): behind every wait for other thread blocks, at the beginning
of a send, at the end of everything but a send. The last wave alone stores the flag of a step. Slots have as many parts
as there are waves; send, receive and copy share them out alike, a reduction otherwise.

It knows nothing of the verifier: ranks hold numbers, and what they hold at the end is compared with the sums that are
due.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.memory import EVERYONE, Buffer, end_columns, memory_of, start_columns

_WAVES = 2
_ROOM = 8


class _Run:
    def __init__(self, program: Program, *, in_place: bool, rng: random.Random) -> None:
        self.program, self.rng = program, rng
        memory = memory_of(program, in_place=in_place)
        self.base = memory.base
        self.held = [[rng.getrandbits(60) for _ in range(_WAVES)] for _ in range(memory.words)]
        self.own: dict[tuple[int, int], list[int]] = {}
        for rank in range(program.num_ranks):
            for place, (chunk, member) in enumerate(zip(*start_columns(program, rank), strict=True)):
                value = [rng.getrandbits(60) for _ in range(_WAVES)]
                self.own[int(chunk), int(member)] = value
                self.held[int(self.base[Buffer.INPUT, rank]) + place] = list(value)
        self.lines: dict[tuple[int, int, int, int], dict[tuple[int, int], int]] = defaultdict(dict)
        self.taken: dict[tuple[int, int, int], int] = defaultdict(int)  # messages received by all waves
        self.flags = [-1] * program.num_blocks
        self.arrived: dict[int, int] = defaultdict(int)

    def waves(self) -> list[Iterator[bool]]:
        return [self._wave(block, wave) for block in range(self.program.num_blocks) for wave in range(_WAVES)]

    def _barrier(self, block: int, number: int) -> Iterator[bool]:
        """Yields False as long as a wave has to wait."""
        self.arrived[block] += 1
        while self.arrived[block] < _WAVES * number:
            yield False

    def _wave(self, block: int, wave: int) -> Iterator[bool]:
        program = self.program
        rank = int(program.block_rank[block])
        out = (rank, int(program.block_send[block]), int(program.block_channel[block]))
        into = (int(program.block_recv[block]), rank, int(program.block_channel[block]))
        barriers = sent = received = 0
        for step in range(int(program.step_start[block]), int(program.step_start[block + 1])):
            op = StepOp(int(program.op[step]))
            rows = range(int(program.dep_start[step]), int(program.dep_start[step + 1]))
            for row in rows:
                other = int(program.dep_target_block[row])
                while self.flags[other] < int(program.dep_step[row]):
                    yield False
            if len(rows):
                barriers += 1
                yield from self._barrier(block, barriers)
            src, dst = (
                int(self.base[buffer[step], rank]) + int(offset[step])
                for buffer, offset in (
                    (program.src_buffer, program.src_offset),
                    (program.dst_buffer, program.dst_offset),
                )
            )
            turn = 1 if op is StepOp.REDUCE else 0
            mine = [
                (slot, part)
                for slot in range(int(program.count[step]))
                for part in range(_WAVES)
                if (slot + part + turn) % _WAVES == wave
            ]
            if op is StepOp.SEND:
                while sent - self.taken[out] >= _ROOM:
                    yield False
                barriers += 1
                yield from self._barrier(block, barriers)
            for slot, part in mine:
                yield True
                if op is StepOp.SEND:
                    self.lines[(*out, sent)][slot, part] = self.held[src + slot][part]
                elif op is StepOp.RECV:
                    while (slot, part) not in self.lines[(*into, received)]:
                        yield False
                    self.held[dst + slot][part] = self.lines[(*into, received)][slot, part]
                elif op is StepOp.COPY:
                    self.held[dst + slot][part] = self.held[src + slot][part]
                elif op is StepOp.REDUCE:
                    self.held[dst + slot][part] += self.held[src + slot][part]
            if op is StepOp.SEND:
                sent += 1
            else:
                barriers += 1
                yield from self._barrier(block, barriers)
                if op is StepOp.RECV:
                    received += 1
                    self.taken[into] = received
            if wave == _WAVES - 1:
                self.flags[block] = step - int(program.step_start[block])

    def right(self) -> bool:
        program = self.program
        for rank in range(program.num_ranks):
            first = int(self.base[Buffer.OUTPUT, rank])
            for place, (chunk, member) in enumerate(zip(*end_columns(program, rank), strict=True)):
                members = range(program.num_ranks) if member == EVERYONE else [int(member)]
                due = [sum(self.own[int(chunk), each][part] for each in members) for part in range(_WAVES)]
                if self.held[first + place] != due:
                    return False
        return True


def goes_wrong(program: Program, *, orders: int, seed: int) -> bool:
    """Some order of the waves ends with wrong data; some of them are much slower than others.

    Args:
        program: A program of plain steps, none of which receives and sends, that comes to an end.
        orders: Random orders to try.
        seed: Of the random numbers.
    """
    rng = random.Random(seed)
    for _ in range(orders):
        run = _Run(program, in_place=program.in_place, rng=rng)
        waves = run.waves()
        pace = {at: rng.choice([0.01, 0.3, 1.0]) for at in range(len(waves))}
        left = set(pace)
        idle = 0
        while left:
            for at in rng.sample(sorted(left), len(left)):
                if rng.random() > pace[at]:
                    continue
                moved = next(waves[at], None)
                if moved is None:
                    left.discard(at)
                idle = 0 if moved is not False else idle + 1
            if idle > 1_000_000:
                raise RuntimeError("the waves deadlock")
        if not run.right():
            return True
    return False
