"""`coppice train report`: write a simulated iteration as a page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import Stages, print_json, print_lines
from coppice.cli.train.estimate import ContentionOption, TraceOption
from coppice.cli.train.job_options import LAYOUT_OPTIONS, load_job
from coppice.errors import InputError
from coppice.iteration.job_options import JobOptions
from coppice.options import option
from coppice.options.shared import JsonOption
from coppice.text import size_text

_MEMORY = ("parameters", "gradients", "optimizer", "activations")


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
    from coppice.iteration.composing.composed import simulated_job
    from coppice.iteration.page.jobs import report_of_step
    from coppice.iteration.page.page import iteration_html
    from coppice.iteration.trace import write_task_trace

    if output.suffix != ".html":
        raise InputError(f"expected a file called *.html, found {output.name!r}: choose such a name.")
    with Stages() as stages:
        stages.begin("simulating")
        asked = load_job(options)
        composed = simulated_job(asked, contention=contention or None)
        found, held = composed.step, composed.memory
        if found is None:
            raise InputError(
                f"expected policies whose step has parts, found {asked.run.policy}, which plans the whole iteration: "
                "`coppice train estimate --trace` writes its operations."
            )
        stages.begin("drawing")
        page = report_of_step(
            f"{asked.name} on {asked.machines.name}",
            found,
            memory={name: getattr(held, name) for name in _MEMORY},
            memory_bytes=asked.cluster.device.memory_bytes,
            device=asked.cluster.device.name,
            command=_estimate_command(),
            measured=asked.cluster.table is not None,
        )
        content = iteration_html(page).encode()
        write_atomically(output, content)
        if trace is not None:
            write_task_trace(found.times, trace)
    if as_json:
        print_json(
            "train-report",
            {
                "output": str(output),
                "output_bytes": len(content),
                "bytes": len(content),
                "iteration_seconds": found.seconds,
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
