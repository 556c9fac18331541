"""Symbolic execution of programs: which chunk with whose contributions every address holds, and if the end is right.

A value is a chunk and the set of ranks whose contributions it has (:mod:`coppice.program.memory`). What a machine model
adds is how its operations move values; sums, and what must be there at the end, are the same for all of them. Adding
different chunks, or a contribution that is there already, is a failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from coppice.collectives import Collective
from coppice.program.memory import NOTHING, ProgramMemory

_EXAMPLES = 5


@dataclass
class SymbolicMemory(ABC):
    """The values at all addresses while a program is carried out, and the failures so far."""

    slot_noun: ClassVar[str] = "slot"  # What failures call a slot of the output

    memory: ProgramMemory  # Addresses, and what they hold at the start and must hold at the end
    per_chunk: int = 1  # Slots of a chunk of the program
    in_pieces: bool = False  # Failures name the piece of a chunk as well
    held: list[int] = field(init=False)  # Value at each address
    failures: list[str] = field(default_factory=list)  # The first few failures, a sentence each
    count: int = 0  # Number of failures
    slots: int = 0  # Number of final slots that were compared with what they must hold

    def __post_init__(self) -> None:
        """Put the values of the start where they lie."""
        self.held = self.memory.initial()

    @abstractmethod
    def name(self, actor: int) -> str:
        """A step or event in words."""

    def fail(self, sentence: str) -> None:
        """Note a failure."""
        self.count += 1
        if len(self.failures) < _EXAMPLES:
            self.failures.append(sentence)

    def sum(self, actor: int, one: list[int], other: list[int]) -> list[int]:
        """The sums of two runs of values; what cannot be added is noted, and united all the same.

        Args:
            actor: The step or event that adds ``other`` to ``one``.
            one: Values, NOTHING where what is wrong has been noted before.
        """
        ranks = self.memory.layout.num_ranks
        for a, b in zip(one, other, strict=True):
            if NOTHING in (a, b):
                continue
            if (a ^ b) >> ranks:
                self.fail(f"{self.name(actor)} adds {self._chunk(b)} to {self._chunk(a)}: expected the same.")
            elif common := a & b & ((1 << ranks) - 1):
                self.fail(
                    f"{self.name(actor)} adds the contribution of rank {_lowest(common)} to {self._chunk(a)} a second "
                    "time."
                )
        return [a | b for a, b in zip(one, other, strict=True)]

    def check_end(self) -> None:
        """Compare every slot of every output with what the collective promises."""
        for rank, address, values in self.memory.end:
            found = self.held[address : address + len(values)]
            self.slots += len(values)
            if found == list(values):
                continue
            for slot, (have, want) in enumerate(zip(found, values, strict=True)):
                if have != want:
                    where = f"{self.slot_noun} {slot // self.per_chunk} of the output of rank {rank}"
                    self.fail(f"{where} {self._difference(have, want)}")

    def _difference(self, have: int, want: int) -> str:
        """What is wrong with a final value, as the end of a sentence."""
        if have == NOTHING:
            return f"is never written: expected {self._chunk(want)}."
        if (have ^ want) >> self.memory.layout.num_ranks:
            return f"ends with {self._chunk(have)}: expected {self._chunk(want)}."
        if missing := want & ~have:
            return (
                f"ends with {self._chunk(want)} without the contribution of rank {_lowest(missing)} "
                f"({missing.bit_count()} missing)."
            )
        return (
            f"ends with {self._chunk(want)} and the contribution of rank {_lowest(have & ~want)}, which does not "
            "belong there."
        )

    def _chunk(self, value: int) -> str:
        """The chunk of a value in words."""
        layout = self.memory.layout
        chunk, piece = divmod(value >> layout.num_ranks, self.per_chunk)
        of = f"piece {piece} of " if self.in_pieces else ""
        if layout.collective is Collective.ALL_TO_ALL:
            source, chunk = divmod(chunk, layout.num_chunks // self.per_chunk)
            return f"{of}chunk {chunk} of rank {source}"
        return f"{of}chunk {chunk}"


def _lowest(members: int) -> int:
    """Smallest member of a set of ranks."""
    return (members & -members).bit_length() - 1
