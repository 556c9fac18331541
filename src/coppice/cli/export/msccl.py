"""`coppice export --to msccl-xml`: an algorithm file for the runtimes that read MSCCL XML."""

from __future__ import annotations

from dataclasses import dataclass, replace

import typer

from coppice.cli.export.msccl_text import (
    instances_note,
    load_note,
    nic_note,
    program_notes,
    range_note,
    size_notes,
    trees_note,
)
from coppice.cli.export.request import Request
from coppice.cli.output.render import Stages
from coppice.cli.verify.program import is_xml
from coppice.errors import CheckError, InputError
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.reader import program_of
from coppice.export.msccl.writer import write_msccl_xml
from coppice.files import file_name, read_bytes
from coppice.fitting.msccl.program import Form, Place, rough_program
from coppice.fitting.msccl.size_range import MOST_RANKS, WinningRange, winning_range
from coppice.fitting.msccl.targets import TARGETS, target_named
from coppice.fitting.msccl.trees import Fitted, fitted
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.verify import verify_program
from coppice.schedule.files.plan_file import decode_plan
from coppice.text import parse_size, parse_sizes

__all__ = ["OPTIONS", "Sizes", "export_msccl_xml", "read_size"]

OPTIONS = frozenset(
    {
        "--target",
        "--channels",
        "--instances",
        "--protocol",
        "--trees",
        "--size",
        "--name",
        "--in-place",
        "--out-of-place",
    }
)
"""Options that go with MSCCL XML."""

USUAL_SIZES = tuple(2**exponent for exponent in range(20, 31))
"""Sizes that chunks should divide where none are given: 1M to 1G, doubling."""

_PROTOCOLS = ("Simple", "LL", "LL128")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What ``--size`` says.

    Attributes:
        found: It was left out: the range is to be found by simulation.
        low: Smallest size that takes the file.
        high: Largest, or None for no limit.
        wanted: Sizes that should take it.
    """

    found: bool = False
    low: int = 0
    high: int | None = None
    wanted: tuple[int, ...] = USUAL_SIZES


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
    sizes = read_size(request.size)
    trees, keep = _trees(request.trees)
    form = Form(
        channels=request.channels,
        instances=request.instances or 1,
        place=_place(request),
        protocol=request.protocol or "Simple",
        min_bytes=sizes.low,
        max_bytes=sizes.high,
    )
    data, name = read_bytes(request.source), file_name(request.source)
    with Stages() as stages:
        stages.begin("making the program")
        if is_xml(data):
            program, notes = _translated(data, name, request), []
        else:
            plan = decode_plan(data, name=name)
            form = replace(form, name=request.name or f"{plan.problem.collective}-{plan.topology.name}")
            found = fitted(plan, target, form, sizes=sizes.wanted, trees=trees, keep=keep)
            program, notes = found.program, _notes(found, target, form, sizes)
            if sizes.found:
                chosen, note = _range(found, stages)
                notes.append(note)
                if chosen is not None:
                    program = replace(program, min_bytes=chosen.min_bytes, max_bytes=chosen.max_bytes)
        stages.begin("writing the file")
        write_msccl_xml(program, "-" if request.output is None else request.output, target=target)
    for note in [*program_notes(program, target), *notes]:
        typer.echo(f"note: {note}", err=True)


def read_size(text: str | None) -> Sizes:
    """The sizes of ``--size``: ``all``, ``LOW:HIGH`` or a list.

    Args:
        text: What was given, or None.

    Examples:
        >>> read_size("1M:3M")
        Sizes(found=False, low=1048576, high=3145728, wanted=(1048576, 2097152))
        >>> read_size("all").high is None, read_size(None).found
        (True, True)

    Raises:
        InputError: If it is none of these.
    """
    if text is None:
        return Sizes(found=True)
    if text == "all":
        return Sizes()
    wanted = parse_sizes(text, option="--size")
    ends = [parse_size(end, option="--size") for item in text.split(",") for end in item.split(":")[:2]]
    if not wanted or wanted[0] < 1:
        msg = f"expected --size of 1 byte or more, such as 1M:1G, found {text!r}."
        raise InputError(msg)
    return Sizes(low=wanted[0], high=max(ends), wanted=wanted)


def _trees(text: str | None) -> tuple[int | None, bool]:
    """The number of ``--trees``, and whether the plan is to be taken as it is."""
    if text is None or text == "plan":
        return None, text == "plan"
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text)):
        msg = f"expected --trees to be a number of 1 or more, or plan, found {text!r}."
        raise InputError(msg)
    return int(text), False


def _place(request: Request) -> Place | None:
    if request.in_place and request.out_of_place:
        return Place.BOTH
    if request.out_of_place:
        return Place.OUT
    return Place.IN if request.in_place else None


def _translated(data: bytes, name: str, request: Request) -> Program:
    """The program of an MSCCL XML file, verified."""
    extra = [flag for flag in request.given if flag != "--target"]
    if extra:
        msg = f"an MSCCL XML file keeps its channels, protocol, sizes and name: leave out {extra[0]}."
        raise InputError(msg)
    program = program_of(parse_document(data, file=name)).program
    verify_program(program).require_ok()
    return program


def _notes(found: Fitted, target: str, form: Form, sizes: Sizes) -> list[str]:
    """What was done to make the plan fit, and what it costs."""
    notes = [note for note in (trees_note(found), *size_notes(found, sizes.wanted)) if note]
    if form.instances > 1:
        try:
            alone = rough_program(found.plan.body, target, replace(form, instances=1))
        except CheckError:
            alone = None
        notes.append(instances_note(found, alone, form.instances))
    else:
        notes += [note] if (note := load_note(found, target)) else []
    notes += [note] if (note := nic_note(found, target)) else []
    return notes


def _range(found: Fitted, stages: Stages) -> tuple[WinningRange | None, str]:
    """The range of sizes by simulation, and what there is to say about it."""
    ranks = found.program.num_ranks
    if ranks > MOST_RANKS:
        return None, (
            f"all sizes use it: the range is not simulated for more than {MOST_RANKS} ranks; "
            "`--size LOW:HIGH` sets it."
        )
    stages.begin("racing the library")
    try:
        chosen = winning_range(found.plan, found.program, on_stage=stages.begin)
    except InputError as error:
        return None, f"all sizes use it: {error}"
    return chosen, range_note(chosen)
