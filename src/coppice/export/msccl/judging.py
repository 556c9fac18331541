"""Verify the program of an MSCCL XML file for one or all of the runtimes that read it.

A file that says nothing of sizes is judged for those at which it comes to an end; one that names a larger size, or that
it has no limit, is wrong beyond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coppice.export.msccl.document import Document
from coppice.export.msccl.reader import program_of
from coppice.export.msccl.targets import target_named
from coppice.program.dialects.thread_blocks.cutting import PATIENT, SMALLEST, Buffers
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.verify import ProgramReport, verify_program


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
