"""`coppice tune`: measure the installed library's algorithms, and configure it to use the best."""

from __future__ import annotations

import typer

from coppice.cli.tune.deployed import check, export, plugin_app
from coppice.cli.tune.rules import fit, from_logs, report
from coppice.cli.tune.sweep import sweep

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Measure the algorithms of the installed NCCL, RCCL or MPI, and configure it to use the best; undone by one "
    "variable.",
)
app.add_typer(plugin_app, name="plugin")
app.command("sweep")(sweep)
app.command("fit")(fit)
app.command("export")(export)
app.command("check")(check)
app.command("from-logs")(from_logs)
app.command("report")(report)
