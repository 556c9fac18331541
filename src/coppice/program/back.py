"""The way back: the schedule that a program carries out.

The program is run symbolically. Every message becomes a transfer of each chunk that it brings, a copy where it takes
the place of what the receiver had, a reduction where it is added; values that wait in scratch memory to be added count
from the step that adds them, and those that are never used do not count. Chunks that travel
together all the way become one chunk of the schedule.

A schedule knows one value of a chunk at a rank, which a program need not keep to: a rank that passes on what it
received apart from its own contribution, say. Such programs verify, but are no schedules.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.memory import memory_of
from coppice.program.order import Stuck, execution_order
from coppice.program.program import Program, StepOp
from coppice.program.structure import check_structure, step_name
from coppice.program.verify import fifo_depth
from coppice.schedule.columns import num_slots
from coppice.schedule.report import Findings
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology

__all__ = ["to_schedule"]

_TAKES = frozenset(op for op in StepOp if op.reads_src and (op.sends or op.receives))


@dataclass(slots=True)
class _Move:
    """One chunk of one message.

    ``sent`` and ``written`` are the times of the steps that read and write it, in the order of execution.
    """

    src: int
    dst: int
    op: int
    sent: int
    written: int


def to_schedule(program: Program, topology: Topology) -> Schedule:
    """The schedule that a program carries out, over default routes.

    Args:
        program: A program that verifies.
        topology: Where its ranks are.

    Returns:
        Transfers without steps if an order of rows says it all; otherwise, as where two ranks exchange what they
        have, with the fewest steps.

    Raises:
        InputError: If the topology has another number of ranks, the program cannot be run, or it keeps several values
            of a chunk at one rank.

    Examples:
        >>> from coppice.bounds.result import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.lower import lower_to_program
        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4)
        >>> made = plan(Problem(topology=ring, collective=Collective.ALL_GATHER)).plan
        >>> to_schedule(lower_to_program(made.body), ring).num_transfers
        24
    """
    if topology.num_ranks != program.num_ranks:
        msg = f"expected a topology of {program.num_ranks} ranks, as the program has, found {topology.num_ranks}."
        raise InputError(msg)
    moves = _Trace(program).run()
    unit_moves = [moves.get(unit, []) for unit in range(_num_units(program))]
    return _schedule(program, topology, unit_moves)


def _num_units(program: Program) -> int:
    """Number of chunks of all slots."""
    ranks = program.num_ranks
    return program.num_chunks * (ranks if program.collective is Collective.ALL_TO_ALL else 1)


@dataclass
class _Trace:
    """Runs a program and notes the moves of every chunk."""

    program: Program
    moves: dict[int, list[_Move]] = field(default_factory=lambda: defaultdict(list))
    held: dict[tuple[int, int], int] = field(default_factory=dict)  # contributions of (rank, chunk)
    staged: dict[int, tuple[_Move, int]] = field(default_factory=dict)  # address: arrival, and what was held

    def run(self) -> dict[int, list[_Move]]:
        """The moves of every chunk, in the order in which they are written."""
        program = self.program
        findings = Findings()
        messages = check_structure(program, findings)
        if messages is None:
            msg = f"expected a program that verifies: {findings.failures[0]}"
            raise InputError(msg)
        try:
            order = execution_order(program, messages, depth=fifo_depth(program.protocol))
        except Stuck as circle:
            msg = f"expected a program that verifies: {circle}"
            raise InputError(msg) from None
        memory = memory_of(program, in_place=program.in_place)
        words = [0] * memory.words
        ranks = program.num_ranks
        for first, values in memory.start:
            words[first : first + len(values)] = values
        rank = program.block_rank[program.step_block]
        src = (memory.base[program.src_buffer, rank] + program.src_offset).tolist()
        dst = (memory.base[program.dst_buffer, rank] + program.dst_offset).tolist()
        self._hold_start(words, memory.start, rank_of_start=_ranks_of_start(program))
        sender = dict(zip(messages.recv.tolist(), messages.send.tolist(), strict=True))
        travelling: dict[int, tuple[int, list[int]]] = {}
        at: list[int] = rank.tolist()
        for time, step in enumerate(order):
            op, count, here = StepOp(program.op[step]), int(program.count[step]), at[step]
            out: list[int] = []
            message: list[int] = []
            sent = origin = -1
            if op.receives:
                origin = at[sender[step]]
                sent, message = travelling.pop(sender[step])
            for k in range(count if op is not StepOp.NOP else 0):
                value = words[src[step] + k] if op.reads_src else 0
                if src[step] + k in self.staged and op in _TAKES:
                    self._take(step, here, value, src[step] + k)
                if op.receives and op.reads_src:
                    self._add(step, here, value, message[k], _Move(origin, here, Op.REDUCE, sent, time))
                    value |= message[k]
                elif op.receives:
                    value = message[k]
                    self._arrive(here, value, words, dst[step] + k, _Move(origin, here, Op.COPY, sent, time))
                elif op is StepOp.REDUCE:
                    value = self._reduce(step, here, words, src[step] + k, dst[step] + k, time)
                elif op is StepOp.COPY and (waiting := self.staged.get(src[step] + k)):
                    self.staged[dst[step] + k] = waiting
                if op.sends:
                    if self.held.get((here, value >> ranks)) != value:
                        raise self._strange(step)
                    out.append(value)
                if op.writes_dst:
                    words[dst[step] + k] = value
            if op.sends:
                travelling[step] = (time, out)
        for each in self.moves.values():
            each.sort(key=lambda move: move.written)
        return self.moves

    def _hold_start(
        self, words: list[int], start: tuple[tuple[int, tuple[int, ...]], ...], *, rank_of_start: list[int]
    ) -> None:
        ranks = self.program.num_ranks
        for rank, (first, values) in zip(rank_of_start, start, strict=True):
            for value in words[first : first + len(values)]:
                self.held[rank, value >> ranks] = value

    def _strange(self, step: int) -> InputError:
        return InputError(
            f"{step_name(self.program, step)} handles another value of a chunk than the one its rank holds: expected "
            "one value of each chunk at a rank; verify and use it as a program."
        )

    def _add(self, step: int, here: int, value: int, message: int, move: _Move) -> None:
        """A message is added to a value as it arrives."""
        chunk = message >> self.program.num_ranks
        if self.held.get((here, chunk)) != value:
            raise self._strange(step)
        self.held[here, chunk] = value | message
        self.moves[chunk].append(move)

    def _arrive(self, here: int, message: int, words: list[int], address: int, move: _Move) -> None:
        """A message is written: in place of what the rank holds, or to be added to it later."""
        ranks = self.program.num_ranks
        chunk = message >> ranks
        held = self.held.get((here, chunk), 0)
        self.staged.pop(address, None)
        apart = not held & message & ((1 << ranks) - 1)
        if self.program.collective.reduces and held and apart and words[address] != held:
            self.staged[address] = (move, held)
            return
        self.held[here, chunk] = message
        self.moves[chunk].append(move)

    def _take(self, step: int, here: int, value: int, address: int) -> None:
        """What arrived is used by itself: it took the place of what the rank held."""
        move, before = self.staged.pop(address)
        chunk = value >> self.program.num_ranks
        if self.held.get((here, chunk)) != before:
            raise self._strange(step)
        self.held[here, chunk] = value
        self.moves[chunk].append(move)

    def _reduce(self, step: int, here: int, words: list[int], source: int, target: int, time: int) -> int:
        """What came before is added to what the rank holds, or the other way round."""
        one, other = words[target], words[source]
        chunk = one >> self.program.num_ranks
        staged, value = (source, one) if source in self.staged else (target, other)
        if staged not in self.staged or self.held.get((here, chunk)) != value:
            raise self._strange(step)
        move, _ = self.staged.pop(staged)
        self.moves[chunk].append(_Move(move.src, here, Op.REDUCE, move.sent, time))
        self.held[here, chunk] = one | other
        return one | other


def _ranks_of_start(program: Program) -> list[int]:
    """Ranks that hold something at the start, in order."""
    if program.collective in (Collective.BROADCAST, Collective.SCATTER):
        return [program.root]
    return list(range(program.num_ranks))


def _schedule(program: Program, topology: Topology, unit_moves: list[list[_Move]]) -> Schedule:
    """Join what travels together, and put the rows in order."""
    ranks, chunks = program.num_ranks, program.num_chunks
    collective = program.collective
    slots = num_slots(collective, ranks)
    per_slot = chunks // ranks if collective.sharded else chunks
    if collective is Collective.ALL_REDUCE:
        per_slot = len(unit_moves)  # everything in slot 0
    slot_of: list[int] = []
    share: list[int] = []
    moves: list[list[_Move]] = []
    last: tuple[int, list[tuple[int, int, int, int]]] | None = None
    for unit, each in enumerate(unit_moves):
        mark = (unit // per_slot, [(move.src, move.dst, move.sent, move.written) for move in each])
        if mark == last:
            share[-1] += 1
            continue
        last = mark
        slot_of.append(unit // per_slot)
        share.append(1)
        moves.append(each)
    plain = all(_in_row_order(each) for each in moves)
    rows: list[tuple[int, int, int, _Move]] = []
    for chunk, each in enumerate(moves):
        steps = [-1] * len(each) if plain else _steps(each)
        rows += [(step, move.written, chunk, move) for step, move in zip(steps, each, strict=True)]
    rows.sort(key=lambda row: row[:3])
    weight = np.ones(slots, dtype=np.int64)
    if collective is Collective.ALL_REDUCE:
        weight[1:] = 0
    nothing = np.zeros(0, dtype=np.int32)
    return Schedule(
        topology=topology,
        collective=collective,
        root=program.root,
        slot_weight=weight,
        chunk_slot=np.array(slot_of, dtype=np.int32),
        chunk_share=np.array(share, dtype=np.int64),
        src=np.array([move.src for *_, move in rows], dtype=np.int32),
        dst=np.array([move.dst for *_, move in rows], dtype=np.int32),
        chunk=np.array([chunk for _, _, chunk, _ in rows], dtype=np.int32),
        op=np.array([move.op for *_, move in rows], dtype=np.int8),
        path=np.full(len(rows), -1, dtype=np.int32),
        step=np.array([step for step, *_ in rows], dtype=np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=nothing,
        path_start=np.zeros(1, dtype=np.int64),
        path_nodes=nothing,
    )


def _in_row_order(moves: list[_Move]) -> bool:
    """In the order of writing, no move overwrites what a later one has already sent."""
    latest: dict[int, int] = {}
    for move in moves:
        if latest.get(move.src, -1) > move.sent:
            return False
        latest[move.dst] = move.written
    return True


def _steps(moves: list[_Move]) -> list[int]:
    """The fewest steps such that every move reads what was there before its own step."""
    limits: list[tuple[int, int, int]] = []  # step of the second >= step of the first + gap
    into: dict[int, list[int]] = defaultdict(list)
    for index, move in enumerate(moves):
        into[move.dst].append(index)
    for index, move in enumerate(moves):
        for other in into[move.src]:
            before = moves[other].written <= move.sent  # one step receives first, then sends
            limits.append((other, index, 1) if before else (index, other, 0))
    for written in into.values():
        for one, two in pairwise(written):
            both_add = moves[one].op == Op.REDUCE == moves[two].op
            limits.append((one, two, 0 if both_add else 1))
    steps = [0] * len(moves)
    for _ in range(len(moves) + 1):
        changed = False
        for one, two, gap in limits:
            if steps[two] < steps[one] + gap:
                steps[two] = steps[one] + gap
                changed = True
        if not changed:
            return steps
    msg = "expected transfers that steps can put in order, found a circle of them: use it as a program."
    raise InputError(msg)
