"""`coppice train`: the training iteration simulated, and what training left behind."""

from __future__ import annotations

import typer

from coppice.cli.train.estimate import estimate
from coppice.cli.train.lr_report import lr_report
from coppice.cli.train.policy import policy

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Simulate training iterations, and draw what training left behind.",
    rich_markup_mode=None,
)


@app.callback()
def train() -> None:
    """Simulate training iterations, and draw what training left behind."""


app.command("estimate")(estimate)
app.command("policy")(policy)
app.command("lr-report")(lr_report)
