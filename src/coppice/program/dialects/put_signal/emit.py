"""Emit the calls of a put/signal program: per tick one group of puts and credits, one wait, and local sums.

What ranks copy for themselves has a stream of its own, since nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coppice.program.buffer_layout import BufferLayout
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.program.dialects.put_signal.receive_buffers import CommunicatorSteps
from coppice.program.memory import Buffer
from coppice.rows import begins_run, offsets

_Ints = NDArray[np.int64]
_KEYS = ("rank", "tick", "communicator", "kind", "order")
_COLUMNS = (
    "act", "peer", "context", "signal", "count", "source_buffer", "source", "addend_buffer", "addend",
    "target_buffer", "target",
)  # fmt: skip


def emit(
    communicators: Sequence[CommunicatorSteps], placement: BufferLayout, *, name: str
) -> PutSignalProgram:
    """Emit the program of several communicators: independent sequences of steps, each with a stream.

    Args:
        placement: Where values lie, out of place.
    """
    tables = [
        table
        for communicator, steps in enumerate(communicators)
        for table in _communicator(steps, communicator, placement.ranks)
    ]
    tables.append(_own_copies(communicators, placement, len(communicators)))
    rows = {key: np.concatenate([table[key] for table in tables]) for key in (*_KEYS, *_COLUMNS)}
    order = np.lexsort([rows[key] for key in reversed(_KEYS)])
    rows = {key: column[order] for key, column in rows.items()}
    first = np.flatnonzero(begins_run(*(rows[key] for key in _KEYS[:-1]))) if len(order) else order
    stream, kind = rows["communicator"][first], rows["kind"][first]
    staging = communicators[-1].staging if communicators else [0] * placement.ranks
    return PutSignalProgram(
        collective=placement.collective,
        num_ranks=placement.ranks,
        num_chunks=placement.units.num_chunks,
        root=placement.root,
        in_place=placement.allows_in_place,
        out_of_place=True,
        staging=np.array(staging, dtype=np.int64),
        rank_start=offsets(np.bincount(rows["rank"][first], minlength=placement.ranks)),
        call_start=np.append(first, len(order)).astype(np.int64),
        stream=np.unique(stream, return_inverse=True)[1].astype(np.int64),
        communicator=np.where(kind == PutSignalCall.LOCAL, -1, stream),
        name=name,
        **{key: rows[key] for key in _COLUMNS},
    )


def _table(length: int, **columns: _Ints | int) -> dict[str, _Ints]:
    """Rows of operations; columns that are not given are 0, or -1 where that means none."""
    none = {"peer": -1, "source_buffer": -1, "addend_buffer": -1, "target_buffer": -1}
    return {
        key: np.broadcast_to(np.asarray(columns.get(key, none.get(key, 0)), dtype=np.int64), length)
        for key in (*_KEYS, *_COLUMNS)
    }


def _communicator(steps: CommunicatorSteps, communicator: int, ranks: int) -> list[dict[str, _Ints]]:
    """The operations of one communicator."""
    puts = np.concatenate([np.zeros((9, 0), dtype=np.int64), *steps.puts], axis=1)
    tick, src, dst, signal, source_buffer, source, target_buffer, target, count = puts
    when, giver, taker = np.array(sorted(steps.credits), dtype=np.int64).reshape(-1, 3).T
    arrivals = np.stack(
        [
            np.concatenate([dst, taker]),
            np.concatenate([tick, when]),
            np.concatenate([src, giver]),
            np.concatenate([signal, np.zeros_like(when)]),
        ]
    )
    waits, number = np.unique(arrivals, axis=1, return_counts=True)
    tables = [
        _table(
            len(tick),
            rank=src,
            tick=tick,
            communicator=communicator,
            kind=int(PutSignalCall.TRANSFER),
            order=(dst - src) % ranks * len(tick) + np.arange(len(tick)),  # not all to one peer at first
            act=int(PutSignalAct.PUT),
            peer=dst,
            signal=signal,
            count=count,
            source_buffer=source_buffer,
            source=source,
            target_buffer=target_buffer,
            target=target,
        ),
        _table(
            len(when),
            rank=giver,
            tick=when,
            communicator=communicator,
            kind=int(PutSignalCall.TRANSFER),
            order=ranks * len(tick) + np.arange(len(when)),
            act=int(PutSignalAct.SIGNAL),
            peer=taker,
        ),
        _table(
            len(number),
            rank=waits[0],
            tick=waits[1],
            communicator=communicator,
            kind=int(PutSignalCall.WAIT),
            order=np.arange(len(number)),
            act=int(PutSignalAct.WAIT),
            peer=waits[2],
            signal=waits[3],
            count=number,
        ),
    ]
    if steps.locals:
        tables.append(_local(_joined(np.concatenate(steps.locals, axis=1)), communicator))
    return tables


def _joined(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Local operations, those joined that follow each other in all operands."""
    tick, wave, rank, act, source_buffer, source, addend_buffer, addend, target_buffer, target, count = rows
    order = np.lexsort((source, target, target_buffer, addend_buffer, source_buffer, act, rank, wave, tick))
    rows = rows[:, order]
    tick, wave, rank, act, source_buffer, source, addend_buffer, addend, target_buffer, target, count = rows
    head = begins_run(tick, wave, rank, act, source_buffer, addend_buffer, target_buffer)
    head[1:] |= source[1:] != (source + count)[:-1]
    head[1:] |= target[1:] != (target + count)[:-1]
    head[1:] |= (addend_buffer[1:] >= 0) & (addend[1:] != (addend + count)[:-1])
    if not len(head):
        return rows
    first = np.flatnonzero(head)
    joined = rows[:, first]
    joined[-1] = np.add.reduceat(count, first)
    return joined


def _local(rows: NDArray[np.int64], communicator: int) -> dict[str, _Ints]:
    tick, _, rank, act, source_buffer, source, addend_buffer, addend, target_buffer, target, count = rows
    return _table(
        len(tick),
        rank=rank,
        tick=tick,
        communicator=communicator,
        kind=int(PutSignalCall.LOCAL),
        order=np.arange(len(tick)),
        act=act,
        count=count,
        source_buffer=source_buffer,
        source=source,
        addend_buffer=addend_buffer,
        addend=np.maximum(addend, 0),
        target_buffer=target_buffer,
        target=target,
    )


def _own_copies(
    communicators: Sequence[CommunicatorSteps], placement: BufferLayout, communicator: int
) -> dict[str, _Ints]:
    """What every rank copies from its input to its output."""
    received = [np.zeros((3, 0), dtype=np.int64)]
    for steps in communicators:
        for puts in steps.puts:
            into = puts[6] == Buffer.OUTPUT
            received.append(puts[[2, 7, 8]][:, into])
        received += [rows[[2, 9, 10]][:, rows[8] == Buffer.OUTPUT] for rows in steps.locals]
    copies = np.array(placement.own_copies(*np.concatenate(received, axis=1)), dtype=np.int64).reshape(-1, 4)
    rank, source, target, count = copies.T
    return _table(
        len(rank),
        rank=rank,
        tick=-2,
        communicator=communicator,
        kind=int(PutSignalCall.LOCAL),
        order=np.arange(len(rank)),
        act=int(PutSignalAct.COPY),
        count=count,
        source_buffer=int(Buffer.INPUT),
        source=source,
        target_buffer=int(Buffer.OUTPUT),
        target=target,
    )
