"""`coppice train report` and `lr-report`: pages of a simulated iteration, and of learning rates found by AutoLRS."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output import Stages, print_fields, print_json, print_lines
from coppice.cli.train.estimate import ContentionOption, TraceOption
from coppice.cli.train.jobs import LAYOUT_OPTIONS, load_job
from coppice.iteration.job_options import JobOptions
from coppice.options import argument, option
from coppice.options.shared import JsonOption
from coppice.text import size_text

if TYPE_CHECKING:
    from coppice.training.autolrs.log import SearchLog


@with_options(f"job output {LAYOUT_OPTIONS} policy collectives model contention trace rates settings as_json")
def report(
    options: JobOptions,
    *,
    output: Annotated[Path, option("Page to write (.html).", "-o", "--output")] = Path("iteration.html"),
    contention: ContentionOption = 0.0,
    trace: TraceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a simulated iteration of a job as a page: time breakdown, and a timeline to zoom in.

    The page is one file that needs no network: parts of the time, what each device computes, exposed communication by
    collective, group and link, a timeline of all streams in which a drag chooses what is seen, memory, lower bounds,
    and the model behind each number.

    \b
    Examples:
      coppice train report gpt-7.5b --topology dgx-a100 --parallel tp=8 --global-batch 16 -o iteration.html
      coppice train report job.toml --policy megatron --trace step.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.files import write_atomically
    from coppice.iteration.trace import write_task_trace
    from coppice.verbs.train_files import page_of, require_page, simulated_parts

    require_page(output)
    with Stages() as stages:
        stages.begin("simulating")
        asked = load_job(options)
        composed = simulated_parts(asked, contention=contention)
        stages.begin("drawing")
        content = page_of(asked, composed, command=_estimate_command()).encode()
        write_atomically(output, content)
        if trace is not None:
            write_task_trace(composed.times, trace)
    if as_json:
        print_json(
            "train-report",
            {
                "output": str(output),
                "output_bytes": len(content),
                "bytes": len(content),
                "iteration_seconds": composed.seconds,
            },
        )
        return
    print_lines([f"{output}: {size_text(len(content))}"])


def _estimate_command() -> str:
    """The estimate that prints the numbers of the page: the words of this command without its files."""
    words = list(sys.argv[1:])
    if words[:2] != ["train", "report"]:
        return ""
    kept: list[str] = []
    skip = False
    for word in words[2:]:
        if skip or word == "--json":
            skip = False
            continue
        skip = word in ("-o", "--output", "--trace")
        if not (skip or word.startswith(("--output=", "--trace="))):
            kept.append(word)
    return shlex.join(["coppice", "train", "estimate", *kept])


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
