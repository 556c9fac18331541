"""`coppice export --to msccl-xml`: an algorithm file for the runtimes that read MSCCL XML."""

from __future__ import annotations

import typer

from coppice.bounds.describe import plural
from coppice.cli.export_request import Request
from coppice.cli.render import Stages
from coppice.cli.sizes import parse_size, short_size
from coppice.cli.verify_program import is_xml
from coppice.errors import InputError
from coppice.export.msccl_xml import write_msccl_xml
from coppice.export.msccl_xml_document import parse_document
from coppice.export.msccl_xml_plan import program_for
from coppice.export.msccl_xml_reader import program_of, read_bytes
from coppice.export.msccl_xml_targets import TARGETS, target_named
from coppice.program.program import Program
from coppice.program.verify import verify_program
from coppice.schedule.plan_file import decode_plan

__all__ = ["OPTIONS", "export_msccl_xml"]

OPTIONS = frozenset({"--target", "--channels", "--protocol", "--size", "--name", "--out-of-place"})
"""Options that go with MSCCL XML."""

_PROTOCOLS = ("Simple", "LL", "LL128")


def export_msccl_xml(request: Request) -> None:
    """Write a plan, or an MSCCL XML file of another target, as MSCCL XML; notes go to standard error.

    Raises:
        CheckError: If it does not fit the target, or an XML file does not verify.
        InputError: If an option or the source cannot be used.
    """
    target = request.target
    if target is None:
        msg = f"expected --target with --to msccl-xml: choose one of {', '.join(TARGETS)}."
        raise InputError(msg)
    target_named(target)
    if request.protocol is not None and request.protocol not in _PROTOCOLS:
        msg = f"expected --protocol Simple, LL or LL128, found {request.protocol!r}."
        raise InputError(msg)
    low, high = _range(request.size)
    with Stages() as stages:
        stages.begin("making the program")
        data, name = read_bytes(request.source)
        if is_xml(data):
            extra = [flag for flag in request.given if flag != "--target"]
            if extra:
                msg = f"an MSCCL XML file keeps its channels, protocol, sizes and name: leave out {extra[0]}."
                raise InputError(msg)
            program = program_of(parse_document(data, file=name)).program
            verify_program(program).require_ok()
        else:
            plan = decode_plan(data, name=name)
            program = program_for(
                plan.body,
                target,
                channels=request.channels,
                in_place=False if request.out_of_place else None,
                name=request.name or f"{plan.problem.collective}-{plan.topology.name}",
                protocol=request.protocol or "Simple",
                min_bytes=low,
                max_bytes=high,
            )
        stages.begin("writing the file")
        write_msccl_xml(program, "-" if request.output is None else request.output, target=target)
    for note in _notes(program, target):
        typer.echo(f"note: {note}", err=True)


def _range(text: str | None) -> tuple[int, int | None]:
    """Smallest and largest size of ``--size``."""
    if text is None:
        return 0, None
    low, colon, high = text.partition(":")
    if not colon:
        msg = f"expected --size LOW:HIGH such as 1M:1G, found {text!r}."
        raise InputError(msg)
    smallest, largest = parse_size(low), parse_size(high)
    if largest < max(smallest, 1):
        msg = f"expected --size to rise from LOW to HIGH, found {text!r}."
        raise InputError(msg)
    return smallest, largest


def _notes(program: Program, target: str) -> list[str]:
    chosen = target_named(target)
    place = "in place" if program.in_place else "out of place"
    figures = ", ".join(
        [
            f"{plural(program.most_blocks, 'thread block')} of {chosen.max_blocks}",
            f"{plural(program.num_channels, 'channel')} of {chosen.max_channels}",
            f"{plural(program.most_steps, 'step')} of {chosen.max_steps}",
        ]
    )
    unit = short_size(program.num_chunks * 4)
    return [
        f"for {chosen.versions}; calls {place} use it.",
        f"a GPU needs {figures} in its fullest thread block.",
        f"{plural(program.num_chunks, 'chunk')}: messages of float32 use it where their size is a multiple of {unit}.",
        f"to use it: {chosen.switches}; `coppice doctor FILE --target {target}` tells more.",
    ]
