"""`coppice verify` for execution plans of MSCCL++: the program in them is verified as its executor would run it."""

from __future__ import annotations

from coppice.cli.output.render import Stages
from coppice.cli.verify.program import print_verification
from coppice.export.mscclpp.document import parse_document
from coppice.export.mscclpp.reader import program_of
from coppice.program.one_sided.verify import verify_one_sided

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
    print_verification(
        reading.program,
        report,
        reading.warnings,
        run="in place" if reading.program.in_place else "out of place",
        facts={},
        as_json=as_json,
    )
