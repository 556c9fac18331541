"""`coppice verify` for algorithm files of runtimes: the program in them is verified as it would run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

from coppice.bounds.describe import plural
from coppice.cli.output.render import Stages, print_fields, print_json
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.reader import program_of
from coppice.program.one_sided.program import OneSidedProgram
from coppice.program.one_sided.verify import OneSidedReport
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.verify import ProgramReport, verify_program

__all__ = ["print_verification", "verify_xml"]


def verify_xml(data: bytes, *, name: str, as_json: bool) -> None:
    """Verify an MSCCL XML file and print what was found.

    Args:
        data: Its content.
        name: Its name, for messages.
        as_json: Print JSON.

    Raises:
        CheckError: If it does not hold.
        InputError: If it cannot be read.
    """
    with Stages() as stages:
        stages.begin("reading the file")
        reading = program_of(parse_document(data, file=name))
        stages.begin("verifying the program")
        report = verify_program(reading.program)
    program = reading.program
    places = [
        word
        for word, meant in (("in place", program.in_place), ("out of place", program.out_of_place))
        if meant
    ]
    print_verification(
        program,
        report,
        reading.warnings,
        run=f"{' and '.join(places)}, connections of {plural(report.depth, 'message')}",
        facts={"out_of_place": program.out_of_place, "fifo_depth": report.depth},
        as_json=as_json,
    )


def print_verification(
    program: Program | OneSidedProgram,
    report: ProgramReport | OneSidedReport,
    warnings: Sequence[str],
    *,
    run: str,
    facts: Mapping[str, object],
    as_json: bool,
) -> None:
    """Print what a verifier of programs found.

    Args:
        program: What was verified.
        report: What was found.
        warnings: Of the reader.
        run: Under which conditions, in words.
        facts: The same for JSON.
        as_json: Print JSON.

    Raises:
        CheckError: If the program does not hold.
    """
    warnings = [*warnings, *report.warnings]
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
