"""`coppice tune report`: what measurements say, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.options.inputs import BoxesOption, SetOption
from coppice.cli.output.render import print_lines
from coppice.cli.tune.fit import AlphaOption, GainOption, TopologyOption, fitted
from coppice.files import write_atomically
from coppice.tuning.records import read_runs
from coppice.tuning.report import tuning_html
from coppice.tuning.undo import undo_line

__all__ = ["report"]


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Files of `coppice tune sweep`.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Page to write.")] = Path(
        "tuning.html"
    ),
    topology: TopologyOption = None,
    boxes: BoxesOption = None,
    settings: SetOption = None,
    alpha: AlphaOption = 0.01,
    least_gain: GainOption = 0.03,
) -> None:
    """Write a page with heat maps of gain and of distance from the bound, the rules, and every comparison.

    \b
    Examples:
      coppice tune report runs.jsonl --topology cluster.json -o tuning.html
    """  # noqa: D301 (\b is for the help formatter)
    found, loaded = fitted(
        read_runs(runs),
        topology=topology,
        boxes=boxes,
        settings=settings,
        alpha=alpha,
        least_gain=least_gain,
        extend=False,
        seed=0,
    )
    page = tuning_html(found, topology="" if loaded is None else loaded.name).encode()
    write_atomically(output, page)
    print_lines([f"written to {output} ({len(page)} bytes)", undo_line(found.library)])
