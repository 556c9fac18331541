"""`coppice export`: a plan as a file that a runtime, a library or a launcher reads."""

from __future__ import annotations

from typing import Annotated

import typer

from coppice.bounds.describe import plural
from coppice.cli.export_chakra import export_chakra
from coppice.cli.export_stock import export_stock
from coppice.cli.inputs import BoxesOption, OutputOption, RanksOption, RatesOption, SetOption
from coppice.cli.render import Stages
from coppice.cli.sizes import parse_size, short_size
from coppice.cli.verify_program import is_xml
from coppice.errors import InputError
from coppice.export.msccl_xml import write_msccl_xml
from coppice.export.msccl_xml_plan import program_for
from coppice.export.msccl_xml_reader import read_msccl_xml
from coppice.export.msccl_xml_targets import TARGETS, target_named
from coppice.export.targets import STOCK
from coppice.program.program import Program
from coppice.program.verify import verify_program
from coppice.schedule.plan_file import read_plan

__all__ = ["export"]

_PROTOCOLS = ("Simple", "LL", "LL128")


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|TOPOLOGY",
            help="Plan file; for some exports a topology; for msccl-xml also an MSCCL XML file of another target.",
            show_default=False,
        ),
    ],
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help=f"One of: msccl-xml, chakra, {', '.join(STOCK)}.",
            show_default=False,
        ),
    ],
    output: OutputOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="|".join(TARGETS),
            help="Runtime that reads the MSCCL XML.",
            show_default=False,
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(
            "--channels",
            min=1,
            metavar="N",
            help="MSCCL XML: most channels [default: 8, or what fits].",
            show_default=False,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", metavar="Simple|LL|LL128", help="MSCCL XML: protocol [default: Simple]."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="LOW:HIGH",
            help="MSCCL XML: message sizes that are to use the file [default: all]; chakra: the size of the message.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="MSCCL XML: label of the algorithm; chakra: first part of the names of the files."
        ),
    ] = None,
    out_of_place: Annotated[
        bool, typer.Option("--out-of-place", help="MSCCL XML: input and output are different memory.")
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="Option of another export; may be repeated."),
    ] = None,
    boxes: BoxesOption = None,
    rates: RatesOption = None,
    settings: SetOption = None,
    ranks: RanksOption = None,
) -> None:
    """Write a plan for a runtime, or what libraries and launchers read as they are shipped.

    MSCCL XML is written within the limits of its target, and verified before: no deadlock, no race, the right
    result. A plan that does not fit is refused with the limit, by how much, and the next step (exit code 1).

    \b
    Examples:
      coppice export plan.json --to msccl-xml --target rccl -o algo.xml
      coppice export plan.json --to msccl-xml --target msccl --channels 4 --size 1M:1G -o algo.xml
      coppice export dgx-h100 --boxes 4 --to rank-order --option launcher=slurm
      coppice export plan.json --to chakra --size 64M -o traces
    """  # noqa: D301 (\b is for the help formatter)
    given = {
        "--target": target,
        "--channels": channels,
        "--protocol": protocol,
        "--size": size,
        "--name": name,
    }
    if to == "chakra":
        extra = [key for key, value in given.items() if value is not None and key not in ("--size", "--name")]
        extra += ["--option"] if options else []
        extra += ["--out-of-place"] if out_of_place else []
        if extra:
            msg = f"{extra[0]} does not go with --to chakra: leave it out."
            raise InputError(msg)
        export_chakra(source, size=size, name=name, output=output)
        return
    if to != "msccl-xml":
        extra = [key for key, value in given.items() if value is not None]
        if extra or out_of_place:
            msg = f"{(extra or ['--out-of-place'])[0]} is for --to msccl-xml: leave it out, or see --option."
            raise InputError(msg)
        export_stock(
            source,
            to,
            options=options or (),
            output=output,
            boxes=boxes,
            rates=rates,
            settings=settings,
            ranks=ranks,
        )
        return
    if options or boxes is not None or rates is not None or settings or ranks is not None:
        msg = "MSCCL XML is made of a plan with its topology: leave out --option, --boxes, --rates, --set and --ranks."
        raise InputError(msg)
    if target is None:
        msg = f"expected --target with --to msccl-xml: choose one of {', '.join(TARGETS)}."
        raise InputError(msg)
    target_named(target)
    if protocol is not None and protocol not in _PROTOCOLS:
        msg = f"expected --protocol Simple, LL or LL128, found {protocol!r}."
        raise InputError(msg)
    low, high = _range(size)
    with Stages() as stages:
        stages.begin("making the program")
        if is_xml(source):
            if (
                channels is not None
                or protocol is not None
                or size is not None
                or name is not None
                or out_of_place
            ):
                msg = (
                    "an MSCCL XML file keeps its channels, protocol, sizes and name: leave those options out."
                )
                raise InputError(msg)
            program = read_msccl_xml(source).program
            verify_program(program).require_ok()
        else:
            plan = read_plan(source)
            program = program_for(
                plan.body,
                target,
                channels=channels,
                in_place=False if out_of_place else None,
                name=name or f"{plan.problem.collective}-{plan.topology.name}",
                protocol=protocol or "Simple",
                min_bytes=low,
                max_bytes=high,
            )
        stages.begin("writing the file")
        write_msccl_xml(program, "-" if output is None else output, target=target)
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
