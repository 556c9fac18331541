"""`coppice verify` for MSCCL XML and plans of MSCCL++: the program in them is verified as it would run."""

from __future__ import annotations

import typer

from coppice.cli.output.render import Stages, print_fields, print_json
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.reader import program_of
from coppice.export.mscclpp.document import parse_document as parse_json
from coppice.export.mscclpp.reader import program_of as one_sided_program_of
from coppice.program.one_sided.program import OneSidedProgram
from coppice.program.one_sided.verify import OneSidedReport, verify_one_sided
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.verify import ProgramReport, verify_program
from coppice.text import plural

__all__ = ["is_xml", "verify_file"]


def is_xml(data: bytes) -> bool:
    r"""Whether the content of a file is XML.

    Examples:
        >>> is_xml(b"\n<algo name='ring'>"), is_xml(b'{"format": "coppice-plan"}')
        (True, False)
    """
    return data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def verify_file(data: bytes, *, name: str, as_json: bool) -> None:
    """Verify the program in MSCCL XML, or in an execution plan of MSCCL++, and print what was found.

    Args:
        data: Content of the file.
        name: Its name, for messages.
        as_json: Print JSON.

    Raises:
        CheckError: If it does not hold.
        InputError: If it cannot be read.
    """
    program: Program | OneSidedProgram
    report: ProgramReport | OneSidedReport
    facts: dict[str, object] = {}
    with Stages() as stages:
        stages.begin("reading the file")
        reading = (
            program_of(parse_document(data, file=name))
            if is_xml(data)
            else one_sided_program_of(parse_json(data, file=name))
        )
        program = reading.program
        stages.begin("verifying the program")
        if isinstance(program, OneSidedProgram):
            report = verify_one_sided(program)
            run = "in place" if program.in_place else "out of place"
        else:
            report = verify_program(program)
            ways = {"in place": program.in_place, "out of place": program.out_of_place}
            run = " and ".join(way for way, meant in ways.items() if meant)
            run += f", connections of {plural(report.depth, 'message')}"
            facts = {"out_of_place": program.out_of_place, "fifo_depth": report.depth}
    warnings = [*reading.warnings, *report.warnings]
    if as_json:
        print_json(
            {
                "collective": program.collective.value,
                "name": program.name,
                "ranks": program.num_ranks,
                "verified": report.ok,
                "failures": list(report.failures),
                "warnings": warnings,
                "in_place": program.in_place,
                **facts,
                "checked": report.checked,
            }
        )
        report.require_ok()
        return
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    fields = [("failure", sentence) for sentence in report.failures]
    fields += [
        ("checked", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.checked.items())),
        ("run", run),
    ]
    verdict = "verified" if report.ok else "FAILED"
    print_fields(
        f"{program.collective} of {plural(program.num_ranks, 'rank')} ({program.name}): {verdict}", fields
    )
    report.require_ok()
