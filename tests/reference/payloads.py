"""Schedules carried out with real values: what every buffer holds in the end, and whether that is right.

Shares no code with the verifier. Contributions are random 64-bit integers, one for each (slot, rank) that has
one at the start, so that a sum or a copy that comes out right does so for the right reason: a wrong one collides
with probability below 2^-50. A buffer that was never written holds rubbish, of which every read of every run gives the
same; a transfer may send it on. Where ranks' order matters, values are words, and a sum puts the words in the order of
their first letters. Rows of one step are written in row order, in the opposite one and in two random ones; all have to
come out right.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coppice.collectives import Collective
from coppice.schedule.schedule import Op, Schedule

Row = tuple[int, int, int, int, int]
"""(chunk, sender, receiver, op, step)"""
Value = Any
Buffers = dict[tuple[int, int], Value]
"""By (chunk, rank)."""


def rows_of(schedule: Schedule) -> list[Row]:
    """The transfers as plain tuples."""
    columns = (schedule.chunk, schedule.src, schedule.dst, schedule.op, schedule.step)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def contribution(schedule: Schedule, chunk: int, rank: int) -> Value:
    """What ``rank`` puts in for a chunk, if it does."""
    if schedule.collective is Collective.BARRIER:
        return frozenset([rank])
    if schedule.ordered:
        return (rank,)
    return random.Random(f"{chunk} {rank}").getrandbits(64)


def rubbish(schedule: Schedule, chunk: int, rank: int) -> Value:
    """What a buffer holds that nobody has filled."""
    if schedule.collective is Collective.BARRIER:
        return frozenset()
    if schedule.ordered:
        return (-1 - rank,)
    return random.Random(f"rubbish {chunk} {rank}").getrandbits(64)


def join(schedule: Schedule, held: Value, sent: Value) -> Value:
    """What the receiver holds after it has added a value."""
    if schedule.collective is Collective.BARRIER:
        return held | sent
    if schedule.ordered:
        return held + sent if held < sent else sent + held
    return held + sent


def sources(schedule: Schedule, slot: int) -> list[int]:
    """Ranks that hold something of a slot at the start."""
    ranks = schedule.topology.num_ranks
    match schedule.collective:
        case Collective.BROADCAST | Collective.SCATTER:
            return [schedule.root]
        case Collective.ALL_GATHER | Collective.GATHER:
            return [slot]
        case Collective.ALL_TO_ALL:
            return [slot // ranks]
        case _:
            return list(range(ranks))


def targets(schedule: Schedule, slot: int) -> list[int]:
    """Ranks that must hold the slot in the end."""
    ranks = schedule.topology.num_ranks
    match schedule.collective:
        case Collective.REDUCE | Collective.GATHER:
            return [schedule.root]
        case Collective.REDUCE_SCATTER | Collective.SCATTER:
            return [slot]
        case Collective.ALL_TO_ALL:
            return [slot % ranks]
        case _:
            return list(range(ranks))


def initial(schedule: Schedule) -> Buffers:
    """Buffers at the start, rubbish included."""
    slots = schedule.chunk_slot.tolist()
    return {
        (chunk, rank): (contribution if rank in sources(schedule, slot) else rubbish)(schedule, chunk, rank)
        for chunk, slot in enumerate(slots)
        for rank in range(schedule.topology.num_ranks)
    }


def expected(schedule: Schedule) -> Buffers:
    """What certain buffers must hold in the end."""
    wanted: Buffers = {}
    for chunk, slot in enumerate(schedule.chunk_slot.tolist()):
        parts = [contribution(schedule, chunk, rank) for rank in sources(schedule, slot)]
        total = parts[0]
        for part in parts[1:]:
            total = total | part if schedule.collective is Collective.BARRIER else total + part
        if schedule.slot_weight[slot] or schedule.collective is Collective.BARRIER:
            wanted |= {(chunk, rank): total for rank in targets(schedule, slot)}
    return wanted


def run(schedule: Schedule, rows: Sequence[Row], arrange: Callable[[list[Any]], list[Any]]) -> Buffers:
    """Step by step: all rows of a step send, then all are written, in the order into which they are arranged."""
    buffers = initial(schedule)
    groups: Iterable[list[Row]] = ([row] for row in rows)
    if any(row[4] >= 0 for row in rows):
        groups = (list(group) for _, group in itertools.groupby(rows, key=lambda row: row[4]))
    for group in groups:
        sent = [buffers[chunk, src] for chunk, src, *_ in group]
        written = list(zip(group, sent, strict=True))
        for (chunk, _, dst, op, _), value in arrange(written):
            held = buffers[chunk, dst]
            buffers[chunk, dst] = join(schedule, held, value) if op == Op.REDUCE else value
    return buffers


def right(schedule: Schedule) -> bool:
    """Every chunk ends where the collective says, with the value that it says."""
    slots = defaultdict(int)
    for slot in schedule.chunk_slot.tolist():
        slots[slot] += 1
    ranks = range(schedule.topology.num_ranks)
    for slot, weight in enumerate(schedule.slot_weight.tolist()):
        stays = sources(schedule, slot) == targets(schedule, slot) or len(ranks) == 1
        if (weight or schedule.collective is Collective.BARRIER) and not slots[slot] and not stays:
            return False
    rows, wanted = rows_of(schedule), expected(schedule)
    rng = random.Random(len(rows))
    orders: list[Callable[[list[Any]], list[Any]]] = [list]
    if not schedule.ordered:  # there operands are joined in row order
        orders += [lambda items: items[::-1]] + [lambda items: rng.sample(items, len(items))] * 2
    for arrange in orders:
        found = run(schedule, rows, arrange)
        if any(found[place] != value for place, value in wanted.items()):
            return False
    return True
