"""Programs with one thing gone wrong, by kind: what people, generators and careless edits do to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coppice.program.dialects.thread_blocks.program import NOWHERE, Program, ProgramBuilder, StepOp

Step = tuple[int, tuple[int, int], tuple[int, int], int, list[tuple[int, int]]]
"""(op, src, dst, count, dependencies)"""


@dataclass
class Block:
    """A thread block and its steps."""

    rank: int
    place: int
    send: int
    recv: int
    channel: int
    steps: list[Step] = field(default_factory=list)


def unpacked(program: Program) -> list[Block]:
    """All thread blocks with their steps."""
    blocks = []
    for row in range(program.num_blocks):
        rank, place = program.block_id(row)
        block = Block(
            rank,
            place,
            int(program.block_send[row]),
            int(program.block_recv[row]),
            int(program.block_channel[row]),
        )
        for step in range(int(program.step_start[row]), int(program.step_start[row + 1])):
            low, high = int(program.dep_start[step]), int(program.dep_start[step + 1])
            deps = list(
                zip(program.dep_block[low:high].tolist(), program.dep_step[low:high].tolist(), strict=True)
            )
            block.steps.append(
                (
                    int(program.op[step]),
                    (int(program.src_buffer[step]), int(program.src_offset[step])),
                    (int(program.dst_buffer[step]), int(program.dst_offset[step])),
                    int(program.count[step]),
                    deps,
                )
            )
        blocks.append(block)
    return blocks


def packed(program: Program, blocks: list[Block]) -> Program:
    """A program of these thread blocks with the attributes of ``program``."""
    build = ProgramBuilder(program.num_ranks)
    for block in blocks:
        handle = build.block(block.rank, send=block.send, recv=block.recv, channel=block.channel)
        for op, src, dst, count, deps in block.steps:
            build.step(handle, op, src=src, dst=dst, count=count, after=deps)
    return build.program(
        input_chunks=program.input_chunks.tolist(),
        output_chunks=program.output_chunks.tolist(),
        scratch_chunks=program.scratch_chunks.tolist(),
        **{
            name: getattr(program, name)
            for name in ("collective", "num_chunks", "root", "in_place", "out_of_place", "name", "protocol")
        },
    )


def shift_waits(blocks: list[Block], changed: Block, position: int, by: int) -> None:
    """Move what waits for steps of a thread block from ``position`` on."""
    for block in blocks:
        if block.rank == changed.rank:
            block.steps = [
                (*step[:4], [(b, s + by if b == changed.place and s >= position else s) for b, s in step[4]])
                for step in block.steps
            ]


class Mutation:
    """One change of one program, its place drawn at random."""

    def __init__(self, program: Program, rng: random.Random) -> None:
        self.program, self.rng, self.blocks = program, rng, unpacked(program)

    def pick(self, fits: Callable[[Step], bool] = lambda _: True) -> tuple[Block, int] | None:
        """A step that fits."""
        found = [(b, i) for b in self.blocks for i, step in enumerate(b.steps) if fits(step)]
        return self.rng.choice(found) if found else None

    def change(self, block: Block, at: int, **parts: object) -> None:
        names = ("op", "src", "dst", "count", "deps")
        block.steps[at] = tuple(
            parts.get(name, old) for name, old in zip(names, block.steps[at], strict=True)
        )  # type: ignore[assignment]

    def drop_step(self) -> bool:
        chosen = self.pick(lambda step: step[0] != StepOp.NOP)
        if chosen is None:
            return False
        block, at = chosen
        del block.steps[at]
        shift_waits(self.blocks, block, at + 1, -1)
        return True

    def swap_steps(self) -> bool:
        found = [(b, i) for b in self.blocks for i in range(len(b.steps) - 1)]
        if not found:
            return False
        block, at = self.rng.choice(found)
        block.steps[at], block.steps[at + 1] = block.steps[at + 1], block.steps[at]
        return True

    def drop_dependency(self) -> bool:
        chosen = self.pick(lambda step: bool(step[4]))
        if chosen is None:
            return False
        block, at = chosen
        deps = list(block.steps[at][4])
        deps.pop(self.rng.randrange(len(deps)))
        self.change(block, at, deps=deps)
        return True

    def aim_elsewhere(self) -> bool:
        found = [block for block in self.blocks if block.send >= 0]
        ranks = self.program.num_ranks
        if not found or ranks < 3:
            return False
        block = self.rng.choice(found)
        block.send = self.rng.choice([rank for rank in range(ranks) if rank not in (block.rank, block.send)])
        return True

    def change_count(self) -> bool:
        chosen = self.pick(lambda step: step[0] != StepOp.NOP)
        if chosen is None:
            return False
        block, at = chosen
        self.change(block, at, count=max(0, block.steps[at][3] + self.rng.choice((-1, 1))))
        return True

    def change_offset(self) -> bool:
        side = self.rng.choice((1, 2))
        chosen = self.pick(lambda step: step[side] != NOWHERE and step[0] != StepOp.NOP)
        if chosen is None:
            return False
        block, at = chosen
        buffer, offset = block.steps[at][side]
        self.change(block, at, **{("src", "dst")[side - 1]: (buffer, offset + self.rng.choice((-1, 1)))})
        return True

    def change_buffer(self) -> bool:
        side = self.rng.choice((1, 2))
        chosen = self.pick(lambda step: step[side] != NOWHERE and step[0] != StepOp.NOP)
        if chosen is None:
            return False
        block, at = chosen
        buffer, offset = block.steps[at][side]
        self.change(block, at, **{("src", "dst")[side - 1]: ((buffer + self.rng.choice((1, 2))) % 3, offset)})
        return True

    def drop_reduce(self) -> bool:
        plain = {
            StepOp.REDUCE: StepOp.COPY,
            StepOp.RECV_REDUCE_COPY: StepOp.RECV,
            StepOp.RECV_REDUCE_COPY_SEND: StepOp.RECV_COPY_SEND,
        }
        chosen = self.pick(lambda step: step[0] in plain)
        if chosen is None:
            return False
        block, at = chosen
        self.change(block, at, op=plain[StepOp(block.steps[at][0])])
        return True

    def reduce_twice(self) -> bool:
        chosen = self.pick(lambda step: step[0] in (StepOp.REDUCE, StepOp.RECV_REDUCE_COPY))
        if chosen is None:
            return False
        block, at = chosen
        block.steps.insert(at + 1, block.steps[at])
        shift_waits(self.blocks, block, at + 1, 1)
        if block.steps[at][0] != StepOp.REDUCE:  # its message comes twice as well
            taken = sum(StepOp(step[0]).receives for step in block.steps[:at])
            for other in self.blocks:
                if (other.rank, other.send, other.channel) == (block.recv, block.rank, block.channel):
                    sends = [i for i, step in enumerate(other.steps) if StepOp(step[0]).sends]
                    step = other.steps[sends[taken]]
                    again: Step = (
                        StepOp.SEND,
                        step[2] if step[1] == NOWHERE else step[1],
                        NOWHERE,
                        step[3],
                        [],
                    )
                    other.steps.insert(sends[taken] + 1, again)
                    shift_waits(self.blocks, other, sends[taken] + 1, 1)
        return True

    def change_channel(self) -> bool:
        found = [block for block in self.blocks if block.send >= 0 or block.recv >= 0]
        if not found:
            return False
        self.rng.choice(found).channel += 1
        return True

    def other_place(self) -> bool:
        """Meant for memory that is shared, run in memory that is not, or the other way round."""
        in_place, apart = self.program.in_place, self.program.out_of_place
        if in_place == apart:
            return False
        self.program = replace(self.program, in_place=apart, out_of_place=in_place)
        return True


KINDS: dict[str, Callable[[Mutation], bool]] = {
    name: getattr(Mutation, name)
    for name in (
        "drop_step", "swap_steps", "drop_dependency", "aim_elsewhere", "change_count", "change_offset",
        "change_buffer", "drop_reduce", "reduce_twice", "change_channel", "other_place",
    )
}  # fmt: skip
"""Kinds of mutations by name."""


def mutant(program: Program, kind: str, rng: random.Random) -> Program | None:
    """The program after a change of that kind, or None where there is nothing to change."""
    mutation = Mutation(program, rng)
    return packed(mutation.program, mutation.blocks) if KINDS[kind](mutation) else None
