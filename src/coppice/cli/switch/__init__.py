"""`coppice switch`: aggregation in the network."""

from __future__ import annotations

import typer

from coppice.cli.switch.check import check
from coppice.cli.switch.export import export
from coppice.cli.switch.model import model
from coppice.cli.switch.place import place
from coppice.cli.switch.serve import serve, xdp

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="In-network aggregation: switches that reduce the data of all-reduces.",
)
app.command("serve")(serve)
app.command("model")(model)
app.command("place")(place)
app.command("check")(check)
app.command("export")(export)
app.command("xdp")(xdp)
