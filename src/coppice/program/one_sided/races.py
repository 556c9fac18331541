"""Races of a one-sided program: two accesses of one word, one of them a write, that nothing puts in order.

Accesses are paired by :func:`coppice.program.memory.conflicting_pairs`. Besides what thread blocks do there is the
caller: before its beginning and after its end a rank's memory belongs to it. So a rank that reads another one's input
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

from coppice.program.memory import Buffer, conflicting_pairs
from coppice.program.one_sided.events import Events, Touch
from coppice.program.one_sided.order import HappensBefore
from coppice.program.one_sided.program import Act
from coppice.rows import inverse

_EXAMPLES = 5
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Races:
    """What was found."""

    failures: tuple[str, ...]  # The first few races, a sentence each
    count: int  # Number of pairs of events that race
    warnings: tuple[str, ...]  # What works in some cases only, a sentence each


@dataclass(frozen=True)
class _Pairs:
    first: _Ints
    second: _Ints
    address: _Ints
    first_writes: NDArray[np.bool_]
    second_writes: NDArray[np.bool_]
    packets: NDArray[np.bool_]


def find_races(
    events: Events,
    order: Sequence[int],  # An order in which it can take place
    edges: Sequence[tuple[int, int]],  # All (earlier, later) pairs that hold in every order
    strong: Sequence[tuple[int, int]],  # Those of them that carry data along
) -> Races:
    """Races of a program."""
    own = _within_events(events)
    pairs = _pairs(events, order)
    phase = np.array(events.phase, dtype=np.int64)
    block = np.array([events.block(event) for event in range(events.count)], dtype=np.int64)
    one, two = pairs.first, pairs.second
    joined = (block[one] == block[two]) & (phase[one] >= 0) & (phase[one] < phase[two])
    rows = np.flatnonzero(~joined)
    asked = np.unique(np.stack([one[rows], two[rows]]), axis=1)
    known = HappensBefore(order, edges).holds(asked[0], asked[1])
    key = one * events.count + two
    asked_key = asked[0] * events.count + asked[1]
    holds = joined.copy()
    if len(rows):
        holds[rows] = known[np.searchsorted(asked_key, key[rows])]
    begins = np.isin(one, events.begins)
    unordered = ~holds & ~(pairs.packets & (begins | np.isin(two, events.ends)) & events.program.two_scratch)
    early = unordered & begins & pairs.second_writes
    failures = [*own, *_told(events, pairs, np.flatnonzero(unordered & ~early))]
    warnings = _early(events, pairs, np.flatnonzero(early))
    rest = np.flatnonzero(holds & ~joined & pairs.first_writes & ~begins & ~pairs.packets)
    warnings += _unseen(events, pairs, rest, HappensBefore(order, strong))
    bad = np.flatnonzero(unordered & ~early)
    return Races(tuple(failures[:_EXAMPLES]), len(own) + len(np.unique(key[bad])), tuple(warnings))


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


def _touches(which: dict[int, tuple[Touch, ...]]) -> tuple[_Ints, _Ints, NDArray[np.bool_]]:
    """(address, event, whether in packets) of all accesses."""
    addresses: list[_Ints] = []
    owners: list[_Ints] = []
    packets: list[NDArray[np.bool_]] = []
    for event, touches in which.items():
        for touch in touches:
            for part in touch.parts:
                addresses.append(part)
                owners.append(np.full(len(part), event))
                packets.append(np.full(len(part), touch.slots.packets))
    if not addresses:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, np.zeros(0, dtype=np.bool_)
    return np.concatenate(addresses), np.concatenate(owners), np.concatenate(packets)


def _owner(events: Events) -> _Ints:
    """Rank of each address."""
    memory = events.words.memory
    owner = np.zeros(memory.words, dtype=np.int64)
    for buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH):
        for rank in range(events.program.num_ranks):
            base, size = int(memory.base[buffer, rank]), int(memory.size[buffer, rank])
            owner[base : base + size] = rank
    return owner


def _changes(events: Events) -> dict[int, tuple[Touch, ...]]:
    """What events write, without words that become what they are: those of a move that are its own source."""
    changed = {}
    for event, touches in events.writes.items():
        op = events.steps[events.step_of[event]].op
        reads = events.reads.get(event, ())
        moves = op is not None and op.act is Act.MOVE
        kept = []
        for place, touch in enumerate(touches):
            source = reads[place] if moves else reads[0] if len(reads) == 1 else None
            if source is not None and len(source.parts) == 1:
                parts = tuple(part for part in touch.parts if not np.array_equal(part, source.parts[0]))
                kept.append(Touch(touch.slots, parts))
            else:
                kept.append(touch)
        changed[event] = tuple(kept)
    return changed


def _pairs(events: Events, order: Sequence[int]) -> _Pairs:
    """Pairs of events (earlier and later in ``order``) that conflict at an address, one for each address."""
    owner = _owner(events)
    all_words = np.arange(len(owner))
    begins, ends = np.array(events.begins)[owner], np.array(events.ends)[owner]
    reads = _touches(events.reads)
    writes = _touches(_changes(events))
    nothing = np.zeros(len(owner), dtype=np.bool_)
    address = np.concatenate([reads[0], writes[0], all_words, all_words])
    event = np.concatenate([reads[1], writes[1], begins, ends])
    packet = np.concatenate([reads[2], writes[2], nothing, nothing])
    write = np.ones(len(address), dtype=np.bool_)
    write[: len(reads[0])] = False
    time = inverse(np.array(order, dtype=np.int64))
    one, two = conflicting_pairs(address, time[event], write)
    apart = event[one] != event[two]
    one, two = one[apart], two[apart]
    return _Pairs(
        first=event[one],
        second=event[two],
        address=address[one],
        first_writes=write[one],
        second_writes=write[two],
        packets=packet[one] | packet[two],
    )


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


def _unseen(events: Events, pairs: _Pairs, rows: _Ints, strong: HappensBefore) -> list[str]:
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
    rank = int(_owner(events)[address])
    for buffer in (Buffer.OUTPUT, Buffer.INPUT, Buffer.SCRATCH):
        word = address - int(memory.base[buffer, rank])
        if 0 <= word < int(memory.size[buffer, rank]):
            size = (words.ring or words.per_chunk) if buffer is Buffer.SCRATCH else words.per_chunk
            return f"chunk {word // size} of the {buffer.name.lower()} of rank {rank}"
    return f"memory of rank {rank}"
