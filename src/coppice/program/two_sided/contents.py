"""Symbolic execution of a program: which chunk with whose contributions every slot holds, after every step.

A value is a chunk and the set of ranks whose contributions it has (:mod:`coppice.program.memory`). Sending, copying or
adding what nothing was written to is a failure, as is adding different chunks, or a contribution that is there already.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import eq

from coppice.program.memory import NOTHING, Memory
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.structure import Messages, op_mask, step_name

__all__ = ["Contents"]

_EXAMPLES = 5


@dataclass
class Contents:
    """Runs the steps of a program one after the other.

    Attributes:
        program: What is run.
        memory: Its slots.
        failures: The first few failures, a sentence each.
        count: Number of failures.
        slots: Number of final slots that were compared with what they must hold.
    """

    program: Program
    memory: Memory
    failures: list[str] = field(default_factory=list)
    count: int = 0
    slots: int = 0

    def run(self, order: list[int], messages: Messages) -> None:
        """Carry out all steps in an order in which they can take place, and judge the outcome."""
        words = [NOTHING] * self.memory.words
        for first, values in self.memory.start:
            words[first : first + len(values)] = values
        self._steps(words, order, messages)
        self._check_end(words)

    def _fail(self, sentence: str) -> None:
        self.count += 1
        if len(self.failures) < _EXAMPLES:
            self.failures.append(sentence)

    def _steps(self, words: list[int], order: list[int], messages: Messages) -> None:
        program, base = self.program, self.memory.base
        rank = program.block_rank[program.step_block]
        src = (base[program.src_buffer, rank] + program.src_offset).tolist()
        dst = (base[program.dst_buffer, rank] + program.dst_offset).tolist()
        count, ops = program.count.tolist(), program.op.tolist()
        flags = {
            name: op_mask(program, lambda op, name=name: bool(getattr(op, name))).tolist()  # type: ignore[misc]
            for name in ("receives", "sends", "reads_src", "writes_dst")
        }
        receives, sends = flags["receives"], flags["sends"]
        reads, writes = flags["reads_src"], flags["writes_dst"]
        message_of: list[int] = [-1] * program.num_steps
        for send, recv in zip(messages.send.tolist(), messages.recv.tolist(), strict=True):
            message_of[recv] = send
        travelling: dict[int, list[int]] = {}
        for step in order:
            length, op = count[step], ops[step]
            value: list[int] = []
            if reads[step]:
                value = words[src[step] : src[step] + length]
                if NOTHING in value:
                    self._fail(self._unwritten(step, int(program.src_offset[step]), value))
            if receives[step]:
                message = travelling.pop(message_of[step])
                value = self._sum(step, value, message) if reads[step] else message
            elif op == StepOp.REDUCE:
                held = words[dst[step] : dst[step] + length]
                if NOTHING in held:
                    self._fail(self._unwritten(step, int(program.dst_offset[step]), held))
                value = self._sum(step, held, value)
            if writes[step]:
                words[dst[step] : dst[step] + length] = value
            if sends[step]:
                travelling[step] = value

    def _sum(self, step: int, one: list[int], other: list[int]) -> list[int]:
        """The sums of two runs of slots; what cannot be added is noted, and united all the same."""
        ranks = self.program.num_ranks
        for a, b in zip(one, other, strict=True):
            if a == NOTHING or b == NOTHING:
                continue
            if (a ^ b) >> ranks:
                self._fail(
                    f"{step_name(self.program, step)} adds {self._told(b)} to {self._told(a)}: expected the same."
                )
            elif common := a & b & ((1 << ranks) - 1):
                self._fail(
                    f"{step_name(self.program, step)} adds the contribution of rank {_lowest(common)} to "
                    f"{self._told(a)} a second time."
                )
        return [a | b for a, b in zip(one, other, strict=True)]

    def _told(self, value: int) -> str:
        """The chunk of a value in words."""
        chunk = value >> self.program.num_ranks
        if len(self.memory.start) and self.program.collective == "all_to_all":
            source, chunk = divmod(chunk, self.program.num_chunks)
            return f"chunk {chunk} of rank {source}"
        return f"chunk {chunk}"

    def _unwritten(self, step: int, first: int, values: list[int]) -> str:
        slot = first + values.index(NOTHING)
        program = self.program
        buffer = program.src_buffer if program.src_offset[step] == first else program.dst_buffer
        name = ("input", "output", "scratch")[int(buffer[step])]
        return f"{step_name(program, step)} reads slot {slot} of the {name}, which nothing was written to."

    def _check_end(self, words: list[int]) -> None:
        ranks = self.program.num_ranks
        for rank, address, first, values in self.memory.end:
            found = words[address : address + len(values)]
            self.slots += len(values)
            if all(map(eq, found, values)):
                continue
            for place, (have, want) in enumerate(zip(found, values, strict=True)):
                if have == want:
                    continue
                where = f"slot {first + place} of the output of rank {rank}"
                if have == NOTHING:
                    self._fail(f"{where} is never written: expected {self._told(want)}.")
                elif (have ^ want) >> ranks:
                    self._fail(f"{where} ends with {self._told(have)}: expected {self._told(want)}.")
                else:
                    missing = want & ~have
                    self._fail(
                        f"{where} ends with {self._told(want)} without the contribution of rank "
                        f"{_lowest(missing)} ({missing.bit_count()} missing)."
                        if missing
                        else f"{where} ends with {self._told(want)} and the contribution of rank "
                        f"{_lowest(have & ~want)}, which does not belong there."
                    )


def _lowest(members: int) -> int:
    """Smallest member of a set of ranks."""
    return (members & -members).bit_length() - 1
