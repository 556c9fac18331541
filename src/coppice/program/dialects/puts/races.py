"""Data races of a one-sided program: unordered accesses to a sub-chunk, one of them a write.

Besides what thread blocks do there is the caller: before its beginning and after its end a rank's memory belongs to it.
So a rank that reads another one's input
before that one has begun, a put of which nothing tells the receiver, and a read that may last longer than its owner's
run are races as well. A write before its receiver has begun is only warned of: it does harm if ranks do not begin
together.

Order is not all: a relaxed signal, or a packet, puts execution in order, but does not carry along the data that were
written before it. What depends on that is warned of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.puts.events import Events
from coppice.program.dialects.puts.order import order_of
from coppice.program.dialects.puts.program import Act
from coppice.program.dialects.puts.unroll import EventAccesses
from coppice.program.judge import Judgement
from coppice.program.memory import Buffer
from coppice.program.order import PointOrder

_EXAMPLES = 5
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Races:
    """Data races found."""

    failures: tuple[str, ...]  # The first few races, a sentence each
    count: int  # Number of pairs of events that race
    warnings: tuple[str, ...]  # What works in some cases only, a sentence each


class _Pairs:
    """Pairs of events that conflict at an address, in the order in which they were found."""

    def __init__(self, judgement: Judgement, made: EventAccesses) -> None:
        accesses, conflicts = judgement.execution.accesses, judgement.conflicts
        packets = np.array([slots is not None and slots.packets for slots in made.slots], dtype=np.bool_)
        one, two = conflicts.first, conflicts.second
        self.first, self.second, self.address = accesses.actor[one], accesses.actor[two], conflicts.address
        self.first_writes, self.second_writes = accesses.write[one], accesses.write[two]
        self.packets = packets[one] | packets[two]


def find_races(
    made: EventAccesses,
    judgement: Judgement,
    strong: Sequence[tuple[int, int]],  # (earlier, later) pairs of events that carry data along
) -> Races:
    """Find the data races of a program."""
    events = made.events
    own = _within_events(events)
    pairs = _Pairs(judgement, made)
    begins = np.isin(pairs.first, events.begins)
    unordered = np.zeros(len(pairs.first), dtype=np.bool_)
    unordered[judgement.races] = True
    holds = ~unordered & (pairs.first != pairs.second)
    unordered &= ~(pairs.packets & (begins | np.isin(pairs.second, events.ends)) & events.program.two_scratch)
    early = unordered & begins & pairs.second_writes
    bad = np.flatnonzero(unordered & ~early)
    failures = [*own, *_told(events, pairs, bad)]
    warnings = _early(events, pairs, np.flatnonzero(early))
    rest = np.flatnonzero(holds & pairs.first_writes & ~begins & ~pairs.packets)
    warnings += _unseen(events, pairs, rest, order_of(events, list(strong)))
    racing = np.unique(pairs.first[bad] * events.count + pairs.second[bad])
    return Races(tuple(failures[:_EXAMPLES]), len(own) + len(racing), tuple(warnings))


def _within_events(events: Events) -> list[str]:
    """Operations that write what they still have to read, or write it twice."""
    found = []
    for event, writes in events.writes.items():
        step = events.steps[events.step_of[event]]
        targets = [part for touch in writes for part in touch.parts]
        sources = [part for touch in events.reads.get(event, ()) for part in touch.parts]
        every = np.concatenate(targets) if len(targets) > 1 else targets[0]
        if len(targets) > 1 and len(np.unique(every)) < len(every):
            found.append(f"{events.name(event)} writes the same memory twice.")
            continue
        same = step.op is not None and step.op.act is Act.SUM
        for number, source in enumerate(sources):
            for place, target in enumerate(targets):
                equal = np.array_equal(source, target) and (same or number == place)
                if not equal and _overlap(source, target):
                    found.append(f"{events.name(event)} overwrites what it has yet to read.")
    return found


def _overlap(one: _Ints, other: _Ints) -> bool:
    """Whether two ascending runs of addresses have one in common."""
    if not len(one) or not len(other) or one[-1] < other[0] or other[-1] < one[0]:
        return False
    return bool(np.isin(one, other).any())


def _examples(events: Events, pairs: _Pairs, rows: _Ints) -> list[int]:
    """The first row of each pair of events, as many as are shown."""
    _, unique = np.unique(pairs.first[rows] * events.count + pairs.second[rows], return_index=True)
    return [int(row) for row in rows[np.sort(unique)][:_EXAMPLES]]


def _told(events: Events, pairs: _Pairs, rows: _Ints) -> list[str]:
    sentences = []
    for row in _examples(events, pairs, rows):
        one, two = int(pairs.first[row]), int(pairs.second[row])
        where = _place(events, int(pairs.address[row]))
        if one in events.begins:
            sentences.append(
                f"{events.name(two)} reads {where} before that rank is known to have begun: let it signal first."
            )
        elif two in events.ends:
            does = "writes" if pairs.first_writes[row] else "reads"
            sentences.append(
                f"{events.name(one)} {does} {where}, and nothing tells that rank, before it ends, that this is done: "
                "signal it, and let it wait."
            )
        else:
            sentences.append(
                f"{events.name(one)} and {events.name(two)} both use {where}, one of them writes it, and nothing puts "
                "them in order."
            )
    return sentences


def _early(events: Events, pairs: _Pairs, rows: _Ints) -> list[str]:
    return [
        f"{events.name(int(pairs.second[row]))} writes {_place(events, int(pairs.address[row]))} before that rank is "
        f"known to have begun ({len(np.unique(pairs.second[rows]))} operations do so): right only where it no longer "
        "uses that memory."
        for row in _examples(events, pairs, rows)[:1]
    ]


def _unseen(events: Events, pairs: _Pairs, rows: _Ints, strong: PointOrder) -> list[str]:
    weak = rows[~strong.holds(pairs.first[rows], pairs.second[rows])]
    return [
        f"{events.name(int(pairs.second[row]))} comes after {events.name(int(pairs.first[row]))}, which writes "
        f"{_place(events, int(pairs.address[row]))}, by relaxed signals or packets alone: they do not make data "
        "visible."
        for row in _examples(events, pairs, weak)[:1]
    ]


def _place(events: Events, address: int) -> str:
    """An address in words."""
    memory, words = events.words.memory, events.words
    rank = int(memory.owner[address])
    for buffer in (Buffer.OUTPUT, Buffer.INPUT, Buffer.SCRATCH):
        word = address - int(memory.base[buffer, rank])
        if 0 <= word < int(memory.size[buffer, rank]):
            size = (words.ring or words.per_chunk) if buffer is Buffer.SCRATCH else words.per_chunk
            return f"chunk {word // size} of the {buffer.name.lower()} of rank {rank}"
    return f"memory of rank {rank}"
