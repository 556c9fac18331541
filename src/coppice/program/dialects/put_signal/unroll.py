"""Unroll a put/signal program into an execution: its accesses, and the order that the documents guarantee.

A call begins at one point and is over at another; of a local call every operation has a point of its own. A put writes
until its peer has waited for its signal, and reads until its own call is over, or until then. Streams and communicators
carry out their calls one after the other. A wait is over once what it waits for was begun.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.put_signal.order import CallOrder
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall
from coppice.program.memory import ProgramMemory
from coppice.program.order import MemoryAccesses, Points, ProgramExecution, Values
from coppice.rows import inverse, offsets

_Ints = NDArray[np.int64]


def addresses_of(memory: ProgramMemory, buffer: _Ints, slot: _Ints, rank: _Ints) -> _Ints:
    """Address of a slot of each operation; -1 where the operation lacks this operand.

    Args:
        buffer: Buffer of each operation, -1 for none.
    """
    return np.where(buffer >= 0, memory.base[np.maximum(buffer, 0), rank] + slot, -1)


def unroll(order: CallOrder, memory: ProgramMemory) -> ProgramExecution:
    """Unroll a program in a known order, with given addresses; the first points are the begins of ranks."""
    program = order.program
    points, begin, end = _points(order)
    call, own = program.call_of, program.rank_of
    puts = program.act == PutSignalAct.PUT
    source = addresses_of(memory, program.source_buffer, program.source, own)
    addend = addresses_of(memory, program.addend_buffer, program.addend, own)
    target = addresses_of(memory, program.target_buffer, program.target, np.where(puts, program.peer, own))
    # Copies of an interval onto itself, as of one's own block in place, are not done at all.
    does = (
        puts | (program.act == PutSignalAct.SUM) | ((program.act == PutSignalAct.COPY) & (source != target))
    )
    makes, adds = np.flatnonzero(does), np.flatnonzero(program.act == PutSignalAct.SUM)
    operation = np.concatenate([makes, adds, makes])
    write = np.arange(len(operation)) >= len(makes) + len(adds)
    value = np.zeros(program.num_operations, dtype=np.int64)
    value[makes] = np.arange(len(makes))
    other = np.full(len(makes), -1, dtype=np.int64)
    other[value[adds]] = len(makes) + np.arange(len(adds))
    arrived, never = order.delivered, len(points.chain) - 1
    over = np.where(arrived >= 0, end[arrived], never)
    local = program.call_kind[call] == PutSignalCall.LOCAL
    starts = begin[call] + np.where(local, np.arange(program.num_operations) - program.call_start[call], 0)
    ends = np.where(local, starts, end[call])
    time = inverse(np.lexsort((np.arange(program.num_operations), order.level[call])))
    put = puts[operation]
    return ProgramExecution(
        accesses=MemoryAccesses(
            actor=operation,
            first=np.concatenate([source[makes], addend[adds], target[makes]]),
            count=program.count[operation],
            stride=np.broadcast_to(np.int64(1), len(operation)),
            write=write,
            value=value[operation],
            time=time[operation],
            begin=starts[operation],
            end=np.where(write & put, over[operation], ends[operation]),
            also=np.where(put, over[operation], ends[operation]),
        ),
        values=Values(actor=makes, count=program.count[makes], one=np.arange(len(makes)), other=other),
        points=points,
    )


def _points(order: CallOrder) -> tuple[Points, _Ints, _Ints]:
    """Points, and at which each call begins and is over; what is never known to be over ends at the last one."""
    program = order.program
    ranks, streams = program.num_ranks, max(program.num_streams, 1)
    local = program.call_kind == PutSignalCall.LOCAL
    number = np.where(local, np.diff(program.call_start), 2)
    start = ranks + offsets(number)
    begin, end = start[:-1], start[1:] - 1
    line = program.call_rank * streams + program.stream
    chain = np.concatenate([np.arange(ranks) * streams, np.repeat(line, number), [ranks * streams]])
    before, following = _neighbours(line, np.arange(program.num_calls))
    firsts = np.setdiff1d(np.arange(program.num_calls), following)
    remote = np.flatnonzero(~local)
    communicator = program.call_rank * max(program.num_communicators, 1) + program.communicator
    before, following = _neighbours(communicator[remote], remote)
    earlier = [program.call_rank[firsts], end[before], begin[order.sent_by]]
    later = [begin[firsts], begin[following], end[order.awaited_by]]
    return Points(chain=chain, earlier=np.concatenate(earlier), later=np.concatenate(later)), begin, end


def _neighbours(group: _Ints, calls: _Ints) -> tuple[_Ints, _Ints]:
    """Pairs of calls of which the second follows the first in its group."""
    order = np.argsort(group, kind="stable")
    same = np.flatnonzero(group[order][1:] == group[order][:-1])
    return calls[order[same]], calls[order[same + 1]]
