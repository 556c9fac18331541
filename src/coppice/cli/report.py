"""`coppice report`: a plan as one page that opens from disk, or its topology as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.output.render import Stages, print_lines
from coppice.cli.verify.command import PlanArgument
from coppice.comparison.outcome import Comparison
from coppice.comparison.sweep import compare
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.report.dot import to_dot
from coppice.report.page import write_report
from coppice.report.topology.picture import topology_svg
from coppice.schedule.explanation import plan_loads
from coppice.schedule.files.plan_file import read_plan
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from coppice.text import parse_size, parse_sizes, size_text

__all__ = ["picture", "report"]

SUFFIXES = (".html", ".svg", ".dot")


def report(
    plan: PlanArgument,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Page to write (.html), or only the topology with the bottleneck cut (.svg, .dot).",
        ),
    ] = Path("report.html"),
    size: Annotated[
        str,
        typer.Option(
            "--size",
            "-s",
            metavar="BYTES",
            help="Message size M of the timeline: bytes, or with K, M, G in powers of 1024.",
        ),
    ] = "64M",
    rivals: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="SIZES",
            help="Compare all algorithms at these sizes, such as 1K:1G:4 [default: no comparison].",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a report of a plan: topology, bottleneck cut, trees, link loads, timeline, and its rivals if asked.

    The plan is verified first. The page is one file that needs no network; hovering a link, a bar or an edge of a
    tree tells its name and numbers. Large pictures show a part, and say so.

    \b
    Examples:
      coppice report plan.json -o report.html
      coppice report plan.json -o report.html --size 1G --compare 1K:4G:4
      coppice report plan.json -o topology.svg
      coppice report plan.json -o topology.dot
    """  # noqa: D301 (\b is for the help formatter)
    if output.suffix not in SUFFIXES:
        msg = f"expected a file called *{', *'.join(SUFFIXES)}, found {output.name!r}: choose such a name."
        raise InputError(msg)
    if rivals is not None and output.suffix != ".html":
        msg = f"--compare belongs on a page, found {output.name!r}: leave it out, or write *.html."
        raise InputError(msg)
    size_bytes = parse_size(size, option="--size")
    sizes = () if rivals is None else parse_sizes(rivals, option="--compare")
    with Stages() as stages:
        stages.begin("reading the plan")
        loaded = read_plan(plan)
        if output.suffix == ".html":
            comparison = _compared(loaded, sizes, stages) if sizes else None
            written = write_report(
                loaded, output, size_bytes=size_bytes, comparison=comparison, on_stage=stages.begin
            )
        else:
            stages.begin("drawing")
            text = picture(loaded, output.suffix).encode()
            write_atomically(output, text)
            written = len(text)
    print_lines([f"{output}: {size_text(written)}"])


def _compared(plan: Plan, sizes: tuple[int, ...], stages: Stages) -> Comparison:
    """All algorithms at the given sizes, in the circumstances of the plan."""

    def on_progress(done: int, total: int, name: str) -> None:
        stages.begin(f"comparing algorithms: {done} of {total} ({name})")

    relays = plan.parameters.get("relay_gpus") is True
    return compare(plan.problem, sizes, relay_gpus=relays, on_progress=on_progress)


def picture(plan: Plan, suffix: str) -> str:
    """The topology with the plan's loads and cut, as a picture (``.svg``) or for Graphviz (``.dot``).

    Raises:
        CheckError: If the plan does not verify.
    """
    verify(plan).require_ok()
    cut = () if plan.bound is None else plan.bound.cut
    if suffix == ".dot":
        return to_dot(plan.topology, cut=cut)
    return topology_svg(plan.topology, loads=plan_loads(plan), cut=cut)
