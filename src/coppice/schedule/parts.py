"""Cutting every chunk into parts that travel side by side: over several paths, or in several channels or instances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.errors import InputError
from coppice.rows import rows_of_groups
from coppice.schedule.schedule import Schedule

__all__ = ["MAX_ROWS", "in_parts"]

MAX_ROWS = 2**26
"""Most transfers that a cut may lead to: a few gigabytes of columns."""


def in_parts(schedule: Schedule, parts: int) -> Schedule:
    """The same schedule with every chunk cut into ``parts`` equal parts that keep its steps.

    Part j of chunk c is chunk ``c * parts + j``, and part j of transfer i is row ``i * parts + j``, so that a column
    of the new rows is made from one of the old rows with ``numpy.repeat``.

    Args:
        schedule: A verified schedule.
        parts: Number of parts, 1 or more.

    Raises:
        InputError: If ``parts`` is less than 1, or the result has more than 2^26 transfers.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.catalogue import case_of, find, make
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.topology.presets import preset
        >>> ring = find("ring", Collective.ALL_GATHER)
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_GATHER)
        >>> halves = in_parts(make(ring, case_of(ring, problem)), 2)
        >>> halves.num_chunks, halves.num_transfers, halves.chunk[:4].tolist()
        (8, 24, [0, 1, 2, 3])
    """
    rows = schedule.num_transfers
    if parts < 1 or parts * max(rows, schedule.num_chunks) > MAX_ROWS:
        msg = f"expected 1 or more parts and at most {MAX_ROWS} transfers in all, found {parts} x {rows}: use fewer."
        raise InputError(msg)
    if parts == 1:
        return schedule
    part = np.arange(parts, dtype=np.int32)
    waits, after_start = rows_of_groups(schedule.after_start, np.repeat(np.arange(rows), parts))
    after_part = np.repeat(np.tile(part, rows), np.diff(after_start))
    return replace(
        schedule,
        chunk_slot=np.repeat(schedule.chunk_slot, parts),
        chunk_share=np.repeat(schedule.chunk_share, parts),
        src=np.repeat(schedule.src, parts),
        dst=np.repeat(schedule.dst, parts),
        chunk=np.repeat(schedule.chunk, parts) * np.int32(parts) + np.tile(part, rows),
        op=np.repeat(schedule.op, parts),
        path=np.repeat(schedule.path, parts),
        step=np.repeat(schedule.step, parts),
        after_start=after_start,
        after=schedule.after[waits] * np.int32(parts) + after_part,
    )
