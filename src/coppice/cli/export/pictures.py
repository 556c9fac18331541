"""`coppice export --to trace|html|svg|dot`: what `coppice simulate --trace` and `coppice report` write, by format."""

from __future__ import annotations

import sys

from coppice.cli.export.request import Request
from coppice.cli.output.render import Stages
from coppice.cli.report import picture
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.report.page import DEFAULT_SIZE_BYTES, report_html
from coppice.schedule.files.plan_file import read_plan
from coppice.simulation.scenario import Scenario
from coppice.simulation.trace import write_trace
from coppice.text import parse_size

__all__ = ["DRAWN_OPTIONS", "TIMED_OPTIONS", "export_picture", "export_trace"]

TIMED_OPTIONS = frozenset({"--size"})
"""Options of formats that show one message."""

DRAWN_OPTIONS: frozenset[str] = frozenset()
"""Options of formats that show the topology."""


def export_trace(request: Request) -> None:
    """Simulate a plan at one size (64M by default), and write its messages for ui.perfetto.dev.

    Raises:
        InputError: If no file is named, or the plan cannot be simulated.
    """
    if request.output is None or str(request.output) == "-":
        msg = "a trace is a file: name it (`-o trace.json`)."
        raise InputError(msg)
    size_bytes = DEFAULT_SIZE_BYTES if request.size is None else parse_size(request.size, option="--size")
    with Stages() as stages:
        stages.begin("reading the plan")
        body = read_plan(request.source).body
        stages.begin("simulating")
        timeline = Scenario(pieces=None).outcome(body, size_bytes).nominal
        stages.begin("writing the trace")
        write_trace(timeline, request.output)


def export_picture(request: Request) -> None:
    """Write a plan as a page (html), or its topology with loads and the bottleneck cut (svg, dot).

    Raises:
        CheckError: If the plan does not verify.
        InputError: If it cannot be read.
    """
    with Stages() as stages:
        stages.begin("reading the plan")
        plan = read_plan(request.source)
        if request.to == "html":
            size_bytes = (
                DEFAULT_SIZE_BYTES if request.size is None else parse_size(request.size, option="--size")
            )
            text = report_html(plan, size_bytes=size_bytes, on_stage=stages.begin)
        else:
            stages.begin("drawing")
            text = picture(plan, f".{request.to}")
    if request.output is None or str(request.output) == "-":
        sys.stdout.write(text)
    else:
        write_atomically(request.output, text.encode())
