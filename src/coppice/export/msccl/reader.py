"""Read MSCCL XML into a program, with the semantics of a runtime, and verify it.

What a loader of any target accepts is read, and what published files contain beyond that: missing ``inplace``,
``outofplace``, ``minBytes`` and ``maxBytes``, attributes of other tools, text after the end. Whether a particular
runtime takes the file is asked of :mod:`coppice.doctor`, whether it is right of :mod:`coppice.program`.

Positions of steps count as at run time: in the order of the file, a ``nop`` without a dependency not counted; the
attribute ``s`` plays no part. A wait ends when its step or any later one of that thread block that has ``hasdep``
is done.

Verify the program of an MSCCL XML file for one or all of the runtimes that read it. A file that says nothing of sizes
is judged for those at which it comes to an end; one that names a larger size, or that it has no limit, is wrong beyond.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.formats import PROTOCOLS
from coppice.export.msccl.document import STEP_TYPES, Document, parse_document
from coppice.export.msccl.targets import TARGETS, shares, target_named
from coppice.files import file_name, read_bytes
from coppice.program.dialects.thread_blocks.cutting import PATIENT, SMALLEST, Buffers
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.dialects.thread_blocks.verify import ProgramReport, verify_program
from coppice.program.memory import Buffer
from coppice.rows import offsets

_MAX_RANKS = 65_536
_MAX_CHUNKS = 2**24
_OPS: Mapping[str, StepOp] = {
    "nop": StepOp.NOP,
    "s": StepOp.SEND,
    "r": StepOp.RECV,
    "cpy": StepOp.COPY,
    "re": StepOp.REDUCE,
    "rcs": StepOp.RECV_COPY_SEND,
    "rrs": StepOp.RECV_REDUCE_SEND,
    "rrc": StepOp.RECV_REDUCE_COPY,
    "rrcs": StepOp.RECV_REDUCE_COPY_SEND,
}
_OP_OF_TYPE = np.array([_OPS.get(name, -1) for name in STEP_TYPES], dtype=np.int8)
_READS_SRC = np.array([op.reads_src for op in StepOp])
_WRITES_DST = np.array([op.writes_dst for op in StepOp])
# Defects that leave the meaning of the file open; the others become warnings.
_FATAL = ("missing", "number", "word", "nesting")

Columns = Mapping[str, NDArray[np.int32]]


@dataclass(frozen=True, kw_only=True)
class MscclReading:
    """A program with the remarks of its reader."""

    program: Program  # What the file says
    warnings: tuple[str, ...]  # Sentences about what was assumed or left out


def read_msccl_xml(path: str | os.PathLike[str], *, root: int | None = None) -> MscclReading:
    """Read an MSCCL XML file.

    Args:
        path: The file; ``-`` is standard input.
        root: Root of a rooted collective, where the file does not say it: MSCCL XML has no word for it. None takes
            the attribute ``root`` that Coppice writes, or the one rank that only sends (or only receives).
    """
    return program_of(parse_document(read_bytes(path), file=file_name(path)), root=root)


def program_of(document: Document, *, root: int | None = None) -> MscclReading:
    """Program of a parsed file.

    Args:
        root: As in :func:`read_msccl_xml`.
    """
    return _ProgramReader(document).read(root)


class _ProgramReader:
    """One document on its way to a program."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.file = document.file
        self.warnings: list[str] = []

    def refuse(self, line: int, text: str) -> NoReturn:
        raise InputError(f"{self.file}:{line}: {text}")

    def read(self, root: int | None) -> MscclReading:
        document = self.document
        for defect in document.defects:
            if defect.kind in _FATAL:
                self.refuse(defect.line, f"{defect.text}: mend the file.")
            self.warnings.append(f"{self.file}:{defect.line}: {defect.text}.")
        collective = self.collective()
        ranks = self.attribute("ngpus", low=1, high=_MAX_RANKS)
        parts = shares(collective, ranks)
        chunks = self.attribute("nchunksperloop", low=1, high=_MAX_CHUNKS) * parts
        largest = self.largest()
        gpu, tb, step = (
            {key: np.frombuffer(column, dtype=np.int32) for key, column in columns.items()}
            if len(columns["line"])
            else {key: np.zeros(0, dtype=np.int32) for key in columns}
            for columns in (document.gpu, document.tb, document.step)
        )
        gpu_rank = self.ranks_of(gpu, ranks)
        block_order, rank_start = self.blocks(gpu_rank, tb, ranks)
        rows, step_start = self.steps(step, block_order)
        op = _OP_OF_TYPE[step["type"][rows]]
        reads, writes = _READS_SRC[op], _WRITES_DST[op]
        dep_start, dep_block, dep_step = self.waits(step, rows, op, step_start, rank_start)
        in_place, out_of_place = self.places()
        by_rank = np.argsort(gpu_rank, kind="stable")
        send = tb["send"][block_order].astype(np.int32)
        recv = tb["recv"][block_order].astype(np.int32)
        program = Program(
            collective=collective,
            num_ranks=ranks,
            num_chunks=chunks,
            root=self.root(collective, ranks, root, rank_start, step_start, op),
            in_place=in_place,
            out_of_place=out_of_place,
            input_chunks=gpu["i_chunks"][by_rank].astype(np.int32),
            output_chunks=gpu["o_chunks"][by_rank].astype(np.int32),
            scratch_chunks=gpu["s_chunks"][by_rank].astype(np.int32),
            rank_start=rank_start,
            block_send=send,
            block_recv=recv,
            block_channel=np.maximum(tb["chan"][block_order], 0).astype(np.int32),
            step_start=step_start,
            op=op,
            src_buffer=np.where(reads, step["srcbuf"][rows], Buffer.NONE).astype(np.int8),
            src_offset=np.where(reads, step["srcoff"][rows], -1).astype(np.int32),
            dst_buffer=np.where(writes, step["dstbuf"][rows], Buffer.NONE).astype(np.int8),
            dst_offset=np.where(writes, step["dstoff"][rows], -1).astype(np.int32),
            count=np.where(op == StepOp.NOP, 0, step["cnt"][rows]).astype(np.int32),
            dep_start=dep_start,
            dep_block=dep_block,
            dep_step=dep_step,
            name=document.algo.get("name", "") or "msccl",
            protocol=self.protocol(),
            min_bytes=(self.size("minBytes") or 0) * parts,
            max_bytes=None if largest is None else largest * parts,
        )
        return MscclReading(program=program, warnings=tuple(self.warnings))

    def attribute(self, key: str, *, low: int, high: int) -> int:
        """A number of ``<algo>``."""
        text = self.document.algo.get(key)
        line = self.document.algo_line
        if text is None:
            self.refuse(line, f"expected an attribute {key} on <algo>, found none: add it.")
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
        if not low <= value <= high:
            self.refuse(line, f"expected {key} as an integer {low} .. {high}, found {text[:40]!r}: mend it.")
        return value

    def size(self, key: str) -> int | None:
        """A size of ``<algo>``, None where it is missing."""
        text = self.document.algo.get(key)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            self.refuse(self.document.algo_line, f"expected {key} as bytes, found {text[:40]!r}: mend it.")
        return int(text)

    def largest(self) -> int | None:
        """The largest message; files of other hands do not say whose loader is meant, most of which count it in."""
        stated = self.size("maxBytes")
        if stated is None or stated >= 2**63 - 1:
            return None
        meant = (
            target
            for target in TARGETS.values()
            if any(target.versions in comment for comment in self.document.comments)
        )
        target = next(meant, None)
        if target is None:
            return stated or None
        return None if stated == target.unlimited_bytes else target.largest_of(stated)

    def collective(self) -> Collective:
        name = self.document.algo.get("coll")
        if name is None:
            self.refuse(self.document.algo_line, "expected an attribute coll on <algo>, found none: add it.")
        known = {
            word: collective for target in TARGETS.values() for collective, word in target.collectives.items()
        }
        if name not in known:
            self.refuse(
                self.document.algo_line,
                f"expected coll to be one of {', '.join(sorted(known))}, found {name[:40]!r}: Coppice knows no other.",
            )
        return known[name]

    def protocol(self) -> str:
        name = self.document.algo.get("proto", "Simple")
        if name not in PROTOCOLS:
            self.refuse(
                self.document.algo_line,
                f"expected proto to be Simple, LL or LL128, found {name[:40]!r}: mend it.",
            )
        return name

    def places(self) -> tuple[bool, bool]:
        """In place, out of place; a file of the oldest loader tells the first alone."""
        values = {key: self.flag(key) for key in ("inplace", "outofplace")}
        in_place, out_of_place = values["inplace"], values["outofplace"]
        if in_place is None and out_of_place is None:
            self.warnings.append(f"{self.file} says neither inplace nor outofplace: out of place is assumed.")
            return False, True
        if in_place is None:
            return not out_of_place, bool(out_of_place)
        if out_of_place is None:
            return bool(in_place), not in_place
        if not in_place and not out_of_place:
            self.refuse(
                self.document.algo_line,
                "expected inplace or outofplace to be 1, found 0 for both: no call would ever use the file.",
            )
        return in_place, out_of_place

    def flag(self, key: str) -> bool | None:
        text = self.document.algo.get(key)
        if text is None:
            return None
        if text not in ("0", "1"):
            self.refuse(
                self.document.algo_line, f"expected {key} to be 0 or 1, found {text[:40]!r}: mend it."
            )
        return text == "1"

    def ranks_of(self, gpu: Columns, ranks: int) -> NDArray[np.int32]:
        """Rank of each ``<gpu>``; they are 0 .. ranks - 1, each once."""
        rank, line = gpu["id"], gpu["line"]
        seen: dict[int, int] = {}
        for row, each in enumerate(rank.tolist()):
            if not 0 <= each < ranks:
                self.refuse(
                    int(line[row]), f"expected a gpu id below ngpus = {ranks}, found {each}: mend it."
                )
            if each in seen:
                self.refuse(int(line[row]), f"gpu {each} stands in line {seen[each]} already: keep one.")
            seen[each] = int(line[row])
        if len(seen) != ranks:
            missing = next(each for each in range(ranks) if each not in seen)
            self.refuse(
                self.document.algo_line,
                f"expected {ranks} GPUs, found {len(seen)}: gpu {missing} is missing.",
            )
        return rank.astype(np.int32)

    def blocks(
        self, gpu_rank: NDArray[np.int32], tb: Columns, ranks: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of thread blocks by rank and id, and where each rank begins."""
        rank = gpu_rank[tb["gpu"]]
        order = np.lexsort((tb["id"], rank)).astype(np.int64)
        start = np.searchsorted(rank[order], np.arange(ranks + 1)).astype(np.int64)
        place = np.arange(len(order)) - start[rank[order]]
        wrong = np.flatnonzero(tb["id"][order] != place)
        if len(wrong):
            row = int(order[wrong[0]])
            self.refuse(
                int(tb["line"][row]),
                f"expected thread blocks 0, 1, 2, ... of gpu {int(rank[row])}, each once, found id "
                f"{int(tb['id'][row])} where {int(place[wrong[0]])} should be: number them anew.",
            )
        bad = np.flatnonzero(tb["chan"] < 0)
        if len(bad):
            lonely = (tb["send"][bad] < 0) & (tb["recv"][bad] < 0) & (tb["chan"][bad] == -1)
            if not lonely.all():
                row = int(bad[np.flatnonzero(~lonely)[0]])
                self.refuse(
                    int(tb["line"][row]),
                    f"expected chan of 0 or more, found {int(tb['chan'][row])}: mend it.",
                )
        return order, start

    def steps(
        self, step: Columns, block_order: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of steps by thread block, idle nops left out, and where each thread block begins."""
        kind = step["type"]
        unknown = np.flatnonzero(_OP_OF_TYPE[kind] < 0)
        if len(unknown):
            row = int(unknown[0])
            self.refuse(
                int(step["line"][row]),
                f"steps of type {STEP_TYPES[kind[row]]} add what the caller gives beside the data: "
                "Coppice has no collective for that.",
            )
        empty = np.flatnonzero((kind != STEP_TYPES.index("nop")) & (step["cnt"] < 1))
        if len(empty):
            row = int(empty[0])
            self.refuse(
                int(step["line"][row]), f"expected cnt of 1 or more, found {int(step['cnt'][row])}: mend it."
            )
        idle = (kind == STEP_TYPES.index("nop")) & (step["depid"] < 0)
        if idle.any():
            row = int(np.flatnonzero(idle)[0])
            self.warnings.append(
                f"{self.file}:{int(step['line'][row])}: a nop without a dependency does not count as a step "
                "at run time: it is left out."
            )
        place = np.empty(len(block_order), dtype=np.int64)
        place[block_order] = np.arange(len(block_order))
        kept = np.flatnonzero(~idle)
        block = place[step["tb"][kept]] if len(kept) else np.zeros(0, dtype=np.int64)
        order = np.argsort(block, kind="stable")
        start = np.searchsorted(block[order], np.arange(len(block_order) + 1)).astype(np.int64)
        return kept[order], start

    def waits(
        self,
        step: Columns,
        rows: NDArray[np.int64],
        op: NDArray[np.int8],
        step_start: NDArray[np.int64],
        rank_start: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """Dependencies, each moved to the step whose end is what really ends the wait."""
        depid, deps = step["depid"][rows], step["deps"][rows]
        waiting = np.flatnonzero(depid >= 0)
        dep_start = offsets((depid >= 0).astype(np.int64))
        dep_block, dep_step = depid[waiting].astype(np.int32), deps[waiting].astype(np.int32)
        blocks = len(step_start) - 1
        rank = np.searchsorted(rank_start, np.arange(blocks), side="right") - 1
        block_of = np.repeat(np.arange(blocks), np.diff(step_start))
        target = rank_start[rank[block_of[waiting]]] + dep_block
        within = target < rank_start[rank[block_of[waiting]] + 1]
        row = np.where(within, step_start[np.minimum(target, blocks - 1)], 0) + dep_step
        within &= (dep_step >= 0) & (row < step_start[np.minimum(target, blocks - 1) + 1])
        # Next step that announces its end, at or after each step, or the end of all.
        tells = (step["hasdep"][rows] == 1) & (op != StepOp.NOP)
        following = np.full(len(rows) + 1, len(rows), dtype=np.int64)
        following[:-1] = np.where(tells, np.arange(len(rows)), len(rows))
        following = np.minimum.accumulate(following[::-1])[::-1]
        found = following[np.where(within, row, len(rows))]
        last = step_start[np.minimum(target, blocks - 1) + 1]
        silent = np.flatnonzero(within & (found >= last))
        if len(silent):
            first = int(silent[0])
            self.refuse(
                int(step["line"][rows[waiting[first]]]),
                f"waits for step {int(dep_step[first])} of thread block {int(dep_block[first])}, but neither that step "
                "nor a later one there has hasdep=1: the wait would never end; set hasdep.",
            )
        moved = np.where(within, found - step_start[np.minimum(target, blocks - 1)], dep_step)
        late = np.flatnonzero(moved != dep_step)
        if len(late):
            first = int(late[0])
            self.warnings.append(
                f"{self.file}:{int(step['line'][rows[waiting[first]]])}: the step that is waited for lacks hasdep=1: "
                f"the wait ends with step {int(moved[first])} of thread block {int(dep_block[first])}."
            )
        return dep_start, dep_block, moved.astype(np.int32)

    def root(
        self,
        collective: Collective,
        ranks: int,
        given: int | None,
        rank_start: NDArray[np.int64],
        step_start: NDArray[np.int64],
        op: NDArray[np.int8],
    ) -> int:
        """The root of a rooted collective, otherwise -1."""
        line = self.document.algo_line
        if not collective.rooted:
            return -1
        if given is None and "root" in self.document.algo:
            given = self.attribute("root", low=0, high=ranks - 1)
        if given is not None:
            if not 0 <= given < ranks:
                self.refuse(line, f"expected a root below {ranks}, found {given}: choose one of the ranks.")
            return given
        sends_out = collective in (Collective.BROADCAST, Collective.SCATTER)
        marks = np.array([each.receives if sends_out else each.sends for each in StepOp])[op]
        counts = offsets(marks.astype(np.int64))
        first_step = step_start[rank_start]
        per_rank = counts[first_step[1:]] - counts[first_step[:-1]]
        candidates = np.flatnonzero(per_rank == 0)
        if len(candidates) != 1:
            self.refuse(
                line,
                f"the root of the {collective} is not to be seen ({len(candidates)} ranks could be it): give it.",
            )
        return int(candidates[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class JudgedFile:
    """Result of verifying a file."""

    program: Program  # Its program; of a file that says nothing of sizes, for those at which it is right
    report: ProgramReport  # Of the verification
    warnings: tuple[str, ...]  # What a caller should know


def judge_document(
    document: Document, *, root: int | None = None, target: str | None = None, runs: bool = True
) -> JudgedFile:
    """Verify the program of a parsed file.

    Args:
        root: Root, where the file does not tell.
        target: Runtime that is to run it; by default it has to be right in all of them.
        runs: It is to be run as it stands; otherwise its thread blocks are left behind, and what only the kernels
            of some runtime get wrong is a warning.
    """
    buffers = SMALLEST if target is None else target_named(target).buffers
    reading = program_of(document, root=root)
    stated = "maxBytes" in document.algo
    return judge_program(reading.program, buffers, stated=stated, warnings=reading.warnings, runs=runs)


def judge_program(
    program: Program, buffers: Buffers, *, stated: bool, warnings: tuple[str, ...] = (), runs: bool = True
) -> JudgedFile:
    """As :func:`judge_document`, for a program.

    Args:
        runs: As in :func:`judge_document`.
    """
    report = verify_program(program, buffers=buffers)
    notes = list(warnings)
    if not report.ok and not runs and buffers.early:
        buffers = PATIENT
        patient = verify_program(program, buffers=buffers)
        if len(patient.failures) < len(report.failures):
            notes.append(f"RCCL must not run the file as it stands: {report.failures[0]}")
            report = patient
    most = report.safe_bytes
    if not report.ok and most and program.max_bytes is None and not stated:
        limited = replace(program, max_bytes=most)
        again = verify_program(limited, buffers=buffers)
        if again.ok:
            notes.append(
                f"it is right for messages of up to {most} bytes, and says nothing of sizes: {report.failures[0]}"
            )
            program, report = limited, again
    return JudgedFile(program=program, report=report, warnings=(*notes, *report.warnings))
