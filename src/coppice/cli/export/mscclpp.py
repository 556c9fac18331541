"""`coppice export --to mscclpp-json`: an execution plan for MSCCL++."""

from __future__ import annotations

import typer

from coppice.cli.export.request import Request
from coppice.cli.options.inputs import parse_settings
from coppice.cli.output.render import Stages
from coppice.errors import InputError
from coppice.export.mscclpp.limits import LIMITS, largest_message, size_unit
from coppice.export.mscclpp.program import PlanForm, one_sided_for
from coppice.export.mscclpp.writer import write_mscclpp
from coppice.program.one_sided.program import OneSidedProgram
from coppice.schedule.files.plan_file import read_plan
from coppice.text import parse_size, plural, short_size

__all__ = ["OPTIONS", "export_mscclpp"]

OPTIONS = frozenset({"--instances", "--size", "--name", "--in-place", "--out-of-place", "--option"})
"""Options that go with MSCCL++ JSON."""

_NUMBERS = ("blocks", "threads")


def export_mscclpp(request: Request) -> None:
    """Write a plan as an execution plan; notes go to standard error.

    Raises:
        CheckError: If it does not fit the executor.
        InputError: If an option or the source cannot be used.
    """
    if request.in_place and request.out_of_place:
        msg = "an execution plan is either for calls in place or for the others: leave one of the two options out."
        raise InputError(msg)
    low, high = _range(request.size)
    numbers = _numbers(request.options)
    with Stages() as stages:
        stages.begin("making the program")
        plan = read_plan(request.source)
        form = PlanForm(
            in_place=True if request.in_place else False if request.out_of_place else None,
            instances=request.instances or 1,
            blocks=numbers.get("blocks"),
            threads=numbers.get("threads", LIMITS.threads),
            min_bytes=low,
            max_bytes=high,
            name=request.name or f"{plan.problem.collective}-{plan.topology.name}",
        )
        program = one_sided_for(plan.body, form)
        stages.begin("writing the file")
        write_mscclpp(program, "-" if request.output is None else request.output)
    for note in _notes(program):
        typer.echo(f"note: {note}", err=True)


def _range(text: str | None) -> tuple[int, int | None]:
    """Smallest and largest size of ``--size``."""
    if text is None or text == "all":
        return 0, None
    low, colon, high = text.partition(":")
    if not colon:
        msg = f"expected --size LOW:HIGH such as 1M:1G, or all, found {text!r}."
        raise InputError(msg)
    smallest, largest = parse_size(low, option="--size"), parse_size(high, option="--size")
    if largest < max(smallest, 1):
        msg = f"expected --size to rise from LOW to HIGH, found {text!r}."
        raise InputError(msg)
    return smallest, largest


def _numbers(options: tuple[str, ...]) -> dict[str, int]:
    """The values of ``--option``."""
    found = {}
    for key, value in parse_settings(options, option="--option").items():
        if key not in _NUMBERS or not (value.isascii() and value.isdigit() and len(value) < 7):
            msg = f"expected --option blocks=N or threads=N with --to mscclpp-json, found {key}={value}."
            raise InputError(msg)
        found[key] = int(value)
    return found


def _notes(program: OneSidedProgram) -> list[str]:
    ports = sum(end.port for end in program.channels) // 2
    ways = f"{plural((len(program.channels) // 2) - ports, 'memory channel')} and {plural(ports, 'port channel')}"
    largest = largest_message(program)
    upper = largest if program.max_bytes is None else min(program.max_bytes, largest)
    place = "in place" if program.in_place else "out of place"
    blocks, most = plural(program.most_blocks, "thread block"), program.most_operations
    chunks, unit = plural(program.num_chunks, "chunk"), short_size(size_unit(program))
    return [
        f"for the executor of MSCCL++ 0.9; calls {place} use it.",
        f"a GPU needs {blocks}, with {most} of {LIMITS.operations} operations in the fullest; {ways} in all.",
        f"{chunks}: messages use it where their size is a multiple of {unit}, up to {short_size(upper)}.",
        "buffers must begin at the same distance from the start of their allocation at every rank.",
        "`coppice doctor FILE --target mscclpp` tells more.",
    ]
