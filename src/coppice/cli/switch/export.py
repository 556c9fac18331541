"""`coppice switch export`: the program of a switch that aggregates, with its table entries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from coppice.cli.options.inputs import JsonOption
from coppice.cli.options.names import P4_VARIANTS, SWITCH_TARGETS
from coppice.cli.output.render import print_fields, print_json
from coppice.errors import InputError
from coppice.text import suggestion

if TYPE_CHECKING:
    from typing import Literal


def export(
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="|".join(SWITCH_TARGETS), help="Form of the program: P4_16 for v1model."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for switchml.p4 and entries.txt.")
    ],
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Workers, 1 to 32 [default: those of --hosts, or 2]."),
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", metavar="N", help="Slots, 1 to 8192, each with two sets.")
    ] = 256,
    values: Annotated[
        int, typer.Option("--values", metavar="64|256", help="Values of a packet, all added in one pass.")
    ] = 64,
    variant: Annotated[
        str,
        typer.Option(
            "--variant",
            metavar="|".join(P4_VARIANTS),
            help="With packet ids checked, or as published: a late duplicate is then taken for a new packet.",
        ),
    ] = "guarded",
    hosts: Annotated[
        Path | None,
        typer.Option(
            "--hosts",
            metavar="FILE",
            help="JSON file with addresses and ports of the switch, workers and others [default: worker w at port w].",
        ),
    ] = None,
    job: Annotated[
        int, typer.Option("--job", metavar="N", help="Low byte of the job that the guarded variant serves.")
    ] = 0,
    first_packet: Annotated[
        int,
        typer.Option("--first-packet", metavar="N", help="Id of the packet that begins slot 0, if guarded."),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write SwitchML's integer sums as a P4_16 program, with entries for simple_switch_CLI.

    An interpreter of this subset of P4, part of the tests, checks the types of what is written and runs it on frames.
    No other compiler has seen it.

    \b
    Examples:
      coppice switch export --to p4 --workers 4 --slots 256 -o rack
      coppice switch export --to p4 --hosts hosts.json --values 256 --variant published -o rack
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.innetwork.p4.generator import export_p4
    from coppice.innetwork.p4.rack import read_rack

    if to not in SWITCH_TARGETS:
        raise InputError(f"there is no export {to!r}: {suggestion(to, SWITCH_TARGETS)}")
    if variant not in P4_VARIANTS:
        raise InputError(f"there is no `variant={variant}`: {suggestion(variant, P4_VARIANTS)}")
    made = export_p4(
        workers=workers,
        slots=slots,
        values=values,
        variant=cast("Literal['guarded', 'published']", variant),
        rack=None if hosts is None else read_rack(hosts),
        job=job,
        first_packet=first_packet,
    )
    made.write(output)
    if as_json:
        print_json(
            {
                "to": to,
                "output": str(output),
                "files": ["switchml.p4", "entries.txt"],
                "workers": len(made.rack.workers),
                "slots": slots,
                "values": values,
                "variant": variant,
            }
        )
        return
    title = (
        f"SwitchML for {len(made.rack.workers)} workers, {slots:,} slots of 2 x {values} values, {variant}"
    )
    print_fields(
        title,
        [
            (
                "program",
                f"{output / 'switchml.p4'}, {len(made.program.splitlines()):,} lines of P4_16 for v1model",
            ),
            (
                "entries",
                f"{output / 'entries.txt'}, {len(made.entries.splitlines()):,} lines for simple_switch_CLI",
            ),
            ("checked", "by its own interpreter; no compiler has seen it"),
        ],
    )
