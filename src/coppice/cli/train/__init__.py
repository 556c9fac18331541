"""`coppice train`: simulate training iterations, and report on training logs."""

from __future__ import annotations

import typer

from coppice.cli.train.capture import capture
from coppice.cli.train.estimate import estimate
from coppice.cli.train.exporting import pipeline, torch_profile
from coppice.cli.train.importing import import_trace
from coppice.cli.train.jobs import job, measure, models
from coppice.cli.train.lr_compare import lr_compare
from coppice.cli.train.policies import advise, compare, policy, tune
from coppice.cli.train.report import lr_report, report
from coppice.cli.train.search import search

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Simulate training iterations, and report on training logs.",
    rich_markup_mode=None,
)


@app.callback()
def train() -> None:
    """Simulate training iterations, and report on training logs."""


app.command("estimate")(estimate)
app.command("search")(search)
app.command("compare")(compare)
app.command("tune")(tune)
app.command("advise")(advise)
app.command("report")(report)
app.command("job")(job)
app.command("models")(models)
app.command("policy")(policy)
app.command("pipeline")(pipeline)
app.command("torch-profile")(torch_profile)
app.command("measure")(measure)
app.command("import")(import_trace)
app.command("capture")(capture)
app.command("lr-report")(lr_report)
app.command("lr-compare")(lr_compare)
