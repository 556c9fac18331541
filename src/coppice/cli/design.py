"""`coppice design`: which network to build, and what its schedules reach; a file for each subcommand."""

from __future__ import annotations

import typer

from coppice.cli.design_schedule import schedule
from coppice.cli.design_show import show

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Design direct-connect networks and their schedules.")
app.command("show")(show)
app.command("schedule")(schedule)
