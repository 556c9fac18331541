"""The steps of a program as the rows of an MSCCL XML file.

In the file a step waits for one step at most. Further waits stand in ``nop`` rows before it, which count as positions
at run time; a step that does nothing has no row of its own, and what waits for it waits for the step that follows.
Runs of ``re`` rows into one slot are executed as one; where that would be wrong (counts that differ, runs that are too
long) the run is broken by ``hasdep``, which does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.export.msccl.targets import MscclTarget
from coppice.program.two_sided.program import Program, StepOp
from coppice.rows import offsets, positions

__all__ = ["TYPE_OF_OP", "XmlRows", "rows_of"]

TYPE_OF_OP = {
    StepOp.NOP: "nop",
    StepOp.SEND: "s",
    StepOp.RECV: "r",
    StepOp.COPY: "cpy",
    StepOp.REDUCE: "re",
    StepOp.RECV_COPY_SEND: "rcs",
    StepOp.RECV_REDUCE_SEND: "rrs",
    StepOp.RECV_REDUCE_COPY: "rrc",
    StepOp.RECV_REDUCE_COPY_SEND: "rrcs",
}
"""Word of each operation."""

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class XmlRows:
    """Rows of all thread blocks, one after the other.

    Attributes:
        start: Rows of thread block b are ``start[b] .. start[b + 1] - 1`` (int64).
        step: Step of the program that a row carries out, -1 for a ``nop`` (int64).
        depid: Thread block that is waited for, or -1 (int64).
        deps: Position in it, as the file counts them, or -1 (int64).
        hasdep: 1 where a row is waited for or ends a run of ``re``, otherwise 0 (int64).
    """

    start: _Ints
    step: _Ints
    depid: _Ints
    deps: _Ints
    hasdep: _Ints


def rows_of(program: Program, target: MscclTarget) -> XmlRows:
    """The rows of a program.

    Args:
        program: Any program.
        target: The runtime, for what it joins.

    Raises:
        InputError: If a step waits for one that is not there, or that does nothing and is followed by none.
    """
    real = np.flatnonzero(program.op != StepOp.NOP)
    block = program.step_block
    # The step that does what comes next in the thread block, for every step; -1 where nothing does.
    following = np.searchsorted(real, np.arange(program.num_steps))
    found = following < len(real)
    found[found] = block[real[following[found]]] == block[found]
    following[~found] = -1
    waiting = np.repeat(following, np.diff(program.dep_start))
    kept = np.flatnonzero(waiting >= 0)
    waiting = waiting[kept]
    waits = np.bincount(waiting, minlength=len(real))
    bounds = offsets(np.maximum(waits, 1))
    begin, last, total = bounds[:-1], bounds[1:] - 1, int(bounds[-1])
    step = np.full(total, -1, dtype=np.int64)
    step[last] = real
    start = bounds[np.searchsorted(real, program.step_start)]
    row_of = np.where(following >= 0, last[following] if len(last) else -1, -1)
    row = begin[waiting] + positions(waits)
    depid = np.full(total, -1, dtype=np.int64)
    deps = depid.copy()
    hasdep = np.zeros(total, dtype=np.int64)
    awaited, awaited_block = _awaited(program, row_of, block[real[waiting]], kept)
    depid[row] = program.dep_block[kept]
    deps[row] = awaited - start[awaited_block]
    hasdep[awaited] = 1
    rows = XmlRows(start, step, depid, deps, hasdep)
    _break_runs(program, rows, target)
    return rows


def _awaited(
    program: Program, row_of: _Ints, block: NDArray[np.int32], kept: _Ints
) -> tuple[_Ints, NDArray[np.int64]]:
    """Row, and thread block, that each dependency of ``kept`` names, for steps in thread blocks ``block``.

    Raises:
        InputError: If there is none.
    """
    rank = program.block_rank[block]
    other, position = program.dep_block[kept], program.dep_step[kept]
    awaited_block = program.rank_start[rank] + other
    there = (other >= 0) & (awaited_block < program.rank_start[rank + 1])
    awaited_block = np.where(there, awaited_block, 0)
    if len(kept):
        there &= (position >= 0) & (position < np.diff(program.step_start)[awaited_block])
    awaited = np.full(len(kept), -1, dtype=np.int64)
    awaited[there] = row_of[program.step_start[awaited_block[there]] + position[there]]
    if (awaited < 0).any():
        first = int(np.argmax(awaited < 0))
        msg = (
            f"a step of rank {rank[first]} waits for step {position[first]} of thread block {other[first]}, which "
            "does nothing or is not there: verify the program."
        )
        raise InputError(msg)
    return awaited, awaited_block


def _break_runs(program: Program, rows: XmlRows, target: MscclTarget) -> None:
    """End runs of ``re`` that the loaders would join although they must not be joined."""
    reduces = np.zeros(len(rows.step), dtype=np.bool_)
    reduces[rows.step >= 0] = program.op[rows.step[rows.step >= 0]] == StepOp.REDUCE
    second = np.flatnonzero(reduces[1:] & reduces[:-1]) + 1
    first_of_block = np.zeros(len(rows.step) + 1, dtype=np.bool_)
    first_of_block[rows.start] = True
    second = second[~first_of_block[second] & (rows.depid[second] < 0) & (rows.hasdep[second - 1] == 0)]
    one, other = rows.step[second - 1], rows.step[second]
    for column in (program.dst_buffer, program.dst_offset, program.src_buffer):
        second = second[column[one] == column[other]]
        one, other = rows.step[second - 1], rows.step[second]
    differ = program.count[one] != program.count[other]
    rows.hasdep[second[differ] - 1] = 1
    second = second[~differ]
    # Place of each in its run, whose first row is 0.
    run = np.cumsum(np.concatenate([[0], np.diff(second) != 1])[: len(second)])
    place = np.arange(len(second)) - np.searchsorted(run, run) + 1
    rows.hasdep[second[place % target.max_fused == 0] - 1] = 1
