"""`coppice design cabling`: cabling list of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.options.inputs import JsonOption
from coppice.cli.output.render import print_fields, print_json, write_text
from coppice.text import plural

PortsPerNodeOption = Annotated[
    int | None, typer.Option("--ports-per-node", min=1, metavar="N", help="Ports that a node has.")
]
PanelPortsOption = Annotated[
    int | None,
    typer.Option(
        "--panel-ports",
        min=1,
        metavar="N",
        help="Cable through patch panels with this number of positions each.",
    ),
]
MaxPanelsOption = Annotated[
    int | None, typer.Option("--max-panels", min=1, metavar="N", help="Patch panels that there are.")
]


def cabling(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Such as 'torus(4,6)'.")],
    *,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write the list; - is standard output."),
    ] = Path("-"),
    ports_per_node: PortsPerNodeOption = None,
    panel_ports: PanelPortsOption = None,
    max_panels: MaxPanelsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the cabling list of a recipe as CSV: pairs of ports to connect.

    Full-duplex graphs have cables, others fibres from the transmitter of a port to the receiver of another. With
    --panel-ports every port of a node has a fixed position on a patch panel, and cables join positions.

    \b
    Examples:
      coppice design cabling 'torus(4,6)' -o torus.csv
      coppice design cabling 'gkautz(4,1024)' --panel-ports 512 --max-panels 8 -o kautz.csv
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.design.cabling import CablingLimits, cabling_of
    from coppice.design.recipes.parser import parse

    limits = CablingLimits(ports_per_node=ports_per_node, panel_ports=panel_ports, max_panels=max_panels)
    made = cabling_of(parse(recipe).build(), limits)
    printed = str(output) == "-"
    if not (printed and as_json):
        write_text(made.csv_text(), output)
    if as_json:
        print_json(made.record())
    if printed or as_json:
        return
    fields = [(f"{made.kind}s", f"{len(made.ends):,}")]
    if panel_ports is not None:
        fields.append(("patch panels", f"{made.panels:,}, {made.across_panels:,} {made.kind}s across"))
    fields.append(("written to", str(output)))
    graph = made.graph
    print_fields(f"{graph.name} ({plural(graph.num_nodes, 'rank')} of degree {graph.degree})", fields)
