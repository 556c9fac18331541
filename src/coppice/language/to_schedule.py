"""The schedule that a program over chunks writes down: which rank sends which chunk to whom, copied or added.

Slots, channels and thread blocks are left behind. What waits in scratch memory to be added counts from the operation
that adds it. A schedule knows one value of a chunk at a rank, the latest; a program that sends an earlier one once more
is no schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coppice.errors import InputError
from coppice.language.chunk_program import ChunkProgram
from coppice.program.memory import ProgramMemory, memory_of
from coppice.program.moves import Move, StagedTrace, check_ranks, schedule_of_moves
from coppice.program.two_sided.operations.operation import SlotOperation
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology


def schedule_of(program: ChunkProgram, topology: Topology) -> Schedule:
    """The schedule of a program that has been checked.

    Args:
        topology: Where its ranks are; messages take default routes.

    Returns:
        Transfers without steps if an order of rows says it all; otherwise with the fewest steps.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> program = ChunkProgram("broadcast", ranks=3)
        >>> first = program.chunk(0, "input", 0)
        >>> for rank in (1, 2):
        ...     _ = first.copy(rank, "output")
        >>> schedule_of(program, preset("star", gpus=3))
        Schedule(broadcast on 'star of 3': 1 chunk, 2 transfers)
    """
    layout = program.layout()
    check_ranks(layout, topology)
    operations = program.operations()
    trace = _OperationTrace(memory_of(layout, in_place=program.in_place), operations)
    trace.run()
    schedule = schedule_of_moves(layout, topology, trace.unit_moves())
    return schedule if program.demands is None else _without_empty(schedule, program.demands)


def _without_empty(schedule: Schedule, demands: Sequence[Sequence[int]]) -> Schedule:
    """The schedule without the chunks of blocks that nobody asks for."""
    weight = np.array(demands, dtype=np.int64).reshape(-1)
    kept = weight[schedule.chunk_slot] > 0
    number = np.cumsum(kept) - 1
    return replace(
        schedule,
        slot_weight=weight,
        chunk_slot=schedule.chunk_slot[kept],
        chunk_share=schedule.chunk_share[kept],
        chunk=number[schedule.chunk].astype(np.int32),
    )


class _OperationTrace(StagedTrace):
    """Carries out operations one after the other, and notes the moves of every chunk."""

    def __init__(self, memory: ProgramMemory, operations: Sequence[SlotOperation]) -> None:
        super().__init__(memory)
        self.memory, self.operations = memory, operations

    def strange(self, actor: int) -> InputError:
        """The error for an operation that handles another value than the one of its rank."""
        msg = (
            f"{self.operations[actor].where}: expected the latest value of a chunk at its rank, found an earlier one: "
            "a plan knows one value of each chunk at a rank; send or add it before it is added to."
        )
        return InputError(msg)

    def run(self) -> None:
        """Carry out all operations."""
        for number, each in enumerate(self.operations):
            src = int(self.memory.base[each.src_buffer, each.src_rank]) + each.src_offset
            dst = int(self.memory.base[each.dst_buffer, each.dst_rank]) + each.dst_offset
            for slot in range(each.count):
                if each.src_rank == each.dst_rank:
                    self._within(number, each, src + slot, dst + slot)
                else:
                    self._across(number, each, src + slot, dst + slot)

    def _within(self, number: int, each: SlotOperation, src: int, dst: int) -> None:
        if each.adds:
            self.words[dst] = self.reduce(number, each.dst_rank, src, dst, 2 * number)
            return
        self.staged.pop(dst, None)
        if src in self.staged:
            self.staged[dst] = self.staged[src]
        self.words[dst] = self.words[src]

    def _across(self, number: int, each: SlotOperation, src: int, dst: int) -> None:
        sender, receiver, value = each.src_rank, each.dst_rank, self.words[src]
        if src in self.staged:
            self.take(number, sender, value, src)
        if self.held.get((sender, self.chunk_of(value))) != value:
            raise self.strange(number)
        move = Move(sender, receiver, Op.REDUCE if each.adds else Op.COPY, 2 * number, 2 * number + 1)
        if not each.adds:
            self.arrive(receiver, value, dst, move)
            self.words[dst] = value
            return
        here = self.words[dst]
        if dst in self.staged:
            self.take(number, receiver, here, dst)
        self.add(number, receiver, here, value, move)
        self.words[dst] = here | value
