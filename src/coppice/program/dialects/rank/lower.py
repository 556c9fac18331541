"""Lower a schedule to per-rank programs: messages, reductions and copies with their memory.

Chunks are cut into equally many pieces, none longer than ``piece_elements``. Piece j of a transfer happens j steps
after the transfer's own step (:mod:`coppice.program.dialects.rank.steps`), so that pieces follow each other through the
network and every rank passes on what it has before it waits for more. Where chunks are not cut, transfers of one
step between the same two ranks whose memory is contiguous at both ends travel as one message.

Both ends of a message find its bounds by themselves, from what is known of all ranks: steps, initial and final
addresses, and which values in scratch memory are contiguous. Addresses in scratch memory are each rank's own business.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.rank.layout import TransferMemory
from coppice.program.dialects.rank.program import RankBuffer, RankProgram
from coppice.program.dialects.rank.rows import RankRows
from coppice.program.dialects.rank.steps import transfer_steps
from coppice.rows import offsets, ranges
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule

_LOWERED: WeakKeyDictionary[Forest, Schedule] = WeakKeyDictionary()


def lower_for_run(
    plan: Schedule | Forest, count: int, *, in_place: bool, piece_elements: int | None = None
) -> list[RankProgram]:
    """Lower a schedule to the programs of all ranks.

    Args:
        plan: A verified schedule, or a forest whose trees branch at ranks.
        count: M in elements, 0 or more; it need not divide by the number of ranks.
        in_place: Input and output are one memory, see :mod:`coppice.program.dialects.rank.program`.
        piece_elements: Longest message, None for no limit. Smaller pieces overlap better and cost more messages.

    Raises:
        InputError: If the columns are malformed or contradict each other, or an argument is out of range.

    Examples:
        Two pieces go down a chain of three ranks in three steps:

        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> middle = lower_for_run(chain.schedule(), 10, in_place=True, piece_elements=5)[1]
        >>> [(int(s), int(k), int(p), int(o)) for s, k, p, o in
        ...  zip(middle.step, middle.kind, middle.peer, middle.offset)]
        [(0, 1, 0, 0), (1, 0, 2, 0), (1, 1, 0, 5), (2, 0, 2, 5)]
    """
    schedule = schedule_of(plan)
    _check(schedule, count, piece_elements)
    if schedule.collective is Collective.BARRIER:
        return [barrier_program(schedule, rank) for rank in range(schedule.topology.num_ranks)]
    memory = TransferMemory(schedule, count, in_place=in_place, piece_elements=piece_elements)
    return [RankRows(memory, rank).program() for rank in range(schedule.topology.num_ranks)]


def lower_rank(
    plan: Schedule | Forest, rank: int, count: int, *, in_place: bool, piece_elements: int | None = None
) -> RankProgram:
    """Lower a schedule to the program of one rank, the same as in :func:`lower_for_run`.

    What is common to all counts is computed once for a schedule, and kept as long as the schedule.
    """
    schedule = schedule_of(plan)
    _check(schedule, count, piece_elements)
    if not 0 <= rank < schedule.topology.num_ranks:
        raise InputError(f"expected a rank in 0 .. {schedule.topology.num_ranks - 1}, found {rank}.")
    if schedule.collective is Collective.BARRIER:
        return barrier_program(schedule, rank)
    memory = TransferMemory(schedule, count, in_place=in_place, piece_elements=piece_elements)
    return RankRows(memory, rank).program()


def schedule_of(plan: Schedule | Forest) -> Schedule:
    """The schedule itself, or the lowered forest (cached)."""
    if isinstance(plan, Schedule):
        return plan
    if plan not in _LOWERED:
        _LOWERED[plan] = lower(plan)
    return _LOWERED[plan]


def _check(schedule: Schedule, count: int, piece_elements: int | None) -> None:
    """Refuse counts and pieces that have no meaning."""
    if count < 0:
        raise InputError(f"expected a count of 0 elements or more, found {count}.")
    if piece_elements is not None and piece_elements < 1:
        raise InputError(f"expected pieces of 1 element or more, found {piece_elements}.")
    last = int(transfer_steps(schedule).step.max(initial=0))
    pieces = -(-count // piece_elements) if piece_elements else 1
    if last + pieces + 1 >= np.iinfo(np.int32).max:
        raise InputError(
            f"expected fewer than 2^31 steps, found {last + 1} and {pieces} pieces: use longer pieces."
        )


def barrier_program(schedule: Schedule, rank: int) -> RankProgram:
    """Barrier program of ``rank``: it sends once all messages of earlier steps have arrived.

    Every message is one element that nobody reads: element 0 of SCRATCH is sent, and what arrives in one step lands
    side by side behind it.
    """
    steps = transfer_steps(schedule)
    rows = steps.rank_rows[steps.rank_start[rank] : steps.rank_start[rank + 1]]
    rows = rows[np.lexsort((rows, schedule.src[rows] != rank, steps.step[rows]))]
    sends, step = schedule.src[rows] == rank, steps.step[rows]
    arrivals = np.flatnonzero(~sends)
    times, first, count = np.unique(step[arrivals], return_index=True, return_counts=True)
    offset = np.zeros(len(rows), dtype=np.int64)
    offset[arrivals] = np.arange(len(arrivals)) - first[np.searchsorted(times, step[arrivals])] + 1
    # Every row waits for all that arrived in the last step before its own in which anything did.
    group = np.searchsorted(times, step) - 1
    known = group >= 0
    begin, waits = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    begin[known], waits[known] = first[group[known]], count[group[known]]
    return RankProgram.of_messages(
        rank,
        schedule.topology.num_ranks,
        buffer=RankBuffer.SCRATCH,
        step=step,
        sends=sends,
        peer=np.where(sends, schedule.dst[rows], schedule.src[rows]),
        offset=offset,
        length=np.ones(len(rows), dtype=np.int64),
        predecessors_start=offsets(waits.astype(np.int64)),
        predecessors=arrivals[ranges(begin, waits)],
    )


def ring_program(rank: int, ranks: int, steps: int, width: int) -> RankProgram:
    """Program for measuring: in each of ``steps`` steps ``width`` one-element messages to the next rank.

    Examples:
        >>> ring_program(0, 3, 4, 2).num_rows
        16
    """
    sends = np.tile(np.repeat([True, False], width), steps)
    step = np.repeat(np.arange(steps), 2 * width)
    # An arrival of a step overwrites the same one of the step before.
    waits = ~sends & (step > 0)
    return RankProgram.of_messages(
        rank,
        ranks,
        buffer=RankBuffer.SCRATCH,
        step=step,
        sends=sends,
        peer=np.where(sends, (rank + 1) % ranks, (rank - 1) % ranks),
        offset=np.where(sends, 0, np.tile(np.arange(width), 2 * steps) + 1),
        length=np.ones(len(sends), dtype=np.int64),
        predecessors_start=offsets(waits.astype(np.int64)),
        predecessors=np.flatnonzero(waits) - 2 * width,
    )
