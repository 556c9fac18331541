"""`coppice verify` for execution plans of MSCCL++: the program in them is verified as its executor would run it."""

from __future__ import annotations

import typer

from coppice.bounds.describe import plural
from coppice.cli.render import Stages, print_fields, print_json
from coppice.export.mscclpp_document import parse_document
from coppice.export.mscclpp_reader import program_of
from coppice.program.one_sided_verify import verify_one_sided

__all__ = ["verify_mscclpp"]


def verify_mscclpp(data: bytes, *, name: str, as_json: bool) -> None:
    """Verify an execution plan and print what was found.

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
        report = verify_one_sided(reading.program)
    program = reading.program
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
        ("run", "in place" if program.in_place else "out of place"),
    ]
    verdict = "verified" if report.ok else "FAILED"
    print_fields(
        f"{program.collective} of {plural(program.num_ranks, 'rank')} ({program.name}): {verdict}", fields
    )
    report.require_ok()
