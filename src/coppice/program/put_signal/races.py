"""Races of a put/signal program: accesses of one slot, one of them a write, that no rule puts into an order.

An access lasts from the begin of its call to the end of a call: a put writes until its peer has waited for its signal,
and reads until its own call is over, or until then. Before a rank has begun, and after it has ended, its memory belongs
to the caller, who may read and write all of it: so what is found to be free of races is so when it is run again and
again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import ProgramMemory, conflicting_pairs
from coppice.program.put_signal.order import CallOrder
from coppice.program.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.rows import distinct, inverse, ranges
from coppice.schedule.verification.report import Findings

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _MemoryAccesses:
    """Accesses of stretches of memory."""

    operation: _Ints  # Who does it
    first: _Ints  # First address
    write: NDArray[np.bool_]  # It is a write


def addresses_of(memory: ProgramMemory, buffer: _Ints, slot: _Ints, rank: _Ints) -> _Ints:
    """Address of a slot of each operation; -1 where the operation has no such operand.

    Args:
        buffer: Buffer of each operation, -1 for none.
    """
    return np.where(buffer >= 0, memory.base[np.maximum(buffer, 0), rank] + slot, -1)


def is_identity(program: PutSignalProgram, memory: ProgramMemory) -> NDArray[np.bool_]:
    """Copies of a stretch onto itself, as of one's own block in place: nothing is done for them."""
    source = addresses_of(memory, program.source_buffer, program.source, program.rank_of)
    target = addresses_of(memory, program.target_buffer, program.target, program.rank_of)
    return np.asarray((program.act == PutSignalAct.COPY) & (source == target))


def find_races(order: CallOrder, memory: ProgramMemory, findings: Findings, *, way: str) -> int:
    """Find pairs of accesses that may happen at the same time, or in either order.

    Args:
        way: How it is run, for the failures; may be empty.

    Returns:
        Pairs of accesses that were looked at.
    """
    program = order.program
    found = _accesses(program, memory)
    call = program.call_of
    place = np.lexsort((np.arange(program.num_operations), order.level[call]))
    time = inverse(place)
    count = program.count[found.operation]
    row = np.repeat(np.arange(len(count)), count)
    earlier, later = conflicting_pairs(
        ranges(found.first, count), time[found.operation[row]], found.write[row]
    )
    pairs, _ = distinct(row[earlier] * len(count) + row[later])
    one, two = pairs // max(len(count), 1), pairs % max(len(count), 1)
    first_op, second_op = found.operation[one], found.operation[two]
    apart = first_op != second_op
    one, two, first_op, second_op = (column[apart] for column in (one, two, first_op, second_op))
    ordered = (call[first_op] == call[second_op]) & (program.call_kind[call[first_op]] == PutSignalCall.LOCAL)
    puts = program.act[first_op] == PutSignalAct.PUT
    reads = ~found.write[one]
    own_end = ~puts | reads  # it is over when its call is
    ordered |= own_end & _known(order, call[first_op], call[second_op])
    arrived = order.delivered[first_op]
    asks = np.flatnonzero(puts & (arrived >= 0) & ~ordered)
    ordered[asks] = _known(order, arrived[asks], call[second_op][asks])
    wrong = np.flatnonzero(~ordered)
    sentences = [
        f"{way}{program.place(a)} and {program.place(b)} may come in either order, and {_what(program, a, b)}."
        for a, b in zip(first_op[wrong[:6]].tolist(), second_op[wrong[:6]].tolist(), strict=True)
    ]
    findings.add_examples(sentences, len(wrong), "pairs of operations")
    _callers_memory(order, findings)
    return len(pairs)


def _known(order: CallOrder, earlier: _Ints, later: _Ints) -> NDArray[np.bool_]:
    """As :meth:`CallOrder.known_before`, for many equal questions."""
    calls = order.program.num_calls + 1
    different = earlier != later
    keys, back = np.unique(earlier * calls + later, return_inverse=True)
    if not len(keys):
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(order.known_before(keys // calls, keys % calls)[back] & different)


def _accesses(program: PutSignalProgram, memory: ProgramMemory) -> _MemoryAccesses:
    idle = is_identity(program, memory)
    whose = np.where(program.act == PutSignalAct.PUT, program.peer, program.rank_of)
    operands = (
        (program.source_buffer, program.source, program.rank_of, False),
        (program.addend_buffer, program.addend, program.rank_of, False),
        (program.target_buffer, program.target, whose, True),
    )
    operation, first, write = [], [], []
    for buffer, slot, rank, writes in operands:
        address = addresses_of(memory, buffer, slot, np.maximum(rank, 0))
        rows = np.flatnonzero((address >= 0) & ~idle)
        operation.append(rows)
        first.append(address[rows])
        write.append(np.full(len(rows), writes))
    return _MemoryAccesses(np.concatenate(operation), np.concatenate(first), np.concatenate(write))


def _callers_memory(order: CallOrder, findings: Findings) -> None:
    """Puts to ranks that may not have begun, so that the memory is still the caller's."""
    program = order.program
    puts = np.flatnonzero(program.act == PutSignalAct.PUT)
    keys, back = np.unique(
        np.stack([-1 - program.peer[puts], program.call_of[puts]]), axis=1, return_inverse=True
    )
    early = puts[~order.known_before(*keys)[back.reshape(-1)]] if len(puts) else puts
    sentences = [
        f"{program.place(op)} may write into the memory of rank {program.peer[op]} before that has begun."
        for op in early[:6].tolist()
    ]
    findings.add_examples(sentences, len(early), "puts")


def _what(program: PutSignalProgram, one: int, two: int) -> str:
    """What two operations have in common, roughly."""
    puts = [op for op in (one, two) if program.act[op] == PutSignalAct.PUT]
    if not puts:
        return "use the same slots"
    op = puts[-1]
    target = program.slots(int(program.target_buffer[op]), int(program.target[op]), int(program.count[op]))
    return f"use the same slots (rank {program.peer[op]} {target} is put to, or what the put reads)"
