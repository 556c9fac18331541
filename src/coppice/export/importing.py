"""Import MSCCL XML or MSCCL++ JSON as a plan: verify the program and trace its chunks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coppice.arguments import checked
from coppice.bounds.problem import Problem
from coppice.display import Brief
from coppice.errors import InputError
from coppice.export.msccl.document import parse_document as parse_xml
from coppice.export.msccl.reader import judge_program, program_of
from coppice.export.mscclpp.document import is_mscclpp
from coppice.export.mscclpp.document import parse_document as parse_json
from coppice.export.mscclpp.reader import program_of as one_sided_program_of
from coppice.files import file_name, read_bytes
from coppice.program.dialects.puts.program import OneSidedProgram
from coppice.program.dialects.puts.to_schedule import one_sided_to_schedule
from coppice.program.dialects.puts.verify import verify_one_sided
from coppice.program.dialects.thread_blocks.cutting import SMALLEST
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.to_schedule import to_schedule
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.load import load
from coppice.topology.presets import preset


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Imported(Brief):
    """Result of an import."""

    plan: Plan  # Which rank sends which chunk to whom; thread blocks, channels and slots are left behind
    schedule: Schedule  # Its schedule
    program: Program | OneSidedProgram  # The program in the file
    warnings: tuple[str, ...]  # What the reader assumed or left out, a sentence each


def read_program(
    path: str | os.PathLike[str], *, root: int | None = None
) -> tuple[Program | OneSidedProgram, tuple[str, ...], str]:
    """Program of a file, the warnings of its reader, and the name of its format.

    Args:
        path: MSCCL XML or MSCCL++ JSON; ``-`` is standard input.
        root: Root, where an MSCCL XML file does not tell.
    """
    data, name = read_bytes(path), file_name(path)
    if is_mscclpp(data):
        if root is not None:
            raise InputError("`root` is for MSCCL XML: no collective of MSCCL++ has a root, leave it out.")
        plan = one_sided_program_of(parse_json(data, file=name))
        return plan.program, plan.warnings, "mscclpp-json"
    reading = program_of(parse_xml(data, file=name), root=root)
    return reading.program, reading.warnings, "msccl-xml"


@checked
def import_plan(
    path: str | os.PathLike[str],
    *,
    topology: Any = None,
    root: int | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Imported:
    """Read an algorithm file, verify it, and trace its chunks to a plan.

    Args:
        path: MSCCL XML or MSCCL++ JSON; ``-`` is standard input.
        topology: Where its ranks are, as :func:`coppice.load` takes it, or a function that makes it once the file is
            read; None is all GPUs at one switch.
        root: Root, where the file does not tell.
        on_stage: Called with what goes on.

    Raises:
        CheckError: If the program does not verify (deadlock, races, result).
        InputError: If it cannot be read, or its ranks are not those of the topology.
    """
    on_stage("reading the file")
    program, warnings, kind = read_program(path, root=root)
    if topology is None:
        topology = preset("star", gpus=program.num_ranks)
    place = topology() if callable(topology) else load(topology)
    on_stage("verifying the program")
    if isinstance(program, OneSidedProgram):
        verify_one_sided(program).require_ok()
        on_stage("following the chunks")
        schedule = one_sided_to_schedule(program, place)
    else:
        judged = judge_program(program, SMALLEST, stated=program.max_bytes is not None, runs=False)
        judged.report.require_ok()
        warnings = (*warnings, *judged.warnings)
        on_stage("following the chunks")
        schedule = to_schedule(program, place)
    on_stage("verifying the schedule")
    report = verify_schedule(schedule)
    report.require_ok()
    plan = Plan(
        problem=Problem(
            topology=place, collective=program.collective, root=None if program.root < 0 else program.root
        ),
        inv_rate=report.inv_rate or Fraction(0),
        schedule=schedule,
        planner="import",
        parameters={"format": kind, "name": program.name, "chunks": program.num_chunks},
    )
    return Imported(plan=plan, schedule=schedule, program=program, warnings=warnings)
