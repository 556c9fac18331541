"""MSCCL XML row by row and line by line: the slow reference of the writer in numpy, for all below ``<algo>``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.export.msccl.targets import MscclTarget
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.memory import Buffer

_TYPE = {
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
_LETTER = {Buffer.NONE: "i", Buffer.INPUT: "i", Buffer.OUTPUT: "o", Buffer.SCRATCH: "s"}


@dataclass(frozen=True)
class _Rows:
    """Steps as the file has them: nops written out, one dependency each."""

    start: NDArray[np.int64]
    step: list[int]
    depid: list[int]
    deps: list[int]
    hasdep: list[int]


def lines_of(program: Program, target: MscclTarget) -> Iterator[str]:
    """The text below ``<algo>``, GPU by GPU."""
    rows = _rows(program, target)
    attributes = _step_attributes(program, rows)
    starts: list[int] = rows.start.tolist()
    rank_start: list[int] = program.rank_start.tolist()
    send, recv, channel = (
        column.tolist() for column in (program.block_send, program.block_recv, program.block_channel)
    )
    slots = zip(
        program.input_chunks.tolist(),
        program.output_chunks.tolist(),
        program.scratch_chunks.tolist(),
        strict=True,
    )
    for rank, (inputs, outputs, scratch) in enumerate(slots):
        lines = [f'  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{scratch}">\n']
        for block in range(rank_start[rank], rank_start[rank + 1]):
            lines.append(
                f'    <tb id="{block - rank_start[rank]}" send="{send[block]}" recv="{recv[block]}" '
                f'chan="{channel[block]}">\n'
            )
            lines.extend(
                f'      <step s="{place}" {text}/>\n'
                for place, text in enumerate(attributes[starts[block] : starts[block + 1]])
            )
            lines.append("    </tb>\n")
        lines.append("  </gpu>\n")
        yield "".join(lines)
    yield "</algo>\n"


def _rows(program: Program, target: MscclTarget) -> _Rows:
    """Steps with one dependency each, further ones in nops before them."""
    op: list[int] = program.op.tolist()
    dep_start: list[int] = program.dep_start.tolist()
    step_start: list[int] = program.step_start.tolist()
    dep_block: list[int] = program.dep_block.tolist()
    dep_step: list[int] = program.dep_step.tolist()
    nop = int(StepOp.NOP)
    rows = _Rows(np.zeros(len(step_start), dtype=np.int64), [], [], [], [])
    row_of = [-1] * len(op)
    first_dep: list[tuple[int, int]] = []
    for block in range(len(step_start) - 1):
        waits: list[tuple[int, int]] = []
        idle: list[int] = []
        for step in range(step_start[block], step_start[block + 1]):
            low, high = dep_start[step], dep_start[step + 1]
            if high > low:
                waits.extend(zip(dep_block[low:high], dep_step[low:high], strict=True))
            if op[step] == nop:
                # The loaders want the last wait on the step that follows, and announce no nop.
                idle.append(step)
                continue
            for wait in waits[:-1]:
                rows.step.append(-1)
                first_dep.append(wait)
            row_of[step] = len(rows.step)
            for each in idle:
                row_of[each] = len(rows.step)
            rows.step.append(step)
            first_dep.append(waits[-1] if waits else (-1, -1))
            waits, idle = [], []
        rows.start[block + 1] = len(rows.step)
    _place_waits(program, rows, row_of, first_dep)
    _break_runs(program, rows, target)
    return rows


def _place_waits(
    program: Program, rows: _Rows, row_of: Sequence[int], waits: Sequence[tuple[int, int]]
) -> None:
    """Positions of the steps that are waited for as the file counts them."""
    rank_start: list[int] = program.rank_start.tolist()
    step_start: list[int] = program.step_start.tolist()
    starts: list[int] = rows.start.tolist()
    block_rank: list[int] = program.block_rank.tolist()
    rows.hasdep.extend([0] * len(rows.step))
    for block in range(len(starts) - 1):
        rank = block_rank[block]
        for row in range(starts[block], starts[block + 1]):
            other, position = waits[row]
            if other < 0:
                rows.depid.append(-1)
                rows.deps.append(-1)
                continue
            target = rank_start[rank] + other
            there = (
                target < rank_start[rank + 1] and 0 <= position < step_start[target + 1] - step_start[target]
            )
            awaited = row_of[step_start[target] + position] if there else -1
            if awaited < 0:
                raise InputError(
                    f"a step of rank {rank} waits for step {position} of thread block {other}, which does nothing or "
                    "is not there: verify the program."
                )
            rows.depid.append(other)
            rows.deps.append(awaited - starts[target])
            rows.hasdep[awaited] = 1


def _break_runs(program: Program, rows: _Rows, target: MscclTarget) -> None:
    """End runs of ``re`` that the loaders would join although they must not be joined."""
    reduce = int(StepOp.REDUCE)
    op: list[int] = program.op.tolist()
    count: list[int] = program.count.tolist()
    columns = (program.dst_buffer, program.dst_offset, program.src_buffer)
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    starts = set(rows.start.tolist())
    length, before = 0, -1
    for row, step in enumerate(rows.step):
        if step < 0 or op[step] != reduce:
            length, before = 0, -1
            continue
        joined = before >= 0 and row not in starts and rows.depid[row] < 0 and keys[before] == keys[step]
        if joined and rows.hasdep[row - 1]:
            joined = False
        if joined and (count[before] != count[step] or length >= target.max_fused):
            rows.hasdep[row - 1] = 1
            joined = False
        length = length + 1 if joined else 1
        before = step


def _step_attributes(program: Program, rows: _Rows) -> list[str]:
    """The attributes of every step after ``s``."""
    types = [_TYPE[op] for op in StepOp]
    letters = [_LETTER[Buffer(place)] for place in (0, 1, 2, -1)]
    columns = zip(
        program.op.tolist(),
        program.src_buffer.tolist(),
        program.src_offset.tolist(),
        program.dst_buffer.tolist(),
        program.dst_offset.tolist(),
        program.count.tolist(),
        strict=True,
    )
    bodies = [
        f'type="{types[op]}" srcbuf="{letters[source]}" srcoff="{source_offset}" dstbuf="{letters[target]}" '
        f'dstoff="{target_offset}" cnt="{count}"'
        for op, source, source_offset, target, target_offset, count in columns
    ]
    idle = 'type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0"'
    return [
        f'{bodies[step] if step >= 0 else idle} depid="{depid}" deps="{deps}" hasdep="{hasdep}"'
        for step, depid, deps, hasdep in zip(rows.step, rows.depid, rows.deps, rows.hasdep, strict=True)
    ]
