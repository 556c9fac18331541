"""Symbolic execution of a two-sided program, step by step: which chunk with whose contributions every slot holds.

Sending, copying or adding what nothing was written to is a failure, besides those of :mod:`coppice.program.symbolic`.
"""

from __future__ import annotations

from coppice.program.memory import NOTHING, ProgramMemory
from coppice.program.symbolic import SymbolicMemory
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.structure import MessagePairs, step_addresses, step_name

__all__ = ["Contents"]


class Contents(SymbolicMemory):
    """Runs the steps of a program one after the other.

    Args:
        program: What is run.
        memory: Its slots.
    """

    def __init__(self, program: Program, memory: ProgramMemory) -> None:
        super().__init__(memory)
        self.program = program

    def name(self, actor: int) -> str:
        """A step in words."""
        return step_name(self.program, actor)

    def run(self, order: list[int], messages: MessagePairs) -> None:
        """Carry out all steps in an order in which they can take place, and judge the outcome."""
        program, held = self.program, self.held
        src, dst = (each.tolist() for each in step_addresses(program, self.memory))
        count, ops = program.count.tolist(), program.op.tolist()
        receives, sends = program.receives.tolist(), program.sends.tolist()
        reads, writes = program.reads_src.tolist(), program.writes_dst.tolist()
        message_of: list[int] = [-1] * program.num_steps
        for send, recv in zip(messages.send.tolist(), messages.recv.tolist(), strict=True):
            message_of[recv] = send
        travelling: dict[int, list[int]] = {}
        for step in order:
            length, op = count[step], ops[step]
            value: list[int] = []
            if reads[step]:
                value = held[src[step] : src[step] + length]
                if NOTHING in value:
                    self.fail(self._unwritten(step, int(program.src_offset[step]), value))
            if receives[step]:
                message = travelling.pop(message_of[step])
                value = self.sum(step, value, message) if reads[step] else message
            elif op == StepOp.REDUCE:
                there = held[dst[step] : dst[step] + length]
                if NOTHING in there:
                    self.fail(self._unwritten(step, int(program.dst_offset[step]), there))
                value = self.sum(step, there, value)
            if writes[step]:
                held[dst[step] : dst[step] + length] = value
            if sends[step]:
                travelling[step] = value
        self.check_end()

    def _unwritten(self, step: int, first: int, values: list[int]) -> str:
        slot = first + values.index(NOTHING)
        program = self.program
        buffer = program.src_buffer if program.src_offset[step] == first else program.dst_buffer
        name = ("input", "output", "scratch")[int(buffer[step])]
        return f"{step_name(program, step)} reads slot {slot} of the {name}, which nothing was written to."
