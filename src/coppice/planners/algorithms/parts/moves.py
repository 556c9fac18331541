"""Builder of schedules from transfers, step by step; join two into an all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.schedule.columns import num_slots
from coppice.schedule.schedule import Op, Schedule

Positions = int | Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True, eq=False, repr=False)
class ChunkLayout(Brief):
    """Division of a buffer into chunks: chunk ``slot * parts + part`` for every divided slot."""

    slot_weight: NDArray[np.int64]  # Relative size of each slot
    slots: NDArray[np.int64]  # Slots that have chunks, ascending
    parts: int  # Chunks of each of these


def blocks(case: AlgorithmCase, parts: int = 1) -> ChunkLayout:
    """P equal blocks, one per position, each of ``parts`` chunks: block b has chunks b * parts + part.

    For all-gather, reduce-scatter, all-reduce, gather and scatter.
    """
    return ChunkLayout(np.ones(case.size, dtype=np.int64), case.positions, parts)


def whole(case: AlgorithmCase, parts: int = 1) -> ChunkLayout:
    """One buffer in ``parts`` equal chunks 0 .. parts - 1.

    For all-reduce, broadcast, reduce and barrier (which moves no bytes).
    """
    slot_weight = np.zeros(num_slots(case.collective, case.size), dtype=np.int64)
    slot_weight[0] = case.collective is not Collective.BARRIER
    return ChunkLayout(slot_weight, np.zeros(1, dtype=np.int64), parts)


def pairs(case: AlgorithmCase) -> ChunkLayout:
    """One block per pair of positions for all-to-all: chunk ``source * P + destination``, as large as demanded."""
    count = case.size * case.size
    sizes = np.ones(count) if case.demands is None else np.array(case.demands).ravel()
    return ChunkLayout(sizes.astype(np.int64), np.arange(count), 1)


class Moves:
    """Collect transfers between positions.

    Args:
        case: What the algorithm serves.
        layout: How the buffer is cut.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=4), collective=Collective.BROADCAST, root=0)
        >>> moves = Moves(case, whole(case))
        >>> moves.add(0, 0, 2, 0)
        >>> moves.add(1, [0, 2], [1, 3], 0)
        >>> moves.schedule().num_transfers
        3
    """

    def __init__(self, case: AlgorithmCase, layout: ChunkLayout) -> None:
        self.case = case
        self.layout = layout
        self._rows: list[NDArray[np.int64]] = []  # Steps, senders, receivers, chunks and operations

    def add(
        self, step: Positions, src: Positions, dst: Positions, chunk: Positions, op: Op = Op.COPY
    ) -> None:
        """Add transfers; arguments are broadcast against each other.

        Args:
            step: Step, 0 or more. Rows of a step may be added at any time; they keep the order of addition.
            chunk: Chunks, as the layout numbers them.
        """
        columns = (step, src, dst, chunk, int(op))
        rows = np.empty((5, *np.broadcast(*columns).shape), dtype=np.int64)
        for column, given in enumerate(columns):
            rows[column] = given
        self._rows.append(rows.reshape(5, -1))

    def schedule(self, *, ordered: bool = False) -> Schedule:
        """Build the schedule, mapping positions to ranks with default routes.

        Args:
            ordered: Claim that reductions join neighbouring intervals of ranks; it is kept in rank order only.
        """
        case, layout = self.case, self.layout
        rows = np.concatenate(self._rows, axis=1) if self._rows else np.zeros((5, 0), np.int64)
        step, src, dst, chunk, op = rows[:, np.argsort(rows[0], kind="stable")]
        slots, place = layout.slots, np.arange(len(layout.slots) * layout.parts)
        if case.order is not None:
            order = np.array(case.order, dtype=np.int64)
            src, dst = order[src], order[dst]
            slots = _renamed(slots, order, layout)
            by_slot = np.argsort(np.repeat(slots, layout.parts), kind="stable")
            place[by_slot] = np.arange(len(by_slot))
            slots = np.sort(slots)
        root = case.root if case.order is None or case.root < 0 else case.order[case.root]
        return Schedule(
            topology=case.topology,
            collective=case.collective,
            root=root,
            slot_weight=layout.slot_weight,
            chunk_slot=np.repeat(slots, layout.parts).astype(np.int32),
            chunk_share=np.ones(len(place), dtype=np.int64),
            src=src.astype(np.int32),
            dst=dst.astype(np.int32),
            chunk=place[chunk].astype(np.int32),
            op=op.astype(np.int8),
            path=np.full(len(src), -1, dtype=np.int32),
            step=step.astype(np.int32),
            after_start=np.zeros(len(src) + 1, dtype=np.int64),
            after=np.zeros(0, dtype=np.int32),
            path_start=np.zeros(1, dtype=np.int64),
            path_nodes=np.zeros(0, dtype=np.int32),
            ordered=ordered and (case.order is None or case.order == tuple(range(case.size))),
        )


def _renamed(slots: NDArray[np.int64], order: NDArray[np.int64], layout: ChunkLayout) -> NDArray[np.int64]:
    """Slots of the ranks that sit at the positions to which ``slots`` belong."""
    count, ranks = len(layout.slot_weight), len(order)
    if count == 1 or len(slots) < count:  # one buffer: it belongs to nobody
        return slots
    if count == ranks:
        return order[slots]
    return order[slots // ranks] * ranks + order[slots % ranks]


def all_reduce_of(first: Schedule, second: Schedule) -> Schedule:
    """Join two phases: ``second`` begins in the step after the last one of ``first``.

    Args:
        first: A reduce, or a reduce-scatter, with steps and default routes.
        second: A broadcast from the same root, or an all-gather, on the same topology. Both cut their slots into
            equal chunks, each in a number of its own.
    """
    ranks = first.topology.num_ranks
    chunks = lcm(first.num_chunks, second.num_chunks)
    slots = np.unique(first.chunk_slot)
    weight = np.zeros(num_slots(Collective.ALL_REDUCE, ranks), dtype=np.int64)
    weight[: len(first.slot_weight)] = first.slot_weight
    steps = int(first.step.max()) + 1 if first.num_transfers else 0
    one, two = _rows(first, chunks, 0), _rows(second, chunks, steps)
    src, dst, chunk, op, step = (np.concatenate(columns) for columns in zip(one, two, strict=True))
    return replace(
        first,
        collective=Collective.ALL_REDUCE,
        root=-1,
        slot_weight=weight,
        chunk_slot=np.repeat(slots, chunks // len(slots)).astype(np.int32),
        chunk_share=np.ones(chunks, dtype=np.int64),
        src=src,
        dst=dst,
        chunk=chunk,
        op=op,
        path=np.full(len(src), -1, dtype=np.int32),
        step=step,
        after_start=np.zeros(len(src) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
    )


def _rows(schedule: Schedule, chunks: int, first_step: int) -> tuple[NDArray[np.integer], ...]:
    """Sender, receiver, chunk, op and step of all rows, with every chunk cut so that there are ``chunks`` in all."""
    parts = chunks // schedule.num_chunks
    chunk = np.arange(chunks, dtype=np.int32).reshape(-1, parts)[schedule.chunk]
    return (
        np.repeat(schedule.src, parts),
        np.repeat(schedule.dst, parts),
        chunk.reshape(-1),
        np.repeat(schedule.op, parts),
        np.repeat(schedule.step + np.int32(first_step), parts),
    )
