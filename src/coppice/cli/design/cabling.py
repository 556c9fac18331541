"""`coppice design cabling`: cabling list of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import print_fields, print_json, write_text
from coppice.design.limits import CablingLimits
from coppice.options import argument, option
from coppice.options.shared import JsonOption
from coppice.text import plural

LimitOption = Annotated[CablingLimits, option("What there is", "--limit")]


@with_options()
def cabling(
    recipe: Annotated[str, argument("Such as 'torus(4,6)'.", metavar="RECIPE")],
    *,
    output: Annotated[
        Path,
        option("Where to write the list; - is standard output.", "-o", "--output", metavar="FILE"),
    ] = Path("-"),
    limits: LimitOption,
    as_json: JsonOption = False,
) -> None:
    """Write the cabling list of a recipe as CSV: pairs of ports to connect.

    Full-duplex graphs have cables, others fibres from the transmitter of a port to the receiver of another. With
    panel_ports every port of a node has a fixed position on a patch panel, and cables join positions.

    \b
    Examples:
      coppice design cabling 'torus(4,6)' -o torus.csv
      coppice design cabling 'gkautz(4,1024)' --limit panel_ports=512 --limit max_panels=8 -o kautz.csv
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.design.cabling import cabling_of
    from coppice.design.recipes.parser import parse

    made = cabling_of(parse(recipe).build(), limits)
    printed = str(output) == "-"
    if not (printed and as_json):
        write_text(made.csv_text(), output)
    if as_json:
        print_json("design-cabling", made.record())
    if printed or as_json:
        return
    fields = [(f"{made.kind}s", f"{len(made.ends):,}")]
    if limits.panel_ports is not None:
        fields.append(("patch panels", f"{made.panels:,}, {made.across_panels:,} {made.kind}s across"))
    fields.append(("written to", str(output)))
    graph = made.graph
    print_fields(f"{graph.name} ({plural(graph.num_nodes, 'rank')} of degree {graph.degree})", fields)
