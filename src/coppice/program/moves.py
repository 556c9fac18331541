"""Reconstruct a schedule from a program: trace every chunk to the transfers of a schedule.

A schedule knows one value of a chunk at a rank at a time, which a program need not keep to. Moves of chunks that travel
together all the way become transfers of one chunk, and rows are put in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.memory import MemoryLayout, ProgramMemory
from coppice.schedule.columns import num_slots
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology


@dataclass(slots=True)
class Move:
    """One chunk of one message.

    ``sent`` and ``written`` are the times of the steps that read and write it, in the order of execution.
    """

    src: int
    dst: int
    op: int
    sent: int
    written: int


class ChunkTrace:
    """Chunks held by every rank while a program runs, and the moves that brought them."""

    def __init__(self, memory: ProgramMemory) -> None:
        self.layout = memory.layout  # What decides on the program's values
        self.words = memory.initial()  # Value at each address
        # Value of each (rank, chunk)
        self.held = {
            (rank, self.chunk_of(value)): value for rank, _, values in memory.start for value in values
        }
        self.moves: dict[int, list[Move]] = defaultdict(list)  # Moves of each chunk so far

    def chunk_of(self, value: int) -> int:
        """Chunk of a value."""
        return value >> self.layout.num_ranks

    def added_later(self, held: int, value: int, replaced: int) -> bool:
        """Whether an arriving value is to be added later instead of replacing the held one.

        Args:
            held: What the receiver holds of the chunk, or NOTHING.
            replaced: What lies at the address where it arrives.
        """
        apart = not held & value & ((1 << self.layout.num_ranks) - 1)
        return bool(self.layout.collective.reduces and held and apart and replaced != held)

    def several_values(self, where: str) -> InputError:
        """Error about several values of a chunk at one rank."""
        return InputError(
            f"{where} handles another value of a chunk than the one its rank holds: expected one value of each chunk "
            "at a rank; verify and use it as a program."
        )

    def unit_moves(self) -> list[list[Move]]:
        """Moves of each chunk of each slot, in order."""
        slots = self.layout.num_ranks if self.layout.collective is Collective.ALL_TO_ALL else 1
        return [
            sorted(self.moves.get(unit, ()), key=lambda move: move.written)
            for unit in range(self.layout.num_chunks * slots)
        ]


class StagedTrace(ChunkTrace, ABC):
    """Trace in which arriving values may be staged, to be added later."""

    def __init__(self, memory: ProgramMemory) -> None:
        super().__init__(memory)
        # By address, what arrived there to be added, and what the rank held at that time
        self.staged: dict[int, tuple[Move, int]] = {}

    @abstractmethod
    def strange(self, actor: int) -> InputError:
        """Error about a step or operation on a value other than its rank's."""

    def add(self, actor: int, here: int, value: int, message: int, move: Move) -> None:
        """Add an arriving message to a value."""
        chunk = self.chunk_of(message)
        if self.held.get((here, chunk)) != value:
            raise self.strange(actor)
        self.held[here, chunk] = value | message
        self.moves[chunk].append(move)

    def arrive(self, here: int, message: int, address: int, move: Move) -> None:
        """Write an arriving message: replace the held value, or stage it."""
        chunk = self.chunk_of(message)
        held = self.held.get((here, chunk), 0)
        self.staged.pop(address, None)
        if self.added_later(held, message, self.words[address]):
            self.staged[address] = (move, held)
            return
        self.held[here, chunk] = message
        self.moves[chunk].append(move)

    def take(self, actor: int, here: int, value: int, address: int) -> None:
        """Use a staged value by itself: it replaced the held one."""
        move, before = self.staged.pop(address)
        chunk = self.chunk_of(value)
        if self.held.get((here, chunk)) != before:
            raise self.strange(actor)
        self.held[here, chunk] = value
        self.moves[chunk].append(move)

    def reduce(self, actor: int, here: int, source: int, target: int, time: int) -> int:
        """Add a staged value to the held one, or the other way round."""
        one, other = self.words[target], self.words[source]
        chunk = self.chunk_of(one)
        staged, value = (source, one) if source in self.staged else (target, other)
        if staged not in self.staged or self.held.get((here, chunk)) != value:
            raise self.strange(actor)
        move, _ = self.staged.pop(staged)
        self.moves[chunk].append(Move(move.src, here, Op.REDUCE, move.sent, time))
        self.held[here, chunk] = one | other
        return one | other


def check_ranks(program: MemoryLayout, topology: Topology) -> None:
    """Refuse a topology of other ranks than the program's."""
    if topology.num_ranks != program.num_ranks:
        raise InputError(
            f"expected a topology of {program.num_ranks} ranks, as the program has, found {topology.num_ranks}."
        )


def schedule_of_moves(
    program: MemoryLayout,
    topology: Topology,
    unit_moves: list[list[Move]],  # Moves of each chunk of each slot, in the order in which they are written
    *,
    # Nodes of the path of a move, where something is known of it; None is the default route
    path_of: Callable[[Move], tuple[int, ...] | None] = lambda _: None,
) -> Schedule:
    """Combine moves that travel together, and order them.

    Returns:
        Transfers without steps if an order of rows says it all; otherwise with the fewest steps.
    """
    ranks, chunks = program.num_ranks, program.num_chunks
    collective = program.collective
    slots = num_slots(collective, ranks)
    per_slot = chunks // ranks if collective.sharded else chunks
    if collective is Collective.ALL_REDUCE:
        per_slot = len(unit_moves)  # everything in slot 0
    slot_of: list[int] = []
    share: list[int] = []
    moves: list[list[Move]] = []
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
    rows: list[tuple[int, int, int, Move]] = []
    for chunk, each in enumerate(moves):
        steps = [-1] * len(each) if plain else _steps(each)
        rows += [(step, move.written, chunk, move) for step, move in zip(steps, each, strict=True)]
    rows.sort(key=lambda row: row[:3])
    weight = np.ones(slots, dtype=np.int64)
    if collective is Collective.ALL_REDUCE:
        weight[1:] = 0
    paths: dict[tuple[int, ...], int] = {}
    ways = [path_of(move) for *_, move in rows]
    path = [-1 if way is None else paths.setdefault(way, len(paths)) for way in ways]
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
        path=np.array(path, dtype=np.int32),
        step=np.array([step for step, *_ in rows], dtype=np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=np.cumsum([0, *map(len, paths)], dtype=np.int64),
        path_nodes=np.array([node for way in paths for node in way], dtype=np.int32),
    )


def _in_row_order(moves: list[Move]) -> bool:
    """In the order of writing, no move overwrites what a later one has already sent."""
    latest: dict[int, int] = {}
    for move in moves:
        if latest.get(move.src, -1) > move.sent:
            return False
        latest[move.dst] = move.written
    return True


def _steps(moves: list[Move]) -> list[int]:
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
    raise InputError(
        "expected transfers that steps can put in order, found a circle of them: use it as a program."
    )
