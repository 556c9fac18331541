"""Steps of a program as rows of MSCCL XML, checked against the limits of a runtime.

In the file a step waits for one step at most. Further waits stand in ``nop`` rows before it, which count as positions
at run time; a step that does nothing has no row of its own, and what waits for it waits for the step that follows.
Runs of ``re`` rows into one slot are executed as one; where that would be wrong (counts that differ, runs that are too
long) the run is broken by ``hasdep``, which does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.export.formats import Excess
from coppice.export.msccl.targets import MscclTarget, target_named
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.rows import offsets, positions

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
    """Rows of all thread blocks, one after the other."""

    start: _Ints  # Rows of thread block b are `start[b] .. start[b + 1] - 1` (int64).
    step: _Ints  # Step of the program that a row carries out, -1 for a `nop` (int64)
    depid: _Ints  # Thread block that is waited for, or -1 (int64)
    deps: _Ints  # Position in it, as the file counts them, or -1 (int64)
    hasdep: _Ints  # 1 where a row is waited for or ends a run of `re`, otherwise 0 (int64)


def rows_of(program: Program, target: MscclTarget) -> XmlRows:
    """Rows of a program.

    Args:
        target: The runtime, for what it joins.
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
    """Row, and thread block, that each dependency of ``kept`` names, for steps in thread blocks ``block``."""
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
        raise InputError(
            f"a step of rank {rank[first]} waits for step {position[first]} of thread block {other[first]}, which "
            "does nothing or is not there: verify the program."
        )
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


STEPS = "steps in a thread block"
"""The limit that more channels may keep."""


def excesses(program: Program, *, target: str) -> tuple[Excess, ...]:
    """Limits of a target that a program exceeds, the most important first."""
    chosen, rows = rows_for(program, target)
    return tuple(excesses_of_rows(program, rows, chosen))


def rows_for(program: Program, target: str) -> tuple[MscclTarget, XmlRows]:
    """Target by name, with the rows of a program for it."""
    chosen = target_named(target)
    if program.collective not in chosen.collectives:
        known = ", ".join(chosen.collectives)
        raise InputError(
            f"expected a collective that {chosen.title} runs ({known}), found {program.collective}: "
            "choose another target."
        )
    return chosen, rows_of(program, chosen)


def excesses_of_rows(program: Program, rows: XmlRows, target: MscclTarget) -> Iterator[Excess]:
    """As :func:`excesses`, for rows."""
    types = [TYPE_OF_OP[StepOp(int(op))] for op in np.unique(program.op)]
    refused = [name for name in types if name in target.refused_types]
    if refused:
        fused = int(sum((program.op == op).sum() for op in StepOp if TYPE_OF_OP[op] in target.refused_types))
        yield Excess(
            limit=f"fused steps ({', '.join(refused)})",
            found=fused,
            allowed=0,
            where="they receive and send at once",
            advice="lower the plan without fused steps.",
        )
    blocks = np.diff(program.rank_start)
    fewer = "plan fewer trees (`trees`), or export with fewer channels (`channels`)."
    yield from _over(blocks, target.max_blocks, "thread blocks", "rank", fewer)
    for limit, found, allowed, where, advice in _largest(program, rows, target, fewer):
        if found > allowed:
            yield Excess(limit=limit, found=found, allowed=allowed, where=where, advice=advice)
    ranks = np.array([program.num_ranks])
    yield from _over(ranks, target.max_children, "GPUs in a file", "algorithm", "plan fewer ranks.")
    nodes = blocks + rows.start[program.rank_start[1:]] - rows.start[program.rank_start[:-1]]
    nodes += program.num_ranks + 1
    yield from _over(nodes, target.max_nodes - 1, "elements that a rank reads", "rank", fewer)


def _largest(
    program: Program, rows: XmlRows, target: MscclTarget, fewer: str
) -> Iterator[tuple[str, int, int, str, str]]:
    """(limit, how much is needed at most, how much there is, where, what to do) of thread blocks, channels, steps."""
    steps, more = np.diff(rows.start), "export with more channels (`channels`)."
    if len(steps):
        worst = int(np.argmax(steps))
        rank, block = program.block_id(worst)
        where = f"thread block {block} of rank {rank}"
        yield STEPS, int(steps[worst]), target.max_steps, where, f"plan fewer trees (`trees`), or {more}"
    where, advice = "the highest channel plus one", f"export with `channels={target.max_channels}`."
    yield "channels", program.num_channels, target.max_channels, where, advice
    for column, word in ((program.block_send, "send"), (program.block_recv, "receive")):
        used = np.flatnonzero(column >= 0)
        if len(used):
            channels = program.num_channels + 1
            pair = program.block_rank[used].astype(np.int64) * channels + program.block_channel[used]
            which, number = np.unique(pair, return_counts=True)
            rank, channel = divmod(int(which[np.argmax(number)]), channels)
            where = f"channel {channel} of rank {rank}"
            limit = f"thread blocks that {word} on one channel"
            yield limit, int(number.max()), target.max_peers, where, more
    if program.num_steps:
        step = int(np.argmax(program.count))
        rank, block, place = program.step_place(step)
        where = f"step {place} of thread block {block} of rank {rank}"
        advice = "plan fewer trees (`trees`), so that chunks are larger."
        yield "slots in one step", int(program.count[step]), target.max_count - 1, where, advice
    where = "the loader keeps it in 8 bits"
    yield (
        "as the thread block that is waited for",
        int(rows.depid.max(initial=-1)),
        target.max_depid,
        where,
        fewer,
    )
    offset = max(int(program.src_offset.max(initial=0)), int(program.dst_offset.max(initial=0)))
    where = "the loader keeps it in 16 bits"
    yield "as the highest slot", offset, target.max_offset, where, "plan fewer trees (`trees`)."


def _over(values: NDArray[np.int64], allowed: int, limit: str, unit: str, advice: str) -> Iterator[Excess]:
    """The largest of ``values``, if it passes the limit."""
    if len(values) and int(values.max()) > allowed:
        worst = int(np.argmax(values))
        more = int((values > allowed).sum())
        where = f"{unit} {worst}" if more == 1 else f"{unit} {worst}, and {more - 1} others"
        yield Excess(limit=limit, found=int(values[worst]), allowed=allowed, where=where, advice=advice)
