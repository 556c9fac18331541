"""A program as a schedule: which rank sends which chunk to whom, all thread blocks and slots forgotten.

A schedule knows one value per chunk and rank: what the rank's own contribution and the rows into it make. A program
may keep several: what arrived in scratch memory waits there until a step adds it, copies it or sends it on. A row
therefore counts as having come in when its message is first *used*; what was sent before that did not include it.
Rows are put in an order in which every row sends the very version that the program sends. Where there is none,
because ranks exchange values in both directions at once, rows get step numbers: rows of one step do not see each other.

A program that adds to an old version of a chunk after it went on to a new one has no schedule, and is refused.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.program.memory import memory_of
from coppice.program.order import execution_order
from coppice.program.program import Program, StepOp
from coppice.program.structure import check_structure
from coppice.program.verify import fifo_depth, verify_program
from coppice.schedule.columns import num_slots
from coppice.schedule.report import Findings
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology

__all__ = ["schedule_of"]


@dataclass(eq=False, slots=True)
class _Arrived:
    """What messages brought and nothing has used so far; it becomes a version once it is sent on or kept."""

    chunk: int
    rows: list[int]
    version: int = -1
    spent: bool = False


@dataclass(slots=True)
class _Version:
    """A version of the chunk's value at this rank: its state after so many rows came in."""

    chunk: int
    number: int


_Value = _Version | _Arrived


def schedule_of(program: Program, topology: Topology) -> Schedule:
    """The schedule that a program carries out.

    Args:
        program: A program; it is verified first.
        topology: Where its ranks are; rows take default routes.

    Raises:
        CheckError: If the program does not verify, or keeps more values than a schedule can tell.
        InputError: If the topology has another number of ranks.
    """
    if topology.num_ranks != program.num_ranks:
        msg = (
            f"expected a topology of {program.num_ranks} ranks, found {topology.num_ranks} on {topology.name}: "
            "choose one that fits the program."
        )
        raise InputError(msg)
    verify_program(program).require_ok()
    trace = _Trace(program)
    trace.run()
    return trace.schedule(topology)


@dataclass
class _Trace:
    """One execution of a program, row by row."""

    program: Program
    chunk: list[int] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    sent_version: list[int] = field(default_factory=list)
    op: list[int] = field(default_factory=list)
    came_in: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def refuse(self, rank: int, chunk: int) -> NoReturn:
        msg = (
            f"rank {rank} keeps several values of chunk {chunk} and adds to an old one: no schedule can say that; "
            "the file can be verified and exported, not imported."
        )
        raise CheckError(msg)

    def newest(self, rank: int, chunk: int) -> int:
        return len(self.came_in.get((chunk, rank), ()))

    def merge(self, rank: int, rows: list[int], first: Op) -> int:
        """Rows come in, one after the other; the new version."""
        into = self.came_in.setdefault((self.chunk[rows[0]], rank), [])
        for row in rows:
            self.op[row] = int(first)
            into.append(row)
            first = Op.REDUCE
        return len(into)

    def version(self, rank: int, value: _Value) -> int:
        """Number of the version that a value is; what arrived becomes the newest one."""
        if isinstance(value, _Version):
            return value.number
        if value.version < 0:
            if value.spent:
                self.refuse(rank, value.chunk)
            value.version = self.merge(rank, value.rows, Op.COPY)
        return value.version

    def total(self, rank: int, one: _Value, two: _Value) -> _Value:
        """The sum of two values."""
        waiting = [each for each in (one, two) if isinstance(each, _Arrived) and each.version < 0]
        if any(each.spent for each in waiting):
            self.refuse(rank, one.chunk)
        for each in waiting:
            each.spent = True
        if len(waiting) == 2:
            return _Arrived(one.chunk, [*waiting[0].rows, *waiting[1].rows])
        if not waiting:
            self.refuse(rank, one.chunk)
        base = two if waiting[0] is one else one
        if self.version(rank, base) != self.newest(rank, one.chunk):
            self.refuse(rank, one.chunk)
        return _Version(one.chunk, self.merge(rank, waiting[0].rows, Op.REDUCE))

    def send(self, rank: int, to: int, value: _Value) -> _Arrived:
        """A row, and what it brings."""
        self.sent_version.append(self.version(rank, value))
        self.chunk.append(value.chunk)
        self.src.append(rank)
        self.dst.append(to)
        self.op.append(-1)
        return _Arrived(value.chunk, [len(self.chunk) - 1])

    def run(self) -> None:
        """Carry the program out in one order; all orders of a verified program give the same."""
        program = self.program
        findings = Findings()
        messages = check_structure(program, findings)
        if messages is None:
            raise CheckError(findings.failures[0])
        order = execution_order(program, messages, depth=fifo_depth(program.protocol))
        memory = memory_of(program, in_place=program.in_place)
        slots: dict[int, _Value] = {}
        for first, given in memory.start:
            for place, code in enumerate(given):
                slots[first + place] = _Version(code >> program.num_ranks, 0)
        sender: list[int] = np.full(program.num_steps, -1, dtype=np.int64).tolist()
        for send, recv in zip(messages.send.tolist(), messages.recv.tolist(), strict=True):
            sender[recv] = send
        under_way: dict[int, list[_Arrived]] = {}
        base: list[list[int]] = memory.base.tolist()
        rank_of: list[int] = program.block_rank[program.step_block].tolist()
        peer: list[int] = program.block_send[program.step_block].tolist()
        columns = (program.op, program.src_buffer, program.src_offset, program.dst_buffer)
        op, src_buffer, src_offset, dst_buffer = (column.tolist() for column in columns)
        dst_offset, count = program.dst_offset.tolist(), program.count.tolist()
        kinds = list(StepOp)
        for step in order:
            kind, rank = kinds[op[step]], rank_of[step]
            if kind is StepOp.NOP:
                continue
            source = base[src_buffer[step]][rank] + src_offset[step] if kind.reads_src else 0
            target = base[dst_buffer[step]][rank] + dst_offset[step] if kind.writes_dst else 0
            values: list[_Value] = list(under_way.pop(sender[step])) if kind.receives else []
            if kind.reads_src:
                own = [slots[source + place] for place in range(count[step])]
                if kind.receives:
                    values = [self.total(rank, *pair) for pair in zip(own, values, strict=True)]
                elif kind is StepOp.REDUCE:
                    kept = [slots[target + place] for place in range(count[step])]
                    values = [self.total(rank, *pair) for pair in zip(kept, own, strict=True)]
                else:
                    values = own
            if kind.writes_dst:
                for place, value in enumerate(values):
                    slots[target + place] = value
            if kind.sends:
                under_way[step] = [self.send(rank, peer[step], value) for value in values]
        for rank, first, _, expected in memory.end:
            for place in range(len(expected)):
                value = slots[first + place]
                if self.version(rank, value) != self.newest(rank, value.chunk):
                    self.refuse(rank, value.chunk)

    def schedule(self, topology: Topology) -> Schedule:
        """The rows that were used, as a schedule."""
        program = self.program
        ranks, chunks, collective = program.num_ranks, program.num_chunks, program.collective
        before, after, strict = self._constraints()
        rows = np.flatnonzero(np.array(self.op, dtype=np.int8) >= 0)
        step = np.full(len(self.op), -1, dtype=np.int64)
        order = _topological(rows, before, after)
        if order is None:
            step = _levels(len(self.op), before, after, strict)
            version = np.zeros(len(self.op), dtype=np.int64)
            for each in self.came_in.values():
                version[each] = np.arange(len(each))
            order = rows[np.lexsort((rows, version[rows], step[rows]))]
        slots = num_slots(collective, ranks)
        weight = np.ones(slots, dtype=np.int64)
        total = chunks * ranks if collective is Collective.ALL_TO_ALL else chunks
        chunk_slot = np.arange(total, dtype=np.int64) // max(total // slots, 1)
        if collective is Collective.ALL_REDUCE:
            weight[1:] = 0
            chunk_slot[:] = 0
        return Schedule(
            topology=topology,
            collective=collective,
            root=program.root,
            slot_weight=weight,
            chunk_slot=chunk_slot.astype(np.int32),
            chunk_share=np.ones(total, dtype=np.int64),
            src=np.array(self.src, dtype=np.int32)[order],
            dst=np.array(self.dst, dtype=np.int32)[order],
            chunk=np.array(self.chunk, dtype=np.int32)[order],
            op=np.array(self.op, dtype=np.int8)[order],
            path=np.full(len(order), -1, dtype=np.int32),
            step=step[order].astype(np.int32),
            after_start=np.zeros(len(order) + 1, dtype=np.int64),
            after=np.zeros(0, dtype=np.int32),
            path_start=np.zeros(1, dtype=np.int64),
            path_nodes=np.zeros(0, dtype=np.int32),
        )

    def _constraints(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Pairs of rows, the first before the second; strictly, or in the same step at the latest."""
        before: list[int] = []
        after: list[int] = []
        strict: list[bool] = []
        for row, number in enumerate(self.sent_version):
            if self.op[row] < 0:
                continue
            into = self.came_in.get((self.chunk[row], self.src[row]), [])
            if number:
                before.append(into[number - 1])
                after.append(row)
                strict.append(True)
            if number < len(into):
                before.append(row)
                after.append(into[number])
                strict.append(False)
        for into in self.came_in.values():
            before.extend(into[:-1])
            after.extend(into[1:])
            strict.extend([False] * (len(into) - 1))
        return (
            np.array(before, dtype=np.int64),
            np.array(after, dtype=np.int64),
            np.array(strict, dtype=np.bool_),
        )


def _topological(
    rows: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Rows in an order that keeps all pairs, near the order in which they were sent; None if there is none."""
    if (before < after).all():
        return rows
    size = int(rows.max()) + 1
    waits = np.bincount(after, minlength=size).tolist()
    followers: list[list[int]] = [[] for _ in range(size)]
    for one, two in zip(before.tolist(), after.tolist(), strict=True):
        followers[one].append(two)
    ready = [row for row in rows.tolist() if not waits[row]]
    order: list[int] = []
    while ready:
        row = heapq.heappop(ready)
        order.append(row)
        for each in followers[row]:
            waits[each] -= 1
            if not waits[each]:
                heapq.heappush(ready, each)
    return np.array(order, dtype=np.int64) if len(order) == len(rows) else None


def _levels(
    size: int, before: NDArray[np.int64], after: NDArray[np.int64], strict: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Smallest step numbers that keep all pairs.

    Raises:
        CheckError: If there are none.
    """
    level = np.zeros(size, dtype=np.int64)
    for _ in range(size + 1):
        raised = level.copy()
        np.maximum.at(raised, after, level[before] + strict)
        if np.array_equal(raised, level):
            return level
        level = raised
    msg = (
        "ranks exchange values in circles that no order of steps can tell: the file can be verified and exported, "
        "not imported."
    )
    raise CheckError(msg)
