"""Symbolic execution of a one-sided program: which chunk with whose contributions every word holds.

Values are those of :mod:`coppice.program.memory`. Moving or adding what nothing was written to is a failure, as is
adding different chunks, a contribution that is there already, or reading packets as data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coppice.collectives import Collective
from coppice.program.memory import NOTHING
from coppice.program.one_sided.events import Events, Touch
from coppice.program.one_sided.program import Act

__all__ = ["OneSidedContents"]

_EXAMPLES = 5


@dataclass
class OneSidedContents:
    """Carries out events one after the other.

    Attributes:
        events: What is run.
        failures: The first few failures, a sentence each.
        count: Number of failures.
        words_checked: Number of final words that were compared with what they must hold.
    """

    events: Events
    failures: list[str] = field(default_factory=list)
    count: int = 0
    words_checked: int = 0
    _held: list[int] = field(default_factory=list)
    _packed: bytearray = field(default_factory=bytearray)

    def run(self, order: Sequence[int]) -> None:
        """Carry out all events in an order in which they can take place, and judge the outcome."""
        memory = self.events.words.memory
        self._held = [NOTHING] * memory.words
        self._packed = bytearray(memory.words)
        for first, values in memory.start:
            self._held[first : first + len(values)] = values
        for event in order:
            if event in self.events.writes:
                self._carry_out(event)
        self._check_end()

    def _fail(self, sentence: str) -> None:
        self.count += 1
        if len(self.failures) < _EXAMPLES:
            self.failures.append(sentence)

    def _carry_out(self, event: int) -> None:
        op = self.events.steps[self.events.step_of[event]].op
        reads, writes = self.events.reads.get(event, ()), self.events.writes[event]
        if op is not None and op.act is Act.SUM:
            total = self._read(event, reads[0])
            for touch in reads[1:]:
                total = self._sum(event, total, self._read(event, touch))
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
            values = [self._held[place] for place in places]
            if NOTHING in values:
                self._fail(
                    f"{self.events.name(event)} reads {self._slot(touch, values)}, which nothing was written to."
                )
            elif any(bool(self._packed[place]) != touch.slots.packets for place in places):
                forms = ("data", "packets") if touch.slots.packets else ("packets", "data")
                self._fail(f"{self.events.name(event)} reads as {forms[1]} what was written as {forms[0]}.")
            total = values if total is None else self._sum(event, total, values)
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
                self._held[address] = values[place // stride]
                self._packed[address] = touch.slots.packets

    def _sum(self, event: int, one: list[int], other: list[int]) -> list[int]:
        ranks = self.events.program.num_ranks
        for a, b in zip(one, other, strict=True):
            if NOTHING in (a, b):
                continue
            if (a ^ b) >> ranks:
                self._fail(
                    f"{self.events.name(event)} adds {self._told(b)} to {self._told(a)}: expected the same."
                )
            elif common := a & b & ((1 << ranks) - 1):
                self._fail(
                    f"{self.events.name(event)} adds the contribution of rank {_lowest(common)} to {self._told(a)} a "
                    "second time."
                )
        return [a | b for a, b in zip(one, other, strict=True)]

    def _told(self, value: int) -> str:
        """The chunk of a value in words."""
        words, program = self.events.words, self.events.program
        chunk, word = divmod(value >> program.num_ranks, words.per_chunk)
        piece = f"piece {word} of " if words.piece else ""
        if program.collective is Collective.ALL_TO_ALL:
            source, chunk = divmod(chunk, program.num_chunks)
            return f"{piece}chunk {chunk} of rank {source}"
        return f"{piece}chunk {chunk}"

    def _check_end(self) -> None:
        ranks = self.events.program.num_ranks
        per_chunk = self.events.words.per_chunk
        for rank, address, first, values in self.events.words.memory.end:
            found = self._held[address : address + len(values)]
            self.words_checked += len(values)
            if found == list(values):
                continue
            for place, (have, want) in enumerate(zip(found, values, strict=True)):
                if have == want:
                    continue
                where = f"chunk {(first + place) // per_chunk} of the output of rank {rank}"
                if have == NOTHING:
                    self._fail(f"{where} is never written: expected {self._told(want)}.")
                elif (have ^ want) >> ranks:
                    self._fail(f"{where} ends with {self._told(have)}: expected {self._told(want)}.")
                elif missing := want & ~have:
                    self._fail(
                        f"{where} ends with {self._told(want)} without the contribution of rank {_lowest(missing)} "
                        f"({missing.bit_count()} missing)."
                    )
                else:
                    self._fail(
                        f"{where} ends with {self._told(want)} and the contribution of rank {_lowest(have & ~want)}, "
                        "which does not belong there."
                    )


def _lowest(members: int) -> int:
    """Smallest member of a set of ranks."""
    return (members & -members).bit_length() - 1
