"""Symbolic execution of a one-sided program, event by event: which chunk with whose contributions every word holds.

Moving or adding what nothing was written to, and reading packets as data, are failures besides those of
:mod:`coppice.program.symbolic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from coppice.program.memory import NOTHING
from coppice.program.one_sided.events import Events, Touch
from coppice.program.one_sided.program import Act
from coppice.program.symbolic import SymbolicMemory

__all__ = ["OneSidedContents"]


class OneSidedContents(SymbolicMemory):
    """Carries out events one after the other.

    Args:
        events: What is run.
    """

    slot_noun: ClassVar[str] = "chunk"

    def __init__(self, events: Events) -> None:
        words = events.words
        super().__init__(words.memory, words.per_chunk, in_pieces=words.piece > 0)
        self.events = events
        self._packed = bytearray(words.memory.words)

    def name(self, actor: int) -> str:
        """An event in words."""
        return self.events.name(actor)

    def run(self, order: Sequence[int]) -> None:
        """Carry out all events in an order in which they can take place, and judge the outcome."""
        for event in order:
            if event in self.events.writes:
                self._carry_out(event)
        self.check_end()

    def _carry_out(self, event: int) -> None:
        op = self.events.steps[self.events.step_of[event]].op
        reads, writes = self.events.reads.get(event, ()), self.events.writes[event]
        if op is not None and op.act is Act.SUM:
            total = self._read(event, reads[0])
            for touch in reads[1:]:
                total = self.sum(event, total, self._read(event, touch))
            for touch in writes:
                self._write(touch, total)
            return
        for source, target in zip(reads, writes, strict=True):
            self._write(target, self._read(event, source))

    def _read(self, event: int, touch: Touch) -> list[int]:
        """The values of some words; of several ranks, their sum."""
        total: list[int] | None = None
        stride = 2 if touch.slots.packets else 1
        for part in touch.parts:
            places = part.tolist()[::stride]
            values = [self.held[place] for place in places]
            if NOTHING in values:
                self.fail(
                    f"{self.name(event)} reads {self._slot(touch, values)}, which nothing was written to."
                )
            elif any(bool(self._packed[place]) != touch.slots.packets for place in places):
                forms = ("data", "packets") if touch.slots.packets else ("packets", "data")
                self.fail(f"{self.name(event)} reads as {forms[1]} what was written as {forms[0]}.")
            total = values if total is None else self.sum(event, total, values)
        return total or []

    def _slot(self, touch: Touch, values: list[int]) -> str:
        slots, words = touch.slots, self.events.words
        chunk = slots.index + values.index(NOTHING) // words.per_chunk
        return f"chunk {chunk} of the {slots.buffer.name.lower()} of rank {slots.ranks[0]}"

    def _write(self, touch: Touch, values: list[int]) -> None:
        stride = 2 if touch.slots.packets else 1
        for part in touch.parts:
            places = part.tolist()
            for place, address in enumerate(places):
                self.held[address] = values[place // stride]
                self._packed[address] = touch.slots.packets
