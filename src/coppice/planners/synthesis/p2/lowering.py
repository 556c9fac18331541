"""Lower reduction programs to transfers: rings and chains, in all groups concurrently.

All-reduce, reduce-scatter and all-gather go round rings, reduce and broadcast along chains, block after block, so that
all of a chain is busy. A ring over several levels goes back and forth: where it leaves one node, it enters the next at
the same position, as networks of rails want it; and there are as many rings as devices in the innermost level, each
shifted by one, so that all of them are used. Instructions follow each other as calls of a library would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.planners.synthesis.p2.reductions import Form, GroupOperation, Program, ReductionCall
from coppice.rows import offsets
from coppice.schedule.schedule import Op, Schedule, routed
from coppice.topology.model import Topology
from coppice.topology.operations import subset

_CHAINS = (GroupOperation.REDUCE, GroupOperation.BROADCAST)

_BLOCKS = 64
"""A chain passes on its data in so many blocks, unless another number is asked for."""

_CHAIN_BLOCKS = (1, 8, 64, 512)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GroupCall(Brief):
    """Transfers of one instruction in one group."""

    instruction: ReductionCall  # The instruction
    rounds: int  # Rounds that it takes: steps of a ring in each phase, or blocks of a chain
    step: NDArray[np.int64]  # Step of each transfer, from 0 (int64)
    src: NDArray[np.int64]  # Sending member (int64)
    dst: NDArray[np.int64]  # Receiving member (int64)
    chunk: NDArray[np.int64]  # Chunk of the group that is sent (int64)
    op: NDArray[np.int64]  # Copy or reduce (int64)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.step.max(initial=-1)) + 1


def chunks_of(program: Program, sizes: Sequence[int], blocks: Sequence[int] | None = None) -> int:
    """Number of chunks of a group's data, divisible by every device, ring and block of a chain.

    Args:
        sizes: Cardinality of each level of the group.
        blocks: Blocks of the chains of each call; None: 64.
    """
    rings = max((len(_rings(instruction, sizes)) for instruction in program), default=1)
    devices = prod(sizes)
    return devices * rings * lcm(*(-(-count // devices) for count in blocks or (_BLOCKS,)))


def transfers_of(program: Program, sizes: Sequence[int], blocks: Sequence[int] | None = None) -> int:
    """Number of transfers of a program in one group, without listing them.

    Args:
        sizes: Cardinality of each level of the group.
        blocks: Blocks of the chains of each call; None: 64.

    Examples:
        >>> from coppice.planners.synthesis.p2.reductions import programs
        >>> [transfers_of(program, [4]) == sum(len(call.chunk) for call in calls_of(program, [4]))
        ...  for program in programs(1)]
        [True, True, True]
    """
    total = Fraction(0)
    for instruction, share in zip(program, shares_of(program, sizes), strict=True):
        places = instruction.members(sizes)
        count = len(places[0])
        times = {GroupOperation.ALL_REDUCE: 2, GroupOperation.ALL_GATHER: count}.get(instruction.operation, 1)
        total += share * len(places) * (count - 1) * times
    return int(total * chunks_of(program, sizes, blocks))


def block_counts(instruction: ReductionCall) -> tuple[int, ...]:
    """Candidate numbers of blocks, ascending: the best depends on the size; a ring has no choice."""
    return _CHAIN_BLOCKS if instruction.operation in _CHAINS else (_BLOCKS,)


def calls_of(program: Program, sizes: Sequence[int], blocks: Sequence[int] | None = None) -> list[GroupCall]:
    """Instructions of a program as transfers between the members of one group.

    Args:
        sizes: Cardinality of each level of the group.
        blocks: Blocks of the chains of each call; None: 64.

    Examples:
        >>> from coppice.planners.synthesis.p2.reductions import programs
        >>> [call.steps for call in calls_of(programs(1)[1], [4])]
        [3, 3]
    """
    blocks = blocks or [_BLOCKS] * len(program)
    held = [np.arange(chunks_of(program, sizes, blocks))] * prod(sizes)
    shares = shares_of(program, sizes)
    calls = []
    for instruction, count, share in zip(program, blocks, shares, strict=True):
        moves = _CallMoves(_rings(instruction, sizes), None, _even(count, share, sizes))
        for members in instruction.members(sizes):
            rows = [held[device] for device in members]
            after = moves.together(members, rows, instruction.operation)
            for device, kept in zip(members, after, strict=True):
                held[device] = kept
        calls.append(moves.call(instruction))
    return calls


def shares_of(program: Program, sizes: Sequence[int]) -> list[Fraction]:
    """Share of the data that devices hold before each instruction.

    Args:
        sizes: Cardinality of each level of the group.

    Examples:
        >>> from coppice.planners.synthesis.p2.reductions import programs
        >>> shares_of(programs(1)[1], [4])
        [Fraction(1, 1), Fraction(1, 4)]
    """
    devices = prod(sizes)
    held = [devices] * devices
    shares = []
    for instruction in program:
        places = instruction.members(sizes)
        shares.append(Fraction(held[places[0][0]], devices))
        for members in places:
            first, count = held[members[0]], len(members)
            if instruction.operation is GroupOperation.REDUCE_SCATTER:
                after = [first // count] * count
            elif instruction.operation is GroupOperation.ALL_GATHER:
                after = [first * count] * count
            elif instruction.operation is GroupOperation.REDUCE:
                after = [first] + [0] * (count - 1)
            else:
                after = [first] * count
            for device, rows in zip(members, after, strict=True):
                held[device] = rows
    return shares


def call_alone(
    instruction: ReductionCall, sizes: Sequence[int], share: Fraction, *, most_rounds: int, blocks: int
) -> GroupCall:
    """Transfers of one instruction by itself, as far as they affect its time.

    Args:
        sizes: Cardinality of each level of the group.
        share: Share of the data with which its devices begin.
        most_rounds: Only so many rounds of it.
    """
    chunks = chunks_of((instruction,), sizes, (blocks,))
    rows = int(chunks * share)
    moves = _CallMoves(_rings(instruction, sizes), most_rounds, _even(blocks, share, sizes))
    for members in instruction.members(sizes):
        apart = rows if instruction.operation is GroupOperation.ALL_GATHER else 0
        held = [np.arange(n * apart, n * apart + rows) for n in range(len(members))]
        moves.together(members, held, instruction.operation)
    return moves.call(instruction)


def round_trip(sizes: Sequence[int]) -> list[int]:
    """Hamiltonian cycle of a grid in which neighbours differ at one level.

    Where the outermost level has an odd number and the rest two positions, the last step differs at two levels.

    Args:
        sizes: Positions at each level, from the outside in.

    Examples:
        >>> round_trip([2, 3]), round_trip([3, 3])
        ([0, 1, 2, 5, 4, 3], [0, 1, 2, 5, 3, 4, 7, 8, 6])
    """
    if len(sizes) == 1:
        return list(range(sizes[0]))
    inner = round_trip(sizes[1:])
    size, last = len(inner), sizes[0] - 1
    rows = [inner if n % 2 == 0 else inner[::-1] for n in range(sizes[0])]
    if (
        last % 2 == 0 and last and size > 2
    ):  # two more boxes are needed to come back to where the first one began
        rows[last - 1] = [*reversed(inner[2:]), inner[0], inner[1]]
        rows[last] = [*inner[1:], inner[0]]
    return [n * size + position for n, row in enumerate(rows) for position in row]


def _rings(instruction: ReductionCall, sizes: Sequence[int]) -> list[list[int]]:
    """Orders in which the members of a place pass on, each a ring."""
    inside = instruction.form is Form.INSIDE
    spanned = sizes[instruction.depth :] if inside else sizes[instruction.ancestor : instruction.depth]
    order = round_trip(spanned)
    if len(spanned) == 1:
        return [order]
    size = spanned[-1]
    return [[each // size * size + (each + shift) % size for each in order] for shift in range(size)]


class _CallMoves:
    """Collects the transfers of one instruction."""

    def __init__(self, rings: list[list[int]], most_rounds: int | None, blocks: int) -> None:
        self._rings = rings
        self._blocks = blocks
        self._most = most_rounds
        self._parts: list[tuple[NDArray[np.int64], ...]] = []
        self._rounds = 0

    def _add(self, step: int, src: int, dst: int, chunks: NDArray[np.int64], op: Op) -> None:
        same = [np.full(len(chunks), value, dtype=np.int64) for value in (step, src, dst)]
        self._parts.append((*same, chunks, np.full(len(chunks), int(op), dtype=np.int64)))

    def _limited(self, rounds: int) -> int:
        self._rounds = rounds
        return rounds if self._most is None else min(rounds, self._most)

    def together(
        self, members: list[int], rows: list[NDArray[np.int64]], operation: GroupOperation
    ) -> list[NDArray[np.int64]]:
        """Add the transfers of one place; what each member holds afterwards is returned."""
        count = len(members)
        if operation is GroupOperation.ALL_GATHER:
            self._around(members, rows, 0, Op.COPY, first=0)
            return [np.sort(np.concatenate(rows))] * count
        if operation in (GroupOperation.REDUCE, GroupOperation.BROADCAST):
            self._along(members, rows[0], reduce=operation is GroupOperation.REDUCE)
            if operation is GroupOperation.BROADCAST:
                return [rows[0]] * count
            return [rows[0]] + [rows[0][:0]] * (count - 1)
        parts = np.array_split(rows[0], count)
        after = self._around(members, parts, 0, Op.REDUCE, first=1)
        if operation is GroupOperation.REDUCE_SCATTER:
            return parts
        self._around(members, parts, after, Op.COPY, first=0)
        return [rows[0]] * count

    def _around(
        self, members: list[int], parts: list[NDArray[np.int64]], begin: int, op: Op, *, first: int
    ) -> int:
        """Rings: in every step each member sends the part after that of the step before to the next member."""
        count, rounds = len(members), self._limited(len(members) - 1)
        for number, ring in enumerate(self._rings):
            blocks = [np.array_split(parts[place], len(self._rings))[number] for place in ring]
            for step in range(rounds):
                for place in range(count):
                    block = blocks[(place - first - step) % count]
                    src, dst = members[ring[place]], members[ring[(place + 1) % count]]
                    self._add(begin + step, src, dst, block, op)
        return begin + rounds

    def _along(self, members: list[int], rows: NDArray[np.int64], *, reduce: bool) -> None:
        """Chains to or from the first member, block after block."""
        op = Op.REDUCE if reduce else Op.COPY
        hops = len(members) - 1
        for ring, own in zip(self._rings, np.array_split(rows, len(self._rings)), strict=True):
            at = ring.index(0)
            order = [members[place] for place in ring[at:] + ring[:at]]
            if reduce:
                order.reverse()
            blocks = np.array_split(own, self._blocks if hops > 1 else 1)
            for number, block in enumerate(blocks[: self._limited(len(blocks))]):
                for hop in range(hops):
                    self._add(number + hop, order[hop], order[hop + 1], block, op)

    def call(self, instruction: ReductionCall) -> GroupCall:
        """All of them, step after step."""
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        step, src, dst, chunk, op = (column[order] for column in columns)
        return GroupCall(
            instruction=instruction, rounds=self._rounds, step=step, src=src, dst=dst, chunk=chunk, op=op
        )


def _even(wanted: int, share: Fraction, sizes: Sequence[int]) -> int:
    """At most so many blocks, a number that divides what a ring has of the share."""
    devices = prod(sizes)
    rows = int(devices * -(-wanted // devices) * share)
    return next((n for n in range(min(wanted, rows), 0, -1) if rows % n == 0), 1)


def schedule_of_all(
    topology: Topology,
    groups: NDArray[np.int64],  # `(groups, members)` ranks
    calls: Sequence[GroupCall],  # What happens in each, one after the other
    chunks: int,
    *,
    relay_gpus: bool = False,  # GPUs may pass on what is not theirs
) -> Schedule:
    """Calls of all groups as concurrent transfers on the whole topology.

    Chunk c of group g is chunk ``g * chunks + c``, and all are of one size: with M bytes in each group the size is
    M times the number of groups. Every group is an all-reduce of its own, and not the whole.
    """
    count, members = groups.shape
    starts = np.cumsum([0, *(call.steps for call in calls)])
    step = np.concatenate([call.step + begin for call, begin in zip(calls, starts[:-1], strict=True)])
    src, dst, chunk, op = (
        np.concatenate([getattr(call, name) for call in calls]) for name in ("src", "dst", "chunk", "op")
    )
    order = np.argsort(np.repeat(step, count), kind="stable")
    group = np.tile(np.arange(count), len(step))[order]
    row = np.repeat(np.arange(len(step)), count)[order]
    ranks = topology.num_ranks
    per_rank = chunks // members
    weight = np.zeros(ranks, dtype=np.int64)
    weight[: count * members] = 1
    schedule = _schedule(
        topology,
        weight=weight,
        per_slot=per_rank,
        columns=(
            groups[group, src[row]],
            groups[group, dst[row]],
            group * chunks + chunk[row],
            op[row],
            step[row],
        ),
    )
    return routed(schedule, relay_gpus=relay_gpus)


def group_schedule(
    topology: Topology,
    members: Sequence[int],
    calls: Sequence[GroupCall],
    chunks: int,
    *,
    relay_gpus: bool = False,  # Other GPUs stay and may forward
) -> Schedule:
    """All-reduce of one group on its part of the topology and the switches."""
    own = subset(topology, [int(rank) for rank in members], relays=relay_gpus)
    whole = np.arange(len(members), dtype=np.int64)[None, :]
    return schedule_of_all(own, whole, calls, chunks, relay_gpus=relay_gpus)


def _schedule(
    topology: Topology, *, weight: NDArray[np.int64], per_slot: int, columns: tuple[NDArray[np.int64], ...]
) -> Schedule:
    src, dst, chunk, op, step = columns
    slots = np.flatnonzero(weight)
    return Schedule(
        topology=topology,
        collective=Collective.ALL_REDUCE,
        root=-1,
        slot_weight=weight,
        chunk_slot=np.repeat(slots, per_slot).astype(np.int32),
        chunk_share=np.ones(len(slots) * per_slot, dtype=np.int64),
        src=src.astype(np.int32),
        dst=dst.astype(np.int32),
        chunk=chunk.astype(np.int32),
        op=op.astype(np.int8),
        path=np.full(len(src), -1, dtype=np.int32),
        step=step.astype(np.int32),
        after_start=offsets(np.zeros(len(src), dtype=np.int64)),
        after=np.zeros(0, dtype=np.int32),
        path_start=np.zeros(1, dtype=np.int64),
        path_nodes=np.zeros(0, dtype=np.int32),
    )
