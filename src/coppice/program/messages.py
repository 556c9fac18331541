"""The messages of a schedule in the order in which a program carries them out.

Transfers are put into *rounds*: their steps, or, where they have none, their depth among the transfers that they wait
for. In a round every connection carries its messages one after the other: first all first messages are sent and then
received, then all second ones, and so on. So rank after rank sends before it waits, and yet no connection ever needs
to hold more than one message. Every send comes after the receives that it passes on, and every receive after
the sends of what it overwrites; carried out in this order by thread blocks that each keep to it, nothing stands still.

Transfers of a round between the same ranks whose slots follow each other at both ends become one message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import Buffer
from coppice.program.placement import Places
from coppice.rows import begins_run, first_rows, nth_in_run, ranges
from coppice.schedule.schedule import Op, Schedule

__all__ = ["Rows", "Traffic", "rows_of", "traffic_of"]

_Ints = NDArray[np.int64]
_FAR = 2**40
"""Distance between the addresses of two buffers."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Transfers of runs of units, in the order of their rounds.

    Attributes:
        src: Sending rank (int64).
        dst: Receiving rank (int64).
        run: What is sent (int64).
        op: :class:`Op` (int64).
        path: Path of the schedule, or -1 (int64).
        round: Round (int64).
    """

    src: _Ints
    dst: _Ints
    run: _Ints
    op: _Ints
    path: _Ints
    round: _Ints


@dataclass(frozen=True, eq=False)
class Traffic:
    """Messages, and the order of their sends and receives.

    Attributes:
        src: Sending rank (int64).
        dst: Receiving rank (int64).
        color: Channel (int64).
        op: :class:`Op` (int64).
        first: First run (int64).
        runs: Number of consecutive runs (int64).
        count: Units (int64).
        src_buffer: Buffer that is sent from (int64).
        src_offset: Slot (int64).
        dst_buffer: Home of what is received (int64).
        dst_offset: Slot (int64).
        fresh: The receiver's value still lies where it lay at the start (bool).
        old_buffer: Where that is (int64).
        old_offset: Slot (int64).
        events: Message * 2 of each send, and message * 2 + 1 of each receive, in order (int64).
        scratch: Slots of scratch memory that homes take at each rank (int64).
        round: Round of each message (int64).
    """

    src: _Ints
    dst: _Ints
    color: _Ints
    op: _Ints
    first: _Ints
    runs: _Ints
    count: _Ints
    src_buffer: _Ints
    src_offset: _Ints
    dst_buffer: _Ints
    dst_offset: _Ints
    fresh: NDArray[np.bool_]
    old_buffer: _Ints
    old_offset: _Ints
    events: _Ints
    scratch: _Ints
    round: _Ints


def rows_of(schedule: Schedule, places: Places) -> Rows:
    """The transfers of a schedule, run by run, with their rounds."""
    step = schedule.step
    rounds = _depths(schedule) if not len(step) or int(step.min()) < 0 else step.astype(np.int64)
    start = places.units.start
    chunk = schedule.chunk.astype(np.int64)
    pieces = start[chunk + 1] - start[chunk]
    row = np.repeat(np.arange(len(chunk)), pieces)
    order = np.argsort(rounds[row], kind="stable")
    row = row[order]
    return Rows(
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


def traffic_of(rows: Rows, color: _Ints, places: Places, *, max_count: int | None = None) -> Traffic:
    """Join rows into messages, give them their slots, and put their ends in order.

    Args:
        rows: The transfers.
        color: Channel of each row.
        places: Where values lie.
        max_count: Most units in a message.
    """
    order = np.lexsort((rows.run, rows.op, color, rows.dst, rows.src, rows.round))
    src, dst, run, op, rounds = (
        column[order] for column in (rows.src, rows.dst, rows.run, rows.op, rows.round)
    )
    color = color[order]
    units, ranks = places.units, places.ranks
    into, outof = run * ranks + dst, run * ranks + src
    cells, cell = np.unique(into, return_inverse=True)
    began = np.full(len(cells), np.iinfo(np.int64).max)
    np.minimum.at(began, cell, rounds)
    home_buffer, home_offset = places.home(cells % ranks, cells // ranks)
    scratch = _take_scratch(places, cells, cell, home_buffer, home_offset)
    source = np.minimum(np.searchsorted(cells, outof), max(len(cells) - 1, 0))
    written = (cells[source] == outof) & (began[source] < rounds) if len(cells) else outof < 0
    src_buffer, src_offset = places.at_start(run)
    if len(cells):
        src_buffer = np.where(written, home_buffer[source], src_buffer)
        src_offset = np.where(written, home_offset[source], src_offset)
    dst_buffer, dst_offset = home_buffer[cell], home_offset[cell]
    old_buffer, old_offset = places.at_start(run)
    moves = (op == Op.REDUCE) & ((old_buffer != dst_buffer) | (old_offset != dst_offset))
    new = began[cell] == rounds
    _, group, size = np.unique(
        cell * (rounds.max(initial=0) + 1) + rounds, return_inverse=True, return_counts=True
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
    heads = np.concatenate([[True], ~joins]) if len(run) else np.zeros(0, dtype=np.bool_)
    heads |= _too_long(heads, units.count[run], max_count)
    place, turn = _turns(heads, src, dst, color, rounds)
    knots = _knotted_rounds(rounds, into, outof, place)
    if len(knots):
        heads |= np.isin(rounds, knots)
        place, turn = _turns(heads, src, dst, color, rounds)
        turn = np.where(np.isin(rounds[heads], knots), run[heads], turn)
    first = np.flatnonzero(heads)
    runs = np.diff(np.append(first, len(run)))
    count = np.add.reduceat(units.count[run], first) if len(first) else np.zeros(0, dtype=np.int64)
    message = np.arange(len(first))
    event = np.concatenate([message * 2, message * 2 + 1])
    events = event[np.lexsort((event, event % 2, turn[event // 2], rounds[first][event // 2]))]
    taken = _first_into(cell[first], events) & new[first]
    return Traffic(
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


def _take_scratch(places: Places, cells: _Ints, cell: _Ints, home_buffer: _Ints, home_offset: _Ints) -> _Ints:
    """Give homes in scratch memory their slots, as they are first written; how many each rank has."""
    seen, where = np.unique(cell, return_index=True)
    by_time = seen[np.argsort(where, kind="stable")]
    mine = by_time[home_buffer[by_time] == Buffer.SCRATCH]
    rank = cells[mine] % places.ranks
    mine = mine[np.argsort(rank, kind="stable")]
    rank = cells[mine] % places.ranks
    count = places.units.count[cells[mine] // places.ranks]
    scratch = np.bincount(rank, weights=count, minlength=places.ranks).astype(np.int64)
    home_offset[mine] = first_rows(count) - first_rows(scratch)[rank]
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


def _turns(
    heads: NDArray[np.bool_], src: _Ints, dst: _Ints, color: _Ints, rounds: _Ints
) -> tuple[_Ints, _Ints]:
    """Place of each row's message, and of each message, among those of its round and connection."""
    turn = nth_in_run(src[heads], dst[heads], color[heads], rounds[heads])
    return turn[np.cumsum(heads) - 1], turn


def _knotted_rounds(rounds: _Ints, into: _Ints, outof: _Ints, place: _Ints) -> _Ints:
    """Rounds in which a value would be received before what it overwrites is sent."""
    span = int(rounds.max(initial=0)) + 1
    read, write = outof * span + rounds, into * span + rounds
    keys, inverse = np.unique(read, return_inverse=True)
    latest = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(latest, inverse, place)
    found = np.minimum(np.searchsorted(keys, write), max(len(keys) - 1, 0))
    if not len(keys):
        return rounds
    knotted = (keys[found] == write) & (latest[found] > place)
    return np.unique(rounds[knotted])


def _first_into(cell: _Ints, events: _Ints) -> NDArray[np.bool_]:
    """Messages that are the first to be received into the cell of their first run."""
    first = np.zeros(len(cell), dtype=np.bool_)
    received = events[events % 2 == 1] // 2
    _, index = np.unique(cell[received], return_index=True)
    first[received[index]] = True
    return first
