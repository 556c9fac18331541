"""Writes a program as MSCCL XML for one of the runtimes that read it.

The three loaders are hand-written and strict: one blank between attributes, double quotes, no tabs, no XML
declaration, a step with at most one dependency. Further dependencies of a step stand in ``nop`` steps before it,
which count as positions at run time. Runs of ``re`` steps into one slot are executed as one; where that would be
wrong (counts that differ, runs that are too long) the run is broken by ``hasdep``, which does no harm.

A program that passes a limit of its target is refused with the limit, by how much, and the next step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.errors import CheckError, InputError
from coppice.export.msccl_xml_targets import Target, target_named
from coppice.program.program import Buffer, Program, StepOp
from coppice.topology.writer import write_atomically

__all__ = ["Excess", "encode_msccl_xml", "excesses", "msccl_xml", "write_msccl_xml"]

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


@dataclass(frozen=True, kw_only=True)
class Excess:
    """A limit of the target that a program passes.

    Attributes:
        limit: What is limited, in words.
        found: How much the program needs.
        allowed: How much the target has.
        where: Where most of it is.
        advice: What to do.
    """

    limit: str
    found: int
    allowed: int
    where: str
    advice: str

    @property
    def sentence(self) -> str:
        """The limit, by how much, where, and the next step."""
        if not self.allowed:
            return f"{self.found:,} {self.limit} where none are allowed ({self.where}): {self.advice}"
        return (
            f"{self.found:,} {self.limit} where {self.allowed:,} are allowed, {self.found - self.allowed:,} too many "
            f"({self.where}): {self.advice}"
        )


@dataclass(frozen=True)
class _Rows:
    """Steps as the file has them: nops written out, one dependency each."""

    start: NDArray[np.int64]
    step: list[int]
    depid: list[int]
    deps: list[int]
    hasdep: list[int]


def write_msccl_xml(program: Program, path: str | os.PathLike[str], *, target: str) -> None:
    """Write an MSCCL XML file; an interrupted write leaves the old file, or none.

    Args:
        program: What to write.
        path: Where; ``-`` is standard output.
        target: Name of the runtime, as in ``TARGETS``.

    Raises:
        CheckError: If the program passes a limit of the target.
        InputError: If the target does not exist, or the file cannot be written.
    """
    text = msccl_xml(program, target=target)
    if os.fspath(path) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_atomically(path, text.encode())


def msccl_xml(program: Program, *, target: str) -> str:
    """The text of an MSCCL XML file; the same program gives the same bytes.

    Args:
        program: What to write.
        target: Name of the runtime, as in ``TARGETS``.

    Raises:
        CheckError: If the program passes a limit of the target.
        InputError: If the target does not exist.
    """
    chosen = target_named(target)
    found = excesses(program, target=target)
    if found:
        more = f" ({len(found) - 1} further limits are passed as well)" if len(found) > 1 else ""
        msg = f"the program does not fit {chosen.title}: it has {found[0].sentence}{more}"
        raise CheckError(msg)
    return "".join(encode_msccl_xml(program, chosen))


def excesses(program: Program, *, target: str) -> tuple[Excess, ...]:
    """The limits of a target that a program passes, the most telling first.

    Args:
        program: Any program.
        target: Name of the runtime.

    Raises:
        InputError: If the target does not exist, does not run the collective, or the program holds what no
            MSCCL XML can say (a dependency on a step that is not there).
    """
    chosen = target_named(target)
    if program.collective not in chosen.collectives:
        known = ", ".join(chosen.collectives)
        msg = (
            f"expected a collective that {chosen.title} runs ({known}), found {program.collective}: "
            "choose another target."
        )
        raise InputError(msg)
    return tuple(_excesses(program, _rows(program, chosen), chosen))


def encode_msccl_xml(program: Program, target: Target) -> Iterator[str]:
    """Pieces of the text, without any check against the target's limits.

    Args:
        program: What to write.
        target: The runtime, for names and attributes.
    """
    yield _head(program, target)
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


def _head(program: Program, target: Target) -> str:
    from coppice import __version__

    largest = target.unlimited_bytes if program.max_bytes is None else program.max_bytes
    attributes = {
        "name": _name(program.name, target),
        "proto": program.protocol,
        "nchannels": program.num_channels,
        "nchunksperloop": program.num_chunks,
        "ngpus": program.num_ranks,
        "coll": target.collectives[program.collective],
        "inplace": int(program.in_place),
        "outofplace": int(program.out_of_place),
        "minBytes": program.min_bytes,
        "maxBytes": largest,
    }
    if program.collective.rooted:
        attributes["root"] = program.root
    text = " ".join(f'{key}="{value}"' for key, value in attributes.items())
    return f"<!-- Coppice {__version__}: for {target.versions} -->\n<algo {text}>\n"


def _name(name: str, target: Target) -> str:
    """A label of letters, digits and a few signs that no loader stumbles over."""
    clean = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name
    )
    return clean[: target.max_name or 63] or "coppice"


def _rows(program: Program, target: Target) -> _Rows:
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
                msg = (
                    f"a step of rank {rank} waits for step {position} of thread block {other}, which does nothing or "
                    "is not there: verify the program."
                )
                raise InputError(msg)
            rows.depid.append(other)
            rows.deps.append(awaited - starts[target])
            rows.hasdep[awaited] = 1


def _break_runs(program: Program, rows: _Rows, target: Target) -> None:
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


def _excesses(program: Program, rows: _Rows, target: Target) -> Iterator[Excess]:
    types = [_TYPE[StepOp(int(op))] for op in np.unique(program.op)]
    refused = [name for name in types if name in target.refused_types]
    if refused:
        fused = int(sum((program.op == op).sum() for op in StepOp if _TYPE[op] in target.refused_types))
        yield Excess(
            limit=f"fused steps ({', '.join(refused)})",
            found=fused,
            allowed=0,
            where="they receive and send at once",
            advice="lower the plan without fused steps.",
        )
    blocks = np.diff(program.rank_start)
    fewer = "plan fewer trees (`--trees`), or export with fewer channels (`--channels`)."
    yield from _over(blocks, target.max_blocks, "thread blocks", "rank", fewer)
    steps = np.diff(rows.start)
    worst = int(np.argmax(steps)) if len(steps) else 0
    if len(steps) and steps[worst] > target.max_steps:
        rank, block = program.block_id(worst)
        yield Excess(
            limit="steps in a thread block",
            found=int(steps[worst]),
            allowed=target.max_steps,
            where=f"thread block {block} of rank {rank}",
            advice="plan fewer trees (`--trees`), or export with more channels (`--channels`).",
        )
    if program.num_channels > target.max_channels:
        yield Excess(
            limit="channels",
            found=program.num_channels,
            allowed=target.max_channels,
            where="the highest channel plus one",
            advice=f"export with `--channels {target.max_channels}`.",
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
            advice="plan fewer trees (`--trees`), so that chunks are larger.",
        )
    if rows.depid and max(rows.depid) > target.max_depid:
        yield Excess(
            limit="as the thread block that is waited for",
            found=max(rows.depid),
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
            advice="plan fewer trees (`--trees`).",
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


def _peers(program: Program, target: Target) -> Iterator[Excess]:
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
                advice="export with more channels (`--channels`).",
            )
