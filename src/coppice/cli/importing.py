"""`coppice import`: an algorithm file of a runtime as a plan, to be verified, simulated and compared like our own."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

import typer

from coppice.bounds.problem import Problem
from coppice.cli.options.inputs import BoxesOption, OutputOption, RatesOption, SetOption, load_topology
from coppice.cli.output.render import Stages, print_fields
from coppice.errors import InputError
from coppice.export.msccl.document import parse_document as parse_xml
from coppice.export.msccl.reader import program_of
from coppice.export.mscclpp.document import is_mscclpp
from coppice.export.mscclpp.document import parse_document as parse_json
from coppice.export.mscclpp.reader import program_of as one_sided_program_of
from coppice.files import file_name, read_bytes
from coppice.program.one_sided.program import OneSidedProgram
from coppice.program.one_sided.to_schedule import one_sided_to_schedule
from coppice.program.one_sided.verify import verify_one_sided
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.to_schedule import to_schedule
from coppice.program.two_sided.verify import verify_program
from coppice.schedule.files.plan_file import write_plan
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.text import bandwidth_text, plural
from coppice.topology.presets import preset

__all__ = ["import_file"]


def import_file(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="MSCCL XML or MSCCL++ JSON file; - is standard input.", show_default=False
        ),
    ],
    *,
    output: OutputOption = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            metavar="TOPOLOGY",
            help="Where its ranks are: preset or file [default: all GPUs at one switch].",
            show_default=False,
        ),
    ] = None,
    root: Annotated[
        int | None,
        typer.Option(
            "--root", metavar="RANK", help="Root, where the file does not tell.", show_default=False
        ),
    ] = None,
    boxes: BoxesOption = None,
    rates: RatesOption = None,
    settings: SetOption = None,
) -> None:
    """Import an MSCCL XML file, or an execution plan of MSCCL++, as a plan.

    The file is verified (deadlock, races, result); a wrong one is refused with the first fault and exit code 1.
    Thread blocks, channels and slots are left behind: the plan says which rank sends which chunk to whom.

    \b
    Examples:
      coppice import algo.xml -o plan.json
      coppice import algo.xml --topology mi250 --boxes 2 -o plan.json
      coppice import plan.mscclpp.json --topology dgx-h100 -o plan.json
    """  # noqa: D301 (\b is for the help formatter)
    if topology is None and (boxes is not None or rates is not None or settings):
        msg = "--boxes, --rates and --set belong to a topology: give one with --topology."
        raise InputError(msg)
    to_stdout = output is not None and str(output) == "-"
    with Stages() as stages:
        stages.begin("reading the file")
        program, warnings, kind = _read(file, root)
        if topology is None:
            place = preset("star", gpus=program.num_ranks)
        else:
            place = load_topology(topology, boxes=boxes, rates=rates, settings=settings)
        stages.begin("verifying the program")
        if isinstance(program, OneSidedProgram):
            verify_one_sided(program).require_ok()
        else:
            verify_program(program).require_ok()
        stages.begin("following the chunks")
        schedule = (
            one_sided_to_schedule(program, place)
            if isinstance(program, OneSidedProgram)
            else to_schedule(program, place)
        )
        stages.begin("verifying the schedule")
        report = verify_schedule(schedule)
        report.require_ok()
        problem = Problem(
            topology=place, collective=program.collective, root=None if program.root < 0 else program.root
        )
        plan = Plan(
            problem=problem,
            inv_rate=report.inv_rate or Fraction(0),
            schedule=schedule,
            planner="import",
            parameters={"format": kind, "name": program.name, "chunks": program.num_chunks},
        )
        if output is not None:
            write_plan(plan, output)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    if to_stdout:
        return
    busbw = plan.algbw_gb_per_s * program.collective.busbw_factor(program.num_ranks)
    fields = [
        (
            "read",
            f"{program.name}: {plural(program.num_chunks, 'chunk')}, {plural(program.most_blocks, 'thread block')}",
        ),
        ("verified", "no deadlock, no race, the right result"),
        ("transfers", f"{schedule.num_transfers:,}, {_routes(schedule)}"),
        ("reaches", f"{bandwidth_text(plan.algbw_gb_per_s, busbw)} by its busiest link"),
    ]
    if output is not None:
        fields.append(("written to", str(output)))
    print_fields(f"{program.collective} on {place.name} ({plural(program.num_ranks, 'rank')})", fields)


def _read(file: str, root: int | None) -> tuple[Program | OneSidedProgram, tuple[str, ...], str]:
    """The program of a file, what its reader warns of, and the name of its format."""
    data, name = read_bytes(file), file_name(file)
    if is_mscclpp(data):
        if root is not None:
            msg = "--root is for MSCCL XML: no collective of MSCCL++ has a root, leave it out."
            raise InputError(msg)
        plan = one_sided_program_of(parse_json(data, file=name))
        return plan.program, plan.warnings, "mscclpp-json"
    reading = program_of(parse_xml(data, file=name), root=root)
    return reading.program, tuple(reading.warnings), "msccl-xml"


def _routes(schedule: Schedule) -> str:
    """How the transfers go."""
    by_nic = int((schedule.path >= 0).sum())
    if not by_nic:
        return "by default routes"
    others = "" if by_nic == schedule.num_transfers else ", the others by default routes"
    return f"{by_nic:,} of them by the NIC of their channel{others}"
