"""`coppice export`: a plan as a file that a runtime, a library or a launcher reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from coppice.cli.export.chakra import OPTIONS as CHAKRA_OPTIONS
from coppice.cli.export.chakra import export_chakra
from coppice.cli.export.msccl import OPTIONS as MSCCL_OPTIONS
from coppice.cli.export.msccl import export_msccl_xml
from coppice.cli.export.mscclpp import OPTIONS as MSCCLPP_OPTIONS
from coppice.cli.export.mscclpp import export_mscclpp
from coppice.cli.export.pictures import DRAWN_OPTIONS, TIMED_OPTIONS, export_picture, export_trace
from coppice.cli.export.request import Format, Request
from coppice.cli.export.stock import OPTIONS as STOCK_OPTIONS
from coppice.cli.export.stock import export_stock_format, stock_help
from coppice.cli.options.inputs import BoxesOption, OutputOption, RanksOption, RatesOption, SetOption
from coppice.errors import InputError
from coppice.export.registry import STOCK
from coppice.fitting.msccl.targets import TARGETS
from coppice.text import suggestion

__all__ = ["FORMATS", "export"]

FORMATS: Mapping[str, Format] = {
    "msccl-xml": Format(
        summary="Algorithm file for RCCL, msccl-executor-nccl or microsoft/msccl.",
        takes=MSCCL_OPTIONS,
        write=export_msccl_xml,
    ),
    "mscclpp-json": Format(
        summary="Execution plan for MSCCL++: puts, signals and waits.",
        takes=MSCCLPP_OPTIONS,
        write=export_mscclpp,
    ),
    "chakra": Format(
        summary="Execution traces of a message, one file per rank, for ASTRA-sim.",
        takes=CHAKRA_OPTIONS,
        write=export_chakra,
    ),
    "trace": Format(
        summary="Messages of the plan at one size, simulated, for ui.perfetto.dev.",
        takes=TIMED_OPTIONS,
        write=export_trace,
    ),
    "html": Format(
        summary="Report of the plan in one page, as `coppice report` writes it.",
        takes=TIMED_OPTIONS,
        write=export_picture,
    ),
    "svg": Format(
        summary="Picture of the topology with the plan's loads and the bottleneck cut.",
        takes=DRAWN_OPTIONS,
        write=export_picture,
    ),
    "dot": Format(
        summary="The topology with the bottleneck cut, for Graphviz.",
        takes=DRAWN_OPTIONS,
        write=export_picture,
    ),
    **{
        name: Format(summary=stock.summary, takes=STOCK_OPTIONS, write=export_stock_format)
        for name, stock in STOCK.items()
    },
}
"""What `--to` names."""


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
            help=f"One of: {', '.join(FORMATS)}.",
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
    instances: Annotated[
        int | None,
        typer.Option(
            "--instances",
            min=1,
            metavar="N",
            help="MSCCL XML: run N copies side by side, each on its part of the data [default: 1].",
            show_default=False,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", metavar="Simple|LL|LL128", help="MSCCL XML: protocol [default: Simple]."),
    ] = None,
    trees: Annotated[
        str | None,
        typer.Option(
            "--trees",
            metavar="N|plan",
            help="MSCCL XML: plan again with N trees per root, or with no other number than the plan has "
            "[default: those of the plan if they fit and divide the sizes, else the best that do].",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="SIZES",
            help="MSCCL XML: message sizes that are to use the file, as LOW:HIGH, a list or all [default: where it is "
            "faster than the library, by simulation]; others: the size of the message.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="MSCCL XML: label of the algorithm; chakra: first part of the names of the files."
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="MSCCL XML: for calls in place [default: for both where one file can serve both, else in place].",
        ),
    ] = False,
    out_of_place: Annotated[
        bool,
        typer.Option("--out-of-place", help="MSCCL XML: for calls out of place; with --in-place, for both."),
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
      coppice export plan.json --to mscclpp-json --size 1M:1G -o plan.mscclpp.json
      coppice export dgx-h100 --boxes 4 --to rank-order --option launcher=slurm
      coppice export plan.json --to chakra --size 64M -o traces
    """  # noqa: D301 (\b is for the help formatter)
    request = Request(
        source=source,
        to=to,
        output=output,
        target=target,
        channels=channels,
        instances=instances,
        protocol=protocol,
        trees=trees,
        size=size,
        name=name,
        in_place=in_place,
        out_of_place=out_of_place,
        options=tuple(options or ()),
        boxes=boxes,
        rates=rates,
        settings=tuple(settings or ()),
        ranks=ranks,
    )
    if to not in FORMATS:
        msg = f"there is no export {to!r}: {suggestion(to, FORMATS)}"
        raise InputError(msg)
    chosen = FORMATS[to]
    for flag in request.given:
        if flag not in chosen.takes:
            taken = ", ".join(sorted(chosen.takes)) or "none"
            msg = f"{flag} does not go with --to {to}: leave it out (its options: {taken})."
            raise InputError(msg)
    chosen.write(request)


export.__doc__ = f"{(export.__doc__ or '').rstrip()}\n\n{stock_help()}\n"
