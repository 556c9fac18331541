"""`coppice train lr-report`: report of the learning rates found by AutoLRS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import Stages, print_fields, print_json, print_lines
from coppice.options import argument, option
from coppice.options.shared import JsonOption
from coppice.text import size_text

if TYPE_CHECKING:
    from coppice.training.autolrs.log import SearchLog


@with_options()
def lr_report(
    log: Annotated[Path, argument("Log that AutoLRS wrote (JSON lines).", metavar="LOG")],
    *,
    output: Annotated[
        Path | None,
        option(
            "Page (.html) or picture (.svg, .png) to write; without it the stages are printed.",
            "-o",
            "--output",
            metavar="FILE",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the learning rates found by AutoLRS, and the fits behind them.

    A training that still runs can be looked at as well.

    \b
    Examples:
      coppice train lr-report log.jsonl
      coppice train lr-report log.jsonl -o report.html
      coppice train lr-report log.jsonl -o schedule.svg
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.training.autolrs.log import read_search
    from coppice.training.autolrs.report import write_report

    search = read_search(log)
    if output is not None:
        with Stages() as stages:
            stages.begin("drawing")
            written = write_report(log, output)
        if not as_json:
            print_lines([f"{output}: {size_text(written)}"])
    if as_json:
        print_json("train-lr-report", search.record())
    elif output is None:
        print_fields(str(log), _fields(search))


def _fields(search: SearchLog) -> list[tuple[str, str]]:
    """A line per stage."""
    from coppice.training.autolrs.log import Method

    fields = []
    for event in search.kept:
        if event.phase == "warmup":
            fields.append(("warm-up", f"{event.steps} steps up to lr {event.lr:.4g}"))
            continue
        trials = search.trials.get(event.stage, [])
        failed = sum(trial.forecast is None for trial in trials)
        falls = " falling to 0" if search.start.settings.method is Method.ANNEALED else ""
        words = f"lr {event.lr:.4g}{falls} for {event.steps} steps, the best of {len(trials)} tried"
        if not trials:
            words = f"lr {event.lr:.4g} for {event.steps} steps, as before"
        if failed:
            words += f" ({failed} failed)"
        fields.append((f"stage {event.stage}", words))
    kept = sum(event.steps for event in search.kept)
    lost = sum(event.steps for event in search.retreats)
    total = f"{kept} kept, {search.search_steps} of trials, {lost} lost in stages that failed"
    return [*fields, ("steps", total if search.finished is not None else f"{total}; not finished")]
