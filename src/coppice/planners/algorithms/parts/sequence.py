"""An all-reduce made of two schedules: a reduction, then what spreads its result."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.schedule.columns import num_slots
from coppice.schedule.schedule import Schedule

__all__ = ["all_reduce_of"]


def all_reduce_of(first: Schedule, second: Schedule) -> Schedule:
    """``second`` begins in the step after the last one of ``first``.

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
