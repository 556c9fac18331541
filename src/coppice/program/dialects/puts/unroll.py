"""The events of a one-sided program as an execution: what they read, make and write, and what comes before what.

Besides what thread blocks do there is the caller: at its beginning and at its end a rank's memory belongs to it, as if
all of it were written then. Packets have a flag beside every word: two words of memory for one of a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.puts.events import Events, Touch
from coppice.program.dialects.puts.program import Act, Slots
from coppice.program.order import MemoryAccesses, Points, ProgramExecution, Values
from coppice.rows import inverse

_Ints = NDArray[np.int64]
_NONE = -1


class EventAccesses:
    """What the events of a program do to memory.

    Args:
        events: A program of which nothing reaches beyond its buffers.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        self.slots: list[
            Slots | None
        ] = []  # What each access is of, as its operation names it; None: the caller's
        self._rows: list[
            tuple[int, int, int, int, bool, int]
        ] = []  # event, first, count, stride, write, value
        # Event, slots, and operands: accesses, or -2 - value
        self._values: list[tuple[int, int, int, int]] = []
        for event in sorted({*events.reads, *events.writes}):
            self._carry_out(event, events.reads.get(event, ()), events.writes.get(event, ()))
        memory = events.words.memory
        size = np.bincount(memory.owner, minlength=events.program.num_ranks)
        first = np.cumsum(size) - size
        for rank, (begin, end) in enumerate(zip(events.begins, events.ends, strict=True)):
            for event in (begin, end):
                self._row(event, None, int(first[rank]), int(size[rank]), 1, -1, write=True)

    def execution(self, order: Sequence[int], edges: Sequence[tuple[int, int]]) -> ProgramExecution:
        """All of it, with the order of events.

        Args:
            order: All events in an order in which they can take place.
            edges: (earlier, later) events, in every order.
        """
        columns = np.array(self._rows, dtype=np.int64).reshape(-1, 6).T
        actor, first, count, stride, write, value = columns
        made, slots, one, other = np.array(self._values, dtype=np.int64).reshape(-1, 4).T
        one, other = (np.where(each < _NONE, len(actor) - 2 - each, each) for each in (one, other))
        return ProgramExecution(
            accesses=MemoryAccesses(
                actor=actor,
                first=first,
                count=count,
                stride=stride,
                write=write > 0,
                value=value,
                time=inverse(np.array(order, dtype=np.int64))[actor],
                begin=actor,
                end=actor,
                also=actor,
            ),
            values=Values(actor=made, count=slots, one=one, other=other),
            points=points_of(self.events, edges),
        )

    def _row(
        self, event: int, slots: Slots | None, first: int, count: int, stride: int, value: int, *, write: bool
    ) -> int:
        self.slots.append(slots)
        self._rows.append((event, first, count, stride, write, value))
        return len(self._rows) - 1

    def _touched(self, event: int, slots: Slots, part: _Ints, value: int, *, write: bool) -> int:
        """Add the accesses of a part, the one of what it is worth first; which that is."""
        if not len(part):
            return self._row(event, slots, 0, 0, 1, value, write=write)
        if not slots.packets:
            return self._row(event, slots, int(part[0]), len(part), 1, value, write=write)
        row = self._row(event, slots, int(part[0]), len(part) // 2, 2, value, write=write)
        self._row(event, slots, int(part[0]) + 1, len(part) // 2, 2, value, write=write)
        return row

    def _value(self, event: int, slots: int, one: int, other: int = _NONE) -> int:
        self._values.append((event, slots, one, other))
        return -1 - len(self._values)

    def _sum(self, event: int, slots: int, terms: Sequence[int]) -> int:
        """The operand that is the sum of some."""
        total = terms[0]
        for term in terms[1:]:
            total = self._value(event, slots, total, term)
        return total

    def _carry_out(self, event: int, reads: tuple[Touch, ...], writes: tuple[Touch, ...]) -> None:
        op = self.events.steps[self.events.step_of[event]].op
        sources = []
        for touch in reads:
            slots = len(touch.parts[0]) // (2 if touch.slots.packets else 1)
            parts = [self._touched(event, touch.slots, part, _NONE, write=False) for part in touch.parts]
            sources.append((slots, self._sum(event, slots, parts)))
        if not writes:
            return
        moves = op is not None and op.act is Act.MOVE
        if op is not None and op.act is Act.SUM:
            slots = sources[0][0]
            sources = [(slots, self._sum(event, slots, [source for _, source in sources]))] * len(writes)
        for place, (touch, (slots, source)) in enumerate(zip(writes, sources, strict=True)):
            value = -2 - self._value(event, slots, source)
            # SlotSubChunks that become what they are, those of a move that are its own source, are not written.
            kept = reads[place] if moves else reads[0] if len(reads) == 1 else None
            for part in touch.parts:
                if kept is None or len(kept.parts) > 1 or not np.array_equal(part, kept.parts[0]):
                    self._touched(event, touch.slots, part, value, write=True)


def points_of(events: Events, edges: Sequence[tuple[int, int]]) -> Points:
    """Events as points, with edges that hold in every order."""
    earlier, later = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return Points(chain=np.array(events.chain, dtype=np.int64), earlier=earlier, later=later)
