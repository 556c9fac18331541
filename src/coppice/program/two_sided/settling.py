"""Repair programs whose sends complete too early (:mod:`coppice.program.two_sided.early_sends`).

The remedy is a step with a barrier at its end that changes nothing: a copy of a slot that was sent onto itself, right
behind the send. What waited for the send waits for the copy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coppice.program.deadlock import Deadlock
from coppice.program.memory import memory_of
from coppice.program.two_sided.cutting import Buffers, fifo_depth
from coppice.program.two_sided.early_sends import early_sends
from coppice.program.two_sided.order import execution_order
from coppice.program.two_sided.program import Program, StepOp
from coppice.program.two_sided.races import written_early
from coppice.program.two_sided.structure import check_structure
from coppice.schedule.verification.report import Findings


def settled(program: Program, buffers: Buffers) -> Program:
    """The program without early completion of sends that others wait for.

    Returns:
        The program itself where nothing is to be done.
    """
    needed = np.zeros(program.num_steps, dtype=np.bool_)
    needed[_awaited_early(program, buffers)] = True
    if not needed.any():
        return program
    before = np.concatenate([[0], np.cumsum(needed)])  # copies before each step
    # Row of each step, and behind it the row of its copy.
    row = np.arange(program.num_steps) + before[:-1]
    total = program.num_steps + int(before[-1])
    source = np.empty(total, dtype=np.int64)
    source[row] = np.arange(program.num_steps)
    copies = row[needed] + 1
    source[copies] = np.flatnonzero(needed)
    columns = {
        name: getattr(program, name)[source]
        for name in ("op", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count")
    }
    columns["op"][copies] = StepOp.COPY
    columns["dst_buffer"][copies] = columns["src_buffer"][copies]
    columns["dst_offset"][copies] = columns["src_offset"][copies]
    columns["count"][copies] = 1
    target = program.dep_target
    first = program.step_start[program.dep_target_block]
    moved = row[target] + needed[target] - (first + before[first])
    waits = np.zeros(total, dtype=np.int64)
    waits[row] = np.diff(program.dep_start)
    return replace(
        program,
        step_start=program.step_start + before[program.step_start],
        dep_start=np.concatenate([[0], np.cumsum(waits)]),
        dep_step=moved.astype(np.int32),
        **columns,
    )


def _awaited_early(program: Program, buffers: Buffers) -> NDArray[np.int64]:
    """Early sends whose slots are written while they may still be read; none of a program that is not sound."""
    early = early_sends(program, buffers)
    messages = check_structure(program, Findings()) if early.any() else None
    if messages is None:
        return np.zeros(0, dtype=np.int64)
    try:
        order = execution_order(program, messages, depth=fifo_depth(program.protocol))
    except Deadlock:
        return np.zeros(0, dtype=np.int64)
    ways = [way for way in (True, False) if (program.in_place if way else program.out_of_place)]
    memories = (memory_of(program, in_place=way) for way in ways)
    return np.unique(
        np.concatenate([written_early(program, memory, messages, order, early).first for memory in memories])
    )
