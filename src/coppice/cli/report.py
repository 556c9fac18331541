"""`coppice explain` and `report`: explain a plan; write it as a page, or its topology as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.output import Stages, print_fields, print_json, print_lines
from coppice.cli.verify import PlanArgument
from coppice.errors import InputError
from coppice.options import option
from coppice.options.shared import USUAL_SIZE, BoxesOption, JsonOption, ModelOption, SetOption, SizeOption
from coppice.text import size_text


@with_options()
def report(
    plan: PlanArgument,
    *,
    output: Annotated[
        Path,
        option(
            "Page to write (.html), or only the topology with the bottleneck cut (.svg, .dot).",
            "-o",
            "--output",
            metavar="FILE",
        ),
    ] = Path("report.html"),
    size: SizeOption = USUAL_SIZE,
    compare: Annotated[
        str | None,
        option(
            "Compare all algorithms at these sizes, such as 1K:1G:4 [default: no comparison].",
            metavar="SIZES",
        ),
    ] = None,
    synthesize: Annotated[
        str | None,
        option(
            "With --compare: compare what methods of synthesis find as well, such as tacos,syccl.",
            "--method",
            metavar="LIST",
            was=["--synthesize"],
        ),
    ] = None,
    whole: Annotated[
        str | None,
        option(
            "What the topology was before it lost nodes or links, a preset or file: these are drawn as lost.",
            metavar="TOPOLOGY",
        ),
    ] = None,
    model: ModelOption = None,
    boxes: BoxesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a plan: topology, bottleneck cut, trees, link loads, timeline, and optionally other algorithms.

    The plan is verified first; of a set of plans it is the one for --size. The page is one file that needs no network;
    hovering a link, a bar or an edge of a tree tells its name and numbers. Large pictures show a part, and say so.

    \b
    Examples:
      coppice report plan.json -o report.html
      coppice report plan.json -o report.html --size 1G --compare 1K:4G:4
      coppice report plans/ --size 64K -o small.html
      coppice report plan.json -o topology.svg
      coppice report plan.json -o topology.dot
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.report.reporting import report as write_report

    if whole is None and (boxes is not None or settings):
        raise InputError("--boxes and --set go with --whole PRESET: add it, or leave them out.")
    before = None if whole is None else load_topology(whole, boxes=boxes, settings=settings)
    with Stages() as stages:
        written = write_report(
            plan,
            output,
            size=size,
            compare=compare,
            synthesize=[] if synthesize is None else [name.strip() for name in synthesize.split(",")],
            whole=before,
            model=model,
            on_stage=stages.begin,
        )
    if as_json:
        print_json("report", {"output": str(output), "output_bytes": written, "bytes": written})
        return
    print_lines([f"{output}: {size_text(written)}"])


@with_options()
def explain(
    plan: PlanArgument,
    *,
    size: Annotated[
        str | None,
        option(
            "Of a set of plans: explain the one for this size M.",
            "--size",
            "-s",
            metavar="SIZE",
        ),
    ] = None,
    top: Annotated[int, option("How many classes of links to list.", ge=1)] = 12,
    tree: Annotated[int | None, option("Draw this tree.", ge=0)] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a plan: the cut that limits it, the utilisation of each kind of link, and the shape of its trees.

    The plan is verified first. A tree is drawn for up to 32 ranks, or where --tree asks for one.

    \b
    Examples:
      coppice explain plan.json
      coppice explain plan.json --top 40 --tree 3
      coppice explain plans/ --size 64K
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.schedule.explanation import explain as explain_plan
    from coppice.schedule.explanation import title_of

    with Stages() as stages:
        stages.begin("reading and verifying the plan")
        found = explain_plan(plan, size=size)
    found.check_tree(tree)
    if as_json:
        print_json("explain", found.record())
        return
    print_fields(title_of(found.plan.problem), found.summary)
    print_lines(found.lines(top=top, tree=tree))
