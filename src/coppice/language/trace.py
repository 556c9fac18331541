"""State of slots while a chunk program is traced: every operation is checked and recorded with its line.

Where somebody's program is: the file and line that called into Coppice.

What slots hold while a program is written down: symbolic values, who wrote them, and who has read them since.

A value is a chunk and the set of ranks whose contributions it has, as in :mod:`coppice.program.memory`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.program.dialects.thread_blocks.operations.instructions import Hints, SlotOperation
from coppice.program.dialects.thread_blocks.operations.lower import SlotLayout
from coppice.program.memory import NOTHING, Buffer, MemoryLayout, memory_of
from coppice.text import plural

_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"


def caller() -> str:
    """``ring.py:12``: innermost caller's line outside Coppice."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (as loggers do; a traceback costs too much)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else _place(frame.f_code.co_filename, frame.f_lineno)


def raised_at(trace: TracebackType | None, file: str) -> str:
    """Innermost line of a file in a traceback, or its first line.

    Args:
        file: Name under which the file was compiled.
    """
    line = 1
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return _place(file, line)


def _place(file: str, line: int) -> str:
    return f"{_name(file)}:{line}"


@cache
def _name(file: str) -> str:
    return Path(file).name


_SHOWN = 6


@dataclass(slots=True)
class SlotState:
    """State of one slot of a buffer."""

    value: int = NOTHING  # What it holds
    version: int = 0  # How often it was written
    writer: int = -1  # Operation that wrote it last, or -1
    readers: list[int] = field(default_factory=list)  # Operations that have read it since
    where: str = ""  # Line that wrote it last, or ""


def value_in_words(value: int, layout: MemoryLayout) -> str:
    """Describe a value."""
    if value == NOTHING:
        return "nothing"
    ranks, chunks = layout.num_ranks, layout.num_chunks
    chunk, members = value >> ranks, value & ((1 << ranks) - 1)
    if members.bit_count() > 1:
        return f"the sum of chunk {chunk} over {members_in_words(members)}"
    rank = members.bit_length() - 1
    if layout.collective is Collective.ALL_TO_ALL:
        chunk %= chunks
    elif layout.collective in (Collective.ALL_GATHER, Collective.GATHER):
        chunk -= rank * (chunks // ranks)
    return f"chunk {chunk} of the input of rank {rank}"


def members_in_words(members: int) -> str:
    """``ranks 0, 2-5``.

    >>> members_in_words(0b111101), members_in_words(0b10)
    ('ranks 0, 2-5', 'rank 1')
    """
    found = [rank for rank in range(members.bit_length()) if members >> rank & 1]
    parts = list(_runs(found))
    shown = ", ".join(parts[:_SHOWN]) + (f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else "")
    return f"rank{'s' if len(found) > 1 else ''} {shown}"


def _runs(ranks: list[int]) -> Iterator[str]:
    """Runs of neighbours."""
    first = ranks[0]
    for one, other in pairwise([*ranks, -1]):
        if other != one + 1:
            yield str(first) if first == one else f"{first}-{one}"
            first = other


MOST_SLOTS = 2**22
"""Most slots of inputs and outputs, and most operations."""

_MOST_SCRATCH = 2**16
_BUFFERS = {"input": Buffer.INPUT, "output": Buffer.OUTPUT}


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """Snapshot of consecutive slots of a rank."""

    rank: int  # The rank
    buffer: str  # Name of the buffer
    index: int  # First slot
    size: int  # Number of slots
    versions: tuple[int, ...]  # How often each had been written
    where: str  # Line that took the reference

    def __str__(self) -> str:
        last = "" if self.size == 1 else f":{self.index + self.size}"
        return f"{self.buffer}[{self.index}{last}] of rank {self.rank}"


@dataclass(frozen=True, slots=True)
class _Noted:
    """An operation with the names of its buffers, since scratch memory is laid out in the end."""

    src: tuple[int, str, int]
    dst: tuple[int, str, int]
    count: int
    adds: bool
    where: str
    hints: Hints
    before: frozenset[int]


class SlotTrace:
    """State of all slots of all ranks, and the recorded operations.

    Args:
        layout: Sizes of inputs and outputs.
        in_place: They share memory.
        demands: For an all-to-all, which blocks there are; None is all.
        where: Line that began the program.
    """

    def __init__(
        self, layout: SlotLayout, *, in_place: bool, demands: Sequence[Sequence[int]] | None, where: str
    ) -> None:
        self._layout, self._demands, self._where = layout, demands, where
        self._memory = memory_of(layout, in_place=in_place)
        self._main = [SlotState(value) for value in self._memory.initial()]
        self._scratch: dict[tuple[int, str], list[SlotState]] = {}
        self._notes: list[_Noted] = []
        for rank, first, values in self._memory.start if demands is not None else ():
            for slot in range(len(values)):
                if not self._asked(rank, slot // layout.block):
                    self._main[first + slot].value = NOTHING

    def __len__(self) -> int:
        return len(self._notes)

    def take(self, rank: Any, buffer: Any, index: Any, size: Any) -> HeldSlots:
        """Reference the current content of slots."""
        where = caller()
        rank, index, size = self._slots(rank, buffer, index, size, where)
        states = self._states(rank, buffer, index, size, grow=False)
        for slot, state in enumerate([*states, *[SlotState()] * (size - len(states))]):
            if state.value == NOTHING:
                name = _in_words(buffer)
                raise CheckError(
                    f"{where}: missing chunk: slot {index + slot} of {name} of rank {rank} holds nothing: write to it "
                    "before it is read."
                )
        return self.held(rank, buffer, index, size, where)

    def held(self, rank: int, buffer: str, index: int, size: int, where: str) -> HeldSlots:
        """Validate slots, and return their snapshot."""
        versions = tuple(state.version for state in self._states(rank, buffer, index, size))
        return HeldSlots(rank, buffer, index, size, versions, where)

    def fresh(self, ref: HeldSlots, where: str) -> None:
        """Refuse references to slots overwritten since."""
        for slot, (state, version) in enumerate(zip(self._states_of(ref), ref.versions, strict=True)):
            if state.version != version:
                name = f"slot {ref.index + slot} of {_in_words(ref.buffer)} of rank {ref.rank}"
                raise CheckError(
                    f"{where}: race: {name}, to which {ref.where} took a reference, was overwritten by {state.where}: "
                    "take a new reference, or keep the value elsewhere."
                )

    def copy(self, ref: HeldSlots, rank: Any, buffer: Any, index: Any, hints: Hints) -> HeldSlots:
        """Copy slots, and return the target's snapshot; in-place copies are no operation."""
        where = caller()
        self.fresh(ref, where)
        rank, index, _ = self._slots(rank, buffer, ref.index if index is None else index, ref.size, where)
        source, target = self._states_of(ref), self._states(rank, buffer, index, ref.size)
        if all(one is other for one, other in zip(source, target, strict=True)):
            return self.held(rank, buffer, index, ref.size, where)  # in place, it is there already
        if any(one is other for one in source for other in target):
            raise InputError(
                f"{where}: expected slots that do not overlap, found a copy of {ref} onto itself."
            )
        before = {state.writer for state in source}
        for slot, state in enumerate(target):
            self._ordered(state, before, f"slot {index + slot} of {_in_words(buffer)} of rank {rank}", where)
        self._note(ref, (rank, buffer, index), source, target, where, hints, adds=False)
        return self.held(rank, buffer, index, ref.size, where)

    def reduce(self, ref: HeldSlots, other: HeldSlots, hints: Hints) -> HeldSlots:
        """Reduce the second slots into the first, and return their snapshot."""
        where = caller()
        self.fresh(ref, where)
        self.fresh(other, where)
        if ref.size != other.size:
            raise InputError(f"{where}: expected as many chunks to add, found {ref.size} and {other.size}.")
        target, source = self._states_of(ref), self._states_of(other)
        if any(one is two for one in source for two in target):
            raise InputError(f"{where}: expected slots that do not overlap, found {ref} added to itself.")
        for one, two in zip(target, source, strict=True):
            self._addable(one.value, two.value, where)
        self._note(other, (ref.rank, ref.buffer, ref.index), source, target, where, hints, adds=True)
        return self.held(ref.rank, ref.buffer, ref.index, ref.size, where)

    def check(self) -> None:
        """Check all outputs against the collective."""
        wrong = list(self._wrong())
        if wrong:
            more = f" ({len(wrong) - 1} more of the outputs)" if len(wrong) > 1 else ""
            raise CheckError(f"{wrong[0]}{more}.")

    def layout(self) -> SlotLayout:
        """Sizes of all buffers, with scratch memory laid out."""
        scratch = np.zeros(self._layout.num_ranks, dtype=np.int64)
        for (rank, _), states in self._scratch.items():
            scratch[rank] += len(states)
        return replace(self._layout, scratch_chunks=scratch)

    def operations(self) -> list[SlotOperation]:
        """All operations, in program order."""
        first: dict[tuple[int, str], int] = {}
        used = [0] * self._layout.num_ranks
        for (rank, name), states in self._scratch.items():
            first[rank, name] = used[rank]
            used[rank] += len(states)

        def slot(place: tuple[int, str, int]) -> tuple[int, int, int]:
            rank, name, index = place
            if name in _BUFFERS:
                return rank, int(_BUFFERS[name]), index
            return rank, int(Buffer.SCRATCH), first[rank, name] + index

        found = []
        for note in self._notes:
            (src, src_buffer, src_offset), (dst, dst_buffer, dst_offset) = slot(note.src), slot(note.dst)
            found.append(
                SlotOperation(
                    src_rank=src,
                    src_buffer=src_buffer,
                    src_offset=src_offset,
                    dst_rank=dst,
                    dst_buffer=dst_buffer,
                    dst_offset=dst_offset,
                    count=note.count,
                    adds=note.adds,
                    where=note.where,
                    hints=note.hints,
                )
            )
        return found

    def _asked(self, source: int, target: int) -> bool:
        """Whether a block goes from one rank to another."""
        return self._demands is None or bool(self._demands[source][target])

    def _wrong(self) -> Iterator[str]:
        """Slots of outputs that do not hold what they should, a sentence each."""
        for rank, first, values in self._memory.end:
            for slot, wanted in enumerate(values):
                state = self._main[first + slot]
                if state.value == wanted or not self._asked(slot // self._layout.block, rank):
                    continue
                place = (
                    f"{state.where or self._where}: wrong result: slot {slot} of the output of rank {rank}"
                )
                should = value_in_words(wanted, self._layout)
                if state.value == NOTHING:
                    yield f"{place} is never written: it should hold {should}"
                else:
                    last = "" if state.where else ", as at the start"
                    found = value_in_words(state.value, self._layout)
                    yield f"{place} ends with {found}{last}: it should hold {should}"

    def _slots(self, rank: Any, buffer: Any, index: Any, size: Any, where: str) -> tuple[int, int, int]:
        """A rank, a first slot and a number of slots that can be."""
        rank, index, size = whole(rank, "rank"), whole(index, "index"), whole(size, "size")
        if not 0 <= rank < self._layout.num_ranks:
            raise InputError(
                f"{where}: expected a rank from 0 to {self._layout.num_ranks - 1}, found {rank}."
            )
        if not isinstance(buffer, str) or not buffer:
            raise InputError(
                f"{where}: expected input, output or a name of scratch memory as buffer, found {buffer!r}."
            )
        most = int(self._memory.size[_BUFFERS[buffer], rank]) if buffer in _BUFFERS else _MOST_SCRATCH
        if index < 0 or size < 1 or index + size > most:
            found = f"slot {index}" if size == 1 else f"slots {index} to {index + size - 1}"
            raise InputError(
                f"{where}: {_in_words(buffer)} of rank {rank} has {plural(most, 'slot')}, found {found}."
            )
        return rank, index, size

    def _states(self, rank: int, buffer: str, index: int, size: int, *, grow: bool = True) -> list[SlotState]:
        """Slots that can be; scratch memory grows to hold them."""
        if buffer in _BUFFERS:
            first = int(self._memory.base[_BUFFERS[buffer], rank]) + index
            return self._main[first : first + size]
        if not grow:
            return self._scratch.get((rank, buffer), [])[index : index + size]
        states = self._scratch.setdefault((rank, buffer), [])
        states.extend(SlotState() for _ in range(index + size - len(states)))
        return states[index : index + size]

    def _states_of(self, ref: HeldSlots) -> list[SlotState]:
        return self._states(ref.rank, ref.buffer, ref.index, ref.size)

    def _addable(self, one: int, other: int, where: str) -> None:
        ranks = self._layout.num_ranks
        if not self._layout.collective.reduces:
            raise CheckError(
                f"{where}: wrong result: {self._layout.collective} adds nothing up: copy instead."
            )
        if (one ^ other) >> ranks:
            raise CheckError(
                f"{where}: wrong result: adds {value_in_words(other, self._layout)} to "
                f"{value_in_words(one, self._layout)}: expected the same chunk."
            )
        if common := one & other & ((1 << ranks) - 1):
            raise CheckError(
                f"{where}: wrong result: adds the contribution of {members_in_words(common)} to chunk {one >> ranks} a "
                "second time."
            )

    def _ordered(self, state: SlotState, before: set[int], slot: str, where: str) -> None:
        """Refuse a write that nothing orders behind the last one: nobody has read what that wrote."""
        if state.writer < 0 or state.readers or self._comes_from(before, state.writer):
            return
        raise CheckError(
            f"{where}: race: this and {state.where} write {slot} in any order, as nothing between them reads it: "
            "write elsewhere, or leave one of them out."
        )

    def _comes_from(self, later: set[int], earlier: int) -> bool:
        """Whether some operation depends on an earlier one."""
        open_, seen = [each for each in later if each >= earlier], set(later)
        while open_:
            each = open_.pop()
            if each == earlier:
                return True
            more = [one for one in self._notes[each].before if one >= earlier and one not in seen]
            seen.update(more)
            open_ += more
        return False

    def _note(
        self,
        ref: HeldSlots,
        place: tuple[int, str, int],
        source: list[SlotState],
        target: list[SlotState],
        where: str,
        hints: Hints,
        *,
        adds: bool,
    ) -> None:
        number = len(self._notes)
        if number >= MOST_SLOTS:
            raise InputError(
                f"{where}: expected at most {MOST_SLOTS:,} operations, found more: does a loop not end?"
            )
        before = {state.writer for state in (*source, *target)}
        before.update(reader for state in target for reader in state.readers)
        before.discard(-1)
        for one, two in zip(source, target, strict=True):
            one.readers.append(number)
            two.value = one.value | two.value if adds else one.value
            two.version += 1
            two.writer, two.where, two.readers = number, where, []
        self._notes.append(
            _Noted((ref.rank, ref.buffer, ref.index), place, ref.size, adds, where, hints, frozenset(before))
        )


def whole(value: Any, name: str) -> int:
    """Validate an integer; booleans are refused."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise InputError(f"{caller()}: expected a whole number as {name}, found {value!r}.")


def _in_words(buffer: str) -> str:
    return f"the {buffer}" if buffer in _BUFFERS else f"the scratch memory {buffer[:40]!r}"
