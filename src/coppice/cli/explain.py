"""`coppice explain`: explain a plan: its bottleneck, link loads and trees."""

from __future__ import annotations

from typing import Annotated

import typer

from coppice.cli.options.inputs import JsonOption
from coppice.cli.output.render import Stages, print_fields, print_json, print_lines
from coppice.cli.verify import PlanArgument


def explain(
    plan: PlanArgument,
    *,
    top: Annotated[int, typer.Option("--top", min=1, help="How many classes of links to list.")] = 12,
    tree: Annotated[int | None, typer.Option("--tree", min=0, help="Draw this tree.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a plan: the cut that limits it, the utilisation of each kind of link, and the shape of its trees.

    The plan is verified first. A tree is drawn for up to 32 ranks, or where --tree asks for one.

    \b
    Examples:
      coppice explain plan.json
      coppice explain plan.json --top 40 --tree 3
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.schedule.explanation import explain as explain_plan
    from coppice.schedule.explanation import title_of

    with Stages() as stages:
        stages.begin("reading and verifying the plan")
        found = explain_plan(plan)
    found.check_tree(tree)
    if as_json:
        print_json(found.record())
        return
    print_fields(title_of(found.plan.problem), found.summary)
    print_lines(found.lines(top=top, tree=tree))
