"""Messages of a schedule, with a deadlock-free order of sends and receives.

Transfers are put into *rounds*: their steps, or, where they have none, their depth among the transfers that they wait
for. In a round every connection carries its messages one after the other: first all first messages are sent and then
received, then all second ones, and so on. So every rank sends before it waits, and yet no connection ever needs to hold
more than one message. Every send comes after the receives that it passes on (read after write), and every receive after
the sends of what it overwrites (write after read); carried out in this order by thread blocks that each keep to it,
nothing deadlocks.

Transfers of a round between the same ranks whose slots follow each other at both ends become one message.

That holds as long as a connection has room for a whole message. Where a message may be longer than that, whoever sends
it goes on only when its receiver has begun to receive. Then thread blocks *take turns*: messages that are
sent and received first, messages that come next, and so on, where none of them has two messages in one turn. Carried
out so, nothing deadlocks even if connections hold nothing at all: of the messages that are not done, the first one
finds both of its thread blocks at it. Two ranks that exchange one value for the other cannot take turns,
since both must send before any of them receives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.program.buffer_layout import BufferLayout
from coppice.program.memory import Buffer
from coppice.rows import begins_run, first_rows, grouped, nth_in_run, ranges
from coppice.schedule.schedule import Op, Schedule

_Ints = NDArray[np.int64]
_FAR = 2**40
"""Distance between the addresses of two buffers."""


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers of intervals of sub-chunks, by round."""

    src: _Ints  # Sending rank (int64)
    dst: _Ints  # Receiving rank (int64)
    run: _Ints  # What is sent (int64)
    op: _Ints  # :class:`Op` (int64)
    path: _Ints  # Path of the schedule, or -1 (int64)
    round: _Ints  # Round (int64)


@dataclass(frozen=True, eq=False, repr=False)
class MessageTable(Brief):
    """Messages with the order of their sends and receives."""

    src: _Ints  # Sending rank (int64)
    dst: _Ints  # Receiving rank (int64)
    color: _Ints  # Channel (int64)
    op: _Ints  # :class:`Op` (int64)
    first: _Ints  # First run (int64)
    runs: _Ints  # Number of consecutive runs (int64)
    count: _Ints  # Units (int64)
    src_buffer: _Ints  # Buffer that is sent from (int64)
    src_offset: _Ints  # Slot (int64)
    dst_buffer: _Ints  # Where the receiver keeps it (int64)
    dst_offset: _Ints  # Slot (int64)
    # The receiver adds it to its initial value, which still lies where it lay at the start (bool)
    fresh: NDArray[np.bool_]
    old_buffer: _Ints  # Where that is (int64)
    old_offset: _Ints  # Slot (int64)
    events: _Ints  # Message * 2 of each send, and message * 2 + 1 of each receive, in order (int64)
    scratch: _Ints  # Slots of scratch memory that values take at each rank (int64)
    round: _Ints  # Round of each message (int64)


def transfers_of(schedule: Schedule, placement: BufferLayout) -> Transfers:
    """Transfers of a schedule with their rounds."""
    step = schedule.step
    rounds = _depths(schedule) if not len(step) or int(step.min()) < 0 else step.astype(np.int64)
    start = placement.units.start
    chunk = schedule.chunk.astype(np.int64)
    pieces = start[chunk + 1] - start[chunk]
    row = np.repeat(np.arange(len(chunk)), pieces)
    order = np.argsort(rounds[row], kind="stable")
    row = row[order]
    return Transfers(
        src=schedule.src[row].astype(np.int64),
        dst=schedule.dst[row].astype(np.int64),
        run=ranges(start[chunk], pieces)[order],
        op=schedule.op[row].astype(np.int64),
        path=schedule.path[row].astype(np.int64),
        round=rounds[row],
    )


def _depths(schedule: Schedule) -> _Ints:
    """Depth of each transfer: more than of all that it passes on, and of all that sends what it overwrites."""
    ranks = schedule.topology.num_ranks
    chunk = schedule.chunk.astype(np.int64) * ranks
    wrote: dict[int, int] = {}  # deepest transfer into a (chunk, rank)
    copied: dict[int, int] = {}  # deepest copy into it
    sent: dict[int, int] = {}  # deepest transfer out of it
    start: list[int] = schedule.after_start.tolist()
    after: list[int] = schedule.after.tolist()
    depths: list[int] = []
    for row, (source, target, op) in enumerate(
        zip(
            (chunk + schedule.src).tolist(),
            (chunk + schedule.dst).tolist(),
            schedule.op.tolist(),
            strict=True,
        )
    ):
        depth = max(
            wrote.get(source, -1) + 1,
            sent.get(target, -1) + 1,
            (copied if op == Op.REDUCE else wrote).get(target, -1) + 1,
        )
        if start[row + 1] > start[row]:
            depth = max(depth, 1 + max(depths[earlier] for earlier in after[start[row] : start[row + 1]]))
        depths.append(depth)
        wrote[target] = max(wrote.get(target, -1), depth)
        if op == Op.COPY:
            copied[target] = depth
        sent[source] = max(sent.get(source, -1), depth)
    return np.array(depths, dtype=np.int64)


def message_table(
    rows: Transfers,
    color: _Ints,
    placement: BufferLayout,
    *,
    max_count: int | None = None,
    # Thread block that sends each row, and the one that receives it, if they are to take rendezvous_rounds
    actors: tuple[_Ints, _Ints] | None = None,
) -> MessageTable:
    """Combine rows into messages, assign slots, and order their ends."""
    order = np.lexsort((rows.run, rows.op, color, rows.dst, rows.src, rows.round))
    src, dst, run, op, rounds = (
        column[order] for column in (rows.src, rows.dst, rows.run, rows.op, rows.round)
    )
    color = color[order]
    units, ranks = placement.units, placement.ranks
    into, outof = run * ranks + dst, run * ranks + src
    values, value = np.unique(into, return_inverse=True)
    began = np.full(len(values), np.iinfo(np.int64).max)
    np.minimum.at(began, value, rounds)
    kept_buffer, kept_offset = placement.after_receive(values % ranks, values // ranks)
    scratch = _take_scratch(placement, values, value, kept_buffer, kept_offset)
    old_buffer, old_offset = placement.at_start(run)
    source = np.minimum(np.searchsorted(values, outof), max(len(values) - 1, 0))
    written = (values[source] == outof) & (began[source] < rounds)
    src_buffer = np.where(written, kept_buffer[source], old_buffer)
    src_offset = np.where(written, kept_offset[source], old_offset)
    dst_buffer, dst_offset = kept_buffer[value], kept_offset[value]
    moves = (op == Op.REDUCE) & ((old_buffer != dst_buffer) | (old_offset != dst_offset))
    new = began[value] == rounds
    _, group, size = np.unique(
        value * (rounds.max(initial=0) + 1) + rounds, return_inverse=True, return_counts=True
    )
    shared = new & (size[group] > 1)  # which of them finds the old value is decided by their order
    joins = (
        ~begins_run(src, dst, color, op, rounds, new, moves)[1:]
        & (run[1:] == run[:-1] + 1)
        & ~shared[1:]
        & ~shared[:-1]
        & _follows(src_buffer * _FAR + src_offset, units.count[run])
        & _follows(dst_buffer * _FAR + dst_offset, units.count[run])
        & (~moves[1:] | _follows(old_buffer * _FAR + old_offset, units.count[run]))
    )
    heads = np.ones(len(run), dtype=np.bool_)
    heads[1:] = ~joins
    heads |= _too_long(heads, units.count[run], max_count)
    place, position = _positions(heads, src, dst, color, rounds)
    hazards = _hazardous_rounds(rounds, into, outof, place)
    if len(hazards):
        heads |= np.isin(rounds, hazards)
        place, position = _positions(heads, src, dst, color, rounds)
        position = np.where(np.isin(rounds[heads], hazards), run[heads], position)
    first = np.flatnonzero(heads)
    runs = np.diff(np.append(first, len(run)))
    count = np.add.reduceat(units.count[run], first)
    message = np.arange(len(first))
    event = np.concatenate([message * 2, message * 2 + 1])
    turn = np.zeros(len(first), dtype=np.int64)
    if actors is not None:
        sender, receiver = (each[order[first]] for each in actors)
        group = rounds[first] * (int(position.max(initial=0)) + 1) + position
        turn = rendezvous_rounds(
            group, sender, receiver, *_overwritten(group[np.cumsum(heads) - 1], into, outof, heads)
        )
    events = event[
        np.lexsort((event, event % 2, turn[event // 2], position[event // 2], rounds[first][event // 2]))
    ]
    taken = _first_into(value[first], events) & new[first]
    return MessageTable(
        src=src[first],
        dst=dst[first],
        color=color[first],
        op=op[first],
        first=run[first],
        runs=runs,
        count=count,
        src_buffer=src_buffer[first],
        src_offset=src_offset[first],
        dst_buffer=dst_buffer[first],
        dst_offset=dst_offset[first],
        fresh=taken & moves[first],
        old_buffer=old_buffer[first],
        old_offset=old_offset[first],
        events=events,
        scratch=scratch,
        round=rounds[first],
    )


def _take_scratch(
    placement: BufferLayout, values: _Ints, value: _Ints, kept_buffer: _Ints, kept_offset: _Ints
) -> _Ints:
    """Slots for what is kept in scratch memory, in the order of first writes; how many each rank has."""
    first_row = np.unique(value, return_index=True)[1]
    mine = np.flatnonzero(kept_buffer == Buffer.SCRATCH)
    mine = mine[np.lexsort((first_row[mine], values[mine] % placement.ranks))]
    rank = values[mine] % placement.ranks
    count = placement.units.count[values[mine] // placement.ranks]
    scratch = np.bincount(rank, weights=count, minlength=placement.ranks).astype(np.int64)
    kept_offset[mine] = first_rows(count) - first_rows(scratch)[rank]
    return scratch


def _follows(address: _Ints, count: _Ints) -> NDArray[np.bool_]:
    """Each row but the first begins where the row before it ends."""
    return np.asarray(address[1:] == address[:-1] + count[:-1])


def _too_long(heads: NDArray[np.bool_], count: _Ints, max_count: int | None) -> NDArray[np.bool_]:
    """Further heads, so that no message is longer than ``max_count``."""
    if max_count is None or not len(heads):
        return np.zeros(len(heads), dtype=np.bool_)
    first = np.flatnonzero(heads)
    group = np.cumsum(heads) - 1
    together = max_count // np.maximum.reduceat(count, first)
    return np.asarray(nth_in_run(group) % np.maximum(together, 1)[group] == 0)


def _positions(
    heads: NDArray[np.bool_], src: _Ints, dst: _Ints, color: _Ints, rounds: _Ints
) -> tuple[_Ints, _Ints]:
    """Place of each row's message, and of each message, among those of its round and connection."""
    position = nth_in_run(src[heads], dst[heads], color[heads], rounds[heads])
    return position[np.cumsum(heads) - 1], position


def _hazardous_rounds(rounds: _Ints, into: _Ints, outof: _Ints, place: _Ints) -> _Ints:
    """Rounds in which a value would be received before what it overwrites is sent."""
    span = int(rounds.max(initial=0)) + 1
    read, write = outof * span + rounds, into * span + rounds
    keys, inverse = np.unique(read, return_inverse=True)
    latest = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(latest, inverse, place)
    found = np.minimum(np.searchsorted(keys, write), max(len(keys) - 1, 0))
    hazard = (keys[found] == write) & (latest[found] > place)
    return np.unique(rounds[hazard])


def _overwritten(group: _Ints, into: _Ints, outof: _Ints, heads: NDArray[np.bool_]) -> tuple[_Ints, _Ints]:
    """Pairs of messages of one group: one sends a value that the other overwrites."""
    message = np.cumsum(heads) - 1
    span = int(max(into.max(initial=0), outof.max(initial=0))) + 1
    read, write = group * span + outof, group * span + into
    by = np.argsort(read, kind="stable")
    begin = np.searchsorted(read[by], write)
    number = np.searchsorted(read[by], write, side="right") - begin
    return message[by[ranges(begin, number)]], np.repeat(message, number)


def _first_into(value: _Ints, events: _Ints) -> NDArray[np.bool_]:
    """Messages that are the first to be received into the value of their first run."""
    first = np.zeros(len(value), dtype=np.bool_)
    received = events[events % 2 == 1] // 2
    _, index = np.unique(value[received], return_index=True)
    first[received[index]] = True
    return first


def rendezvous_rounds(group: _Ints, sender: _Ints, receiver: _Ints, sent: _Ints, overwritten: _Ints) -> _Ints:
    """Round of each message, from 0 in each group.

    In one turn all its messages are sent, and then all are received. A message is sent no later than in the turn in
    which another one overwrites what it sends. Messages that overwrite each other's values in a circle share the last
    turn of their group, with all that must come after them: of these, some thread block may have two.

    Messages of thread blocks that pass on to one another form chains and circles, and take turns along
    them: two are enough, or three in a circle of an odd number, where nothing is overwritten.

    Args:
        group: Group of each message. Nobody sends two messages of a group, and nobody receives two.
        sent: Messages whose values are overwritten, in pairs with the next argument.
        overwritten: Messages, of the same group, that overwrite them.

    Examples:
        >>> ring = np.arange(4)
        >>> nothing = np.zeros(0, dtype=np.int64)
        >>> rendezvous_rounds(ring * 0, ring, (ring + 1) % 4, nothing, nothing).tolist()
        [0, 1, 0, 1]
        >>> rendezvous_rounds(ring * 0, ring, (ring + 1) % 4, np.array([1]), np.array([0])).tolist()
        [1, 0, 1, 0]
    """
    number = len(group)
    turn = np.zeros(number, dtype=np.int64)
    pairs = np.flatnonzero(sent != overwritten)
    sent, overwritten = sent[pairs], overwritten[pairs]
    waits: list[int] = np.bincount(overwritten, minlength=number).tolist()
    by, start = grouped(sent, number)
    after: list[int] = overwritten[by].tolist()
    first: list[int] = start.tolist()
    groups: list[int] = group.tolist()
    source: list[int] = sender.tolist()
    target: list[int] = receiver.tolist()
    outgoing = {(groups[m], source[m]): m for m in range(number)}
    taken: dict[tuple[int, int], set[int]] = {}
    earliest = [0] * number
    done = bytearray(number)
    last: dict[int, int] = {}
    ready = list(range(number))[::-1]
    while ready:
        message = ready.pop()
        if done[message] or waits[message]:
            continue
        done[message] = 1
        place = groups[message]
        used = [taken.setdefault((place, end), set()) for end in (source[message], target[message])]
        mine = earliest[message]
        while any(mine in each for each in used):
            mine += 1
        for each in used:
            each.add(mine)
        turn[message] = mine
        last[place] = max(last.get(place, 0), mine)
        following = outgoing.get((place, target[message]))
        for later in after[first[message] : first[message + 1]]:
            waits[later] -= 1
            earliest[later] = max(earliest[later], mine + 1)
            if not waits[later]:
                ready.append(later)
        if following is not None:
            ready.append(following)
    for message in range(number):
        if not done[message]:
            turn[message] = last.get(groups[message], -1) + 1
    return turn
