"""`coppice explain`: explain a plan: its bottleneck, link loads and trees."""

from __future__ import annotations

from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import Stages, print_fields, print_json, print_lines
from coppice.cli.verify import PlanArgument
from coppice.options import option
from coppice.options.shared import JsonOption


@with_options()
def explain(
    plan: PlanArgument,
    *,
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
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.schedule.explanation import explain as explain_plan
    from coppice.schedule.explanation import title_of

    with Stages() as stages:
        stages.begin("reading and verifying the plan")
        found = explain_plan(plan)
    found.check_tree(tree)
    if as_json:
        print_json("explain", found.record())
        return
    print_fields(title_of(found.plan.problem), found.summary)
    print_lines(found.lines(top=top, tree=tree))
