"""Instances: a schedule several times side by side, each on its part of every block of the data.

One connection of a program is served by one thread block at either end, which copies at a limited rate. Where links
are faster than that, the data are cut into N parts, and N copies of the schedule carry one part each, over connections
of their own. Each part of a block is contiguous, so that chunks that travel together still do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.program.placement import in_units
from coppice.schedule.schedule import Schedule

__all__ = ["replicated"]


def replicated(schedule: Schedule, instances: int) -> tuple[Schedule, NDArray[np.int64]]:
    """A schedule ``instances`` times, each on its part of every slot (of all the data, in an all-reduce).

    Args:
        schedule: A verified schedule.
        instances: N, 1 or more.

    Returns:
        The schedule, whose row ``i * N + q`` is row i of instance q; and the instance of each of its chunks.

    Raises:
        InputError: If the chunks of an all-reduce are no whole multiples of a unit.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.schedule.lower import lower
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("ring", gpus=3), collective=Collective.ALL_GATHER)
        >>> twice, part = replicated(lower(plan(problem, trees=1).plan.body), 2)
        >>> twice.num_transfers, part.tolist()
        (12, [0, 1, 0, 1, 0, 1])
    """
    if instances == 1:
        return schedule, np.zeros(schedule.num_chunks, dtype=np.int64)
    if schedule.collective is Collective.ALL_REDUCE:
        schedule = _in_one_slot(schedule)
    slot = schedule.chunk_slot.astype(np.int64)
    sizes = np.bincount(slot, minlength=len(schedule.slot_weight))
    starts = np.cumsum(sizes) - sizes
    within = np.arange(schedule.num_chunks) - starts[slot]
    parts = np.arange(instances)
    chunk = (starts[slot] * instances + within)[:, None] + parts * sizes[slot][:, None]
    place = chunk.reshape(-1)
    slots, shares = np.empty_like(place), np.empty_like(place)
    part = np.empty_like(place)
    slots[place] = np.repeat(slot, instances)
    shares[place] = np.repeat(schedule.chunk_share, instances)
    part[place] = np.tile(parts, schedule.num_chunks)
    waits = np.diff(schedule.after_start)
    rows = np.repeat(np.arange(schedule.num_transfers), instances)
    after_start = np.concatenate([[0], np.cumsum(waits[rows])])
    turn = np.arange(int(after_start[-1])) - np.repeat(after_start[:-1], waits[rows])
    waiting = np.repeat(np.arange(len(rows)), waits[rows])
    after = schedule.after[schedule.after_start[rows[waiting]] + turn].astype(np.int64) * instances
    made = replace(
        schedule,
        chunk_slot=slots.astype(np.int32),
        chunk_share=shares,
        src=schedule.src[rows],
        dst=schedule.dst[rows],
        chunk=chunk[schedule.chunk].reshape(-1).astype(np.int32),
        op=schedule.op[rows],
        path=schedule.path[rows],
        step=schedule.step[rows],
        after_start=after_start.astype(np.int64),
        after=(after + waiting % instances).astype(np.int32),
    )
    return made, part


def _in_one_slot(schedule: Schedule) -> Schedule:
    """An all-reduce with all its data in slot 0, sized as before: parts of all slots then lie side by side."""
    units = in_units(schedule)
    count = np.zeros(schedule.num_chunks, dtype=np.int64)
    has = units.start[1:] > units.start[:-1]
    count[has] = units.count[units.start[:-1][has]]
    weight = np.zeros_like(schedule.slot_weight)
    weight[0] = 1
    return replace(
        schedule, slot_weight=weight, chunk_slot=np.zeros_like(schedule.chunk_slot), chunk_share=count
    )
