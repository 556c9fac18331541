"""`coppice design`: design direct-connect networks and their schedules."""

from __future__ import annotations

import typer

from coppice.cli.design.compare import compare
from coppice.cli.design.find import find
from coppice.cli.design.show import cabling, schedule, show

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)
app.callback(invoke_without_command=True)(find)
app.command("show")(show)
app.command("schedule")(schedule)
app.command("cabling")(cabling)
app.command("compare")(compare)
