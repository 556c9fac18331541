"""`coppice verify` for algorithm files of runtimes: the program in them is verified as it would run."""

from __future__ import annotations

import typer

from coppice.bounds.describe import plural
from coppice.cli.render import Stages, print_fields, print_json
from coppice.export.msccl_xml_document import parse_document
from coppice.export.msccl_xml_reader import program_of
from coppice.program.verify import verify_program

__all__ = ["is_xml", "verify_xml"]


def is_xml(data: bytes) -> bool:
    r"""Whether the content of a file is XML.

    Examples:
        >>> is_xml(b"\n<algo name='ring'>"), is_xml(b'{"format": "coppice-plan"}')
        (True, False)
    """
    return data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


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
                "out_of_place": program.out_of_place,
                "fifo_depth": report.depth,
                "checked": report.checked,
            }
        )
        report.require_ok()
        return
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    places = [
        word
        for word, meant in (("in place", program.in_place), ("out of place", program.out_of_place))
        if meant
    ]
    fields = [("failure", sentence) for sentence in report.failures]
    fields += [
        ("checked", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.checked.items())),
        ("run", f"{' and '.join(places)}, connections of {plural(report.depth, 'message')}"),
    ]
    verdict = "verified" if report.ok else "FAILED"
    print_fields(
        f"{program.collective} of {plural(program.num_ranks, 'rank')} ({program.name}): {verdict}", fields
    )
    report.require_ok()
