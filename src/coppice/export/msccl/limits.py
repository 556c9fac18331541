"""Which limits of a runtime that reads MSCCL XML a program passes: by how much, where, and the next step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.export.exported import Excess
from coppice.export.msccl.rows import TYPE_OF_OP, XmlRows, rows_of
from coppice.export.msccl.targets import MscclTarget, target_named
from coppice.program.two_sided.program import Program, StepOp

__all__ = ["STEPS", "excesses", "excesses_of_rows", "rows_for"]

STEPS = "steps in a thread block"
"""The limit that more channels may keep."""


def excesses(program: Program, *, target: str) -> tuple[Excess, ...]:
    """The limits of a target that a program passes, the most telling first.

    Args:
        program: Any program.
        target: Name of the runtime.

    Raises:
        InputError: If the target does not exist, does not run the collective, or the program holds what no
            MSCCL XML can say (a dependency on a step that is not there).
    """
    chosen, rows = rows_for(program, target)
    return tuple(excesses_of_rows(program, rows, chosen))


def rows_for(program: Program, target: str) -> tuple[MscclTarget, XmlRows]:
    """The target of that name, and the rows of a program for it.

    Raises:
        InputError: As :func:`excesses`.
    """
    chosen = target_named(target)
    if program.collective not in chosen.collectives:
        known = ", ".join(chosen.collectives)
        msg = (
            f"expected a collective that {chosen.title} runs ({known}), found {program.collective}: "
            "choose another target."
        )
        raise InputError(msg)
    return chosen, rows_of(program, chosen)


def excesses_of_rows(program: Program, rows: XmlRows, target: MscclTarget) -> Iterator[Excess]:
    """As :func:`excesses`, from rows that are at hand."""
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
    steps = np.diff(rows.start)
    worst = int(np.argmax(steps)) if len(steps) else 0
    if len(steps) and steps[worst] > target.max_steps:
        rank, block = program.block_id(worst)
        yield Excess(
            limit=STEPS,
            found=int(steps[worst]),
            allowed=target.max_steps,
            where=f"thread block {block} of rank {rank}",
            advice="plan fewer trees (`trees`), or export with more channels (`channels`).",
        )
    if program.num_channels > target.max_channels:
        yield Excess(
            limit="channels",
            found=program.num_channels,
            allowed=target.max_channels,
            where="the highest channel plus one",
            advice=f"export with `channels={target.max_channels}`.",
        )
    yield from _peers(program, target)
    if program.num_steps and int(program.count.max()) >= target.max_count:
        step = int(np.argmax(program.count))
        rank, block, place = program.step_place(step)
        yield Excess(
            limit="slots in one step",
            found=int(program.count[step]),
            allowed=target.max_count - 1,
            where=f"step {place} of thread block {block} of rank {rank}",
            advice="plan fewer trees (`trees`), so that chunks are larger.",
        )
    if int(rows.depid.max(initial=-1)) > target.max_depid:
        yield Excess(
            limit="as the thread block that is waited for",
            found=int(rows.depid.max()),
            allowed=target.max_depid,
            where="the loader keeps it in 8 bits",
            advice=fewer,
        )
    offsets = np.concatenate([program.src_offset, program.dst_offset, [0]])
    if int(offsets.max()) > target.max_offset:
        yield Excess(
            limit="as the highest slot",
            found=int(offsets.max()),
            allowed=target.max_offset,
            where="the loader keeps it in 16 bits",
            advice="plan fewer trees (`trees`).",
        )
    yield from _over(
        np.array([program.num_ranks]), target.max_children, "GPUs in a file", "algorithm", "plan fewer ranks."
    )
    nodes = blocks + rows.start[program.rank_start[1:]] - rows.start[program.rank_start[:-1]]
    yield from _over(
        nodes + program.num_ranks + 1, target.max_nodes - 1, "elements that a rank reads", "rank", fewer
    )


def _over(values: NDArray[np.int64], allowed: int, limit: str, unit: str, advice: str) -> Iterator[Excess]:
    """The largest of ``values``, if it passes the limit."""
    if len(values) and int(values.max()) > allowed:
        worst = int(np.argmax(values))
        more = int((values > allowed).sum())
        where = f"{unit} {worst}" if more == 1 else f"{unit} {worst}, and {more - 1} others"
        yield Excess(limit=limit, found=int(values[worst]), allowed=allowed, where=where, advice=advice)


def _peers(program: Program, target: MscclTarget) -> Iterator[Excess]:
    """Thread blocks of a rank that send, or receive, on one channel."""
    for column, word in ((program.block_send, "send"), (program.block_recv, "receive")):
        used = np.flatnonzero(column >= 0)
        if not len(used):
            continue
        pair = (
            program.block_rank[used].astype(np.int64) * (program.num_channels + 1)
            + program.block_channel[used]
        )
        which, number = np.unique(pair, return_counts=True)
        worst = int(np.argmax(number))
        if number[worst] > target.max_peers:
            rank, channel = divmod(int(which[worst]), program.num_channels + 1)
            yield Excess(
                limit=f"thread blocks that {word} on one channel",
                found=int(number[worst]),
                allowed=target.max_peers,
                where=f"channel {channel} of rank {rank}",
                advice="export with more channels (`channels`).",
            )
