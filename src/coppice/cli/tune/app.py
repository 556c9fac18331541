"""`coppice tune`: measure the algorithms of the installed library, and tell it which to take where."""

from __future__ import annotations

import typer

from coppice.cli.tune.check import check
from coppice.cli.tune.export import export
from coppice.cli.tune.fit import fit
from coppice.cli.tune.from_logs import from_logs
from coppice.cli.tune.plugin import app as plugin
from coppice.cli.tune.report import report
from coppice.cli.tune.sweep import sweep

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Measure the algorithms of the installed NCCL, RCCL or MPI, and tell it which to take where; undone by one "
    "variable.",
)
app.add_typer(plugin, name="plugin")
app.command("sweep")(sweep)
app.command("fit")(fit)
app.command("export")(export)
app.command("check")(check)
app.command("from-logs")(from_logs)
app.command("report")(report)
