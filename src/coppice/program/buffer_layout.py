"""Buffer layout: buffer and slot of each rank's value of each chunk of a schedule.

All chunks become runs of equal *units*, so many that every chunk is a whole number of them; a unit is a chunk of the
program. A rank's value of a chunk lies where the collective puts it at the start. From the first transfer into it on it
lies in the output, if it belongs there, else in the input if that may be overwritten (in place), else in scratch
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.memory import Buffer
from coppice.rows import offsets, positions
from coppice.schedule.schedule import Schedule

MOST_UNITS = 2**24
"""Most units that M bytes are cut into."""

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SubChunks:
    """Chunks of a schedule as intervals of equal sub-chunks, cut where an interval would be too long."""

    num_chunks: int  # C, units in M bytes (in one rank's buffer, for an all-to-all)
    block: int  # SubChunks of a slot where all slots are equal (B), else C
    slot: _Ints  # Slot of each run (int64)
    first: _Ints  # First unit of each run; units of later slots follow those of earlier ones (int64)
    count: _Ints  # SubChunks of each run, 1 or more (int64)
    # Runs of chunk c are `start[c] .. start[c + 1] - 1`; chunks without bytes have none (int64).
    start: _Ints

    @property
    def of_chunk(self) -> _Ints:
        """Number of sub-chunks of each chunk, where intervals are not cut."""
        units = np.zeros(len(self.start) - 1, dtype=np.int64)
        has = self.start[1:] > self.start[:-1]
        units[has] = self.count[self.start[:-1][has]]
        return units


def in_sub_chunks(schedule: Schedule, *, max_count: int | None = None) -> SubChunks:
    """Divide the chunks of a schedule into sub-chunks."""
    ranks = schedule.topology.num_ranks
    weights: list[int] = schedule.slot_weight.tolist()
    slots, shares = schedule.chunk_slot.tolist(), schedule.chunk_share.tolist()
    total: list[int] = [0] * len(weights)
    for slot, share in zip(slots, shares, strict=True):
        total[slot] += share
    blocks = schedule.collective.sharded
    exchange = schedule.collective is Collective.ALL_TO_ALL
    # Of an all-to-all, what a rank has for itself goes nowhere.
    sized = [weight for slot, weight in enumerate(weights) if not (exchange and slot % (ranks + 1) == 0)]
    if exchange and len(set(sized)) > 1:
        raise InputError(
            f"expected an all-to-all in which every rank has as much for every other, found demands of {min(sized)} to "
            f"{max(sized)}: runtimes have no call for unequal demands; plan without them, or run the plan as it is."
        )
    if blocks and len(set(sized)) > 1:
        raise InputError(
            f"expected blocks of equal size, found weights {min(sized)} to {max(sized)}: programs cut the data "
            "into equal blocks; plan without weights."
        )
    whole = 1 if blocks else sum(weights)
    per = 1
    for slot, share in zip(slots, shares, strict=True):
        size = min(weights[slot], 1) if blocks else weights[slot]
        if share and size:
            per = lcm(per, whole * total[slot] // gcd(whole * total[slot], size * share))
        if per * (ranks if blocks else 1) > MOST_UNITS:
            raise InputError(
                f"expected chunks that are whole multiples of 1/{MOST_UNITS} of the data, found smaller ones: "
                "plan with fewer trees."
            )
    first, cursor = [], 0
    count = []
    for slot, share in zip(slots, shares, strict=True):
        size = min(weights[slot], 1) if blocks else weights[slot]
        begin = max(cursor, slot * per) if blocks else cursor
        units = size * share * per // (whole * total[slot]) if total[slot] else 0
        first.append(begin)
        count.append(units)
        cursor = begin + units
    most = max_count or max([1, *count])
    pieces = -(-np.array(count, dtype=np.int64) // most)
    chunk = np.repeat(np.arange(len(count)), pieces)
    before = positions(pieces) * most
    return SubChunks(
        num_chunks=per * ranks if blocks else per,
        block=per,
        slot=np.array(slots, dtype=np.int64)[chunk],
        first=np.array(first, dtype=np.int64)[chunk] + before,
        count=np.minimum(np.array(count, dtype=np.int64)[chunk] - before, most),
        start=offsets(pieces),
    )


def refuse(collective: Collective, *, in_place: bool, instances: int) -> None:
    """Refuse a plan that no program of this kind can perform."""
    if collective is Collective.ALL_TO_ALL and in_place:
        raise InputError(
            "expected an all-to-all out of place: in place, it would overwrite what is still to be sent."
        )
    if instances < 1:
        raise InputError(f"expected 1 instance or more, found {instances}.")


@dataclass(frozen=True, eq=False)
class BufferLayout:
    """Slots of values, for arrays of ranks and intervals."""

    collective: Collective
    ranks: int
    root: int
    in_place: bool
    units: SubChunks

    @property
    def allows_in_place(self) -> bool:
        """Whether the collective can run in place."""
        return self.collective is not Collective.ALL_TO_ALL

    def at_start(self, run: _Ints) -> tuple[_Ints, _Ints]:
        """(buffer, offset) of an interval at a rank that has it initially."""
        unit, slot = self.units.first[run], self.units.slot[run]
        buffer = np.full(len(run), Buffer.INPUT, dtype=np.int64)
        match self.collective:
            case Collective.ALL_GATHER | Collective.GATHER:
                offset = unit - slot * self.units.block
            case Collective.ALL_TO_ALL:
                offset = unit - slot // self.ranks * self.units.num_chunks
            case _:
                offset = unit
        if self.in_place and self.collective in (
            Collective.ALL_GATHER,
            Collective.ALL_REDUCE,
            Collective.BROADCAST,
        ):
            return np.full(len(run), Buffer.OUTPUT, dtype=np.int64), unit
        return buffer, offset

    def after_receive(self, rank: _Ints, run: _Ints) -> tuple[_Ints, _Ints]:
        """(buffer, offset) written by transfers; scratch offsets are assigned later, and -1."""
        unit, slot = self.units.first[run], self.units.slot[run]
        wanted = self.wanted(rank, slot)
        offset = unit
        match self.collective:
            case Collective.REDUCE_SCATTER | Collective.SCATTER:
                offset = unit - slot * self.units.block
            case Collective.ALL_TO_ALL:
                block = self.units.block
                offset = slot // self.ranks * block + unit - slot * block
            case _:
                pass
        if self.in_place and self.collective in (Collective.REDUCE, Collective.REDUCE_SCATTER):
            return np.full(len(run), Buffer.INPUT, dtype=np.int64), unit
        return np.where(wanted, Buffer.OUTPUT, Buffer.SCRATCH).astype(np.int64), np.where(wanted, offset, -1)

    def wanted(self, rank: _Ints, slot: _Ints) -> NDArray[np.bool_]:
        """Whether the slot belongs to the rank's output."""
        match self.collective:
            case Collective.REDUCE_SCATTER | Collective.SCATTER:
                return np.asarray(rank == slot)
            case Collective.ALL_TO_ALL:
                return np.asarray(rank == slot % self.ranks)
            case Collective.REDUCE | Collective.GATHER:
                return np.asarray(rank == self.root)
            case _:
                return np.ones(len(slot), dtype=np.bool_)

    def own_copies(self, rank: _Ints, first: _Ints, count: _Ints) -> list[tuple[int, int, int, int]]:
        """(rank, first input slot, first output slot, count) of local copies.

        What a rank receives into its output anyway is left out.

        Args:
            rank: Rank of each interval of an output that is received.
        """
        stays = self._stays()
        begin, end = np.zeros(self.ranks, dtype=np.int64), np.zeros(self.ranks, dtype=np.int64)
        for owner, _, target, length in stays:
            begin[owner], end[owner] = target, target + length
        inside = np.flatnonzero((first < end[rank]) & (first + count > begin[rank]))
        received: dict[int, list[tuple[int, int]]] = {}
        for row in inside[np.argsort(first[inside], kind="stable")].tolist():
            received.setdefault(int(rank[row]), []).append((int(first[row]), int(count[row])))
        copies = []
        for owner, source, target, length in stays:
            done = 0
            for slot, slots in [*received.get(owner, ()), (target + length, 0)]:
                if slot - target > done:
                    copies.append((owner, source + done, target + done, slot - target - done))
                done = max(done, slot - target + slots)
        return copies

    def _stays(self) -> list[tuple[int, int, int, int]]:
        """(rank, first input slot, first output slot, count) of what ranks need of their own input."""
        units = self.units
        block, chunks = units.block, units.num_chunks
        alone = self.ranks == 1
        if self.in_place:
            return []
        match self.collective:
            case Collective.ALL_GATHER:
                return [(rank, 0, rank * block, block) for rank in range(self.ranks)]
            case Collective.ALL_TO_ALL:
                return [(rank, rank * block, rank * block, block) for rank in range(self.ranks)]
            case Collective.BROADCAST:
                return [(self.root, 0, 0, chunks)]
            case Collective.GATHER:
                return [(self.root, 0, self.root * block, block)]
            case Collective.SCATTER:
                return [(self.root, self.root * block, 0, block)]
            case _:
                return [(0, 0, 0, chunks)] if alone else []
