"""`coppice train`: simulate training iterations, and report on training logs."""

from __future__ import annotations

import typer

from coppice.cli.train.advise import advise
from coppice.cli.train.compare import compare
from coppice.cli.train.estimate import estimate
from coppice.cli.train.importing import import_trace
from coppice.cli.train.jobs import job
from coppice.cli.train.lr_report import lr_report
from coppice.cli.train.measure import measure
from coppice.cli.train.models import models
from coppice.cli.train.pipeline import pipeline
from coppice.cli.train.policy import policy
from coppice.cli.train.report import report
from coppice.cli.train.search import search
from coppice.cli.train.torch_profile import torch_profile
from coppice.cli.train.tune import tune

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
app.command("lr-report")(lr_report)
