"""`coppice explain`: why a plan is as fast as it is, and what it looks like."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from coppice.bounds.describe import describe_cut
from coppice.cli.options.inputs import JsonOption
from coppice.cli.output.render import Stages, bar, print_fields, print_json, print_lines
from coppice.cli.verify.command import PlanArgument
from coppice.schedule.explanation import LinkClass, draw_tree, height_counts, link_classes, plan_loads
from coppice.schedule.files.plan_file import read_plan
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import LinkLoads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.schedule.verification.verify import verify
from coppice.text import bandwidth_text, percent_text, plural, rate_text
from coppice.topology.model import Topology

__all__ = ["explain"]

DRAWN_RANKS = 32


def explain(
    plan: PlanArgument,
    *,
    top: Annotated[int, typer.Option("--top", min=1, help="How many classes of links to list.")] = 12,
    tree: Annotated[
        int | None, typer.Option("--tree", min=0, help="Draw this tree.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a plan: the cut that limits it, how busy each kind of link is, and the shape of its trees.

    The plan is verified first. A tree is drawn for up to 32 ranks, or where --tree asks for one.

    \b
    Examples:
      coppice explain plan.json
      coppice explain plan.json --top 40 --tree 3
    """  # noqa: D301 (\b is for the help formatter)
    with Stages() as stages:
        stages.begin("reading the plan")
        loaded = read_plan(plan)
        stages.begin("verifying the plan")
        verify(loaded).require_ok()
        stages.begin("counting loads")
        loads = plan_loads(loaded)
    classes = link_classes(loads)
    if as_json:
        print_json(_record(loaded, loads, classes))
        return
    topology = loaded.topology
    title = f"{loaded.problem.collective} on {topology.name} ({plural(topology.num_ranks, 'rank')})"
    print_fields(title, _summary(loaded, loads))
    print_lines(["", "Links, by how long they are busy", *_link_lines(topology, classes, top)])
    if loaded.forest is not None:
        print_lines(["", "Trees, by height", *_height_lines(loaded.forest)])
        drawn = tree if tree is not None else 0
        if tree is not None or topology.num_ranks <= DRAWN_RANKS:
            print_lines(["", *_drawing(loaded.forest, drawn)])


def _summary(plan: Plan, loads: LinkLoads) -> list[tuple[str, str]]:
    problem = plan.problem
    factor = problem.collective.busbw_factor(plan.topology.num_ranks)
    rate = problem.shards / loads.inv_rate if loads.inv_rate else None
    fields = []
    if plan.bound is not None:
        found = plan.bound
        fields.append(("optimum", bandwidth_text(found.algbw_gb_per_s, found.busbw_gb_per_s)))
        fields.append(("bottleneck", describe_cut(found)))
    if rate is not None:
        fields.append(("plan", bandwidth_text(rate, rate * factor)))
    if plan.forest is not None:
        trees = shape(plan.forest)
        per_root = "differ" if trees.trees_per_root is None else str(trees.trees_per_root)
        fields.append(("trees", f"{per_root} per root, {trees.distinct_trees} distinct"))
    if plan.schedule is not None:
        schedule = plan.schedule
        fields.append(("transfers", f"{schedule.num_transfers} of {plural(schedule.num_chunks, 'chunk')}"))
    return fields


def _link_lines(topology: Topology, classes: list[LinkClass], top: int) -> list[str]:
    """One line for each class of links: a bar, the load, and which links they are."""
    lines = []
    for links in classes[:top]:
        ends = f"{links.src_kind.name.lower()} -> {links.dst_kind.name.lower()}"
        src, dst = topology.src[links.example], topology.dst[links.example]
        lines.append(
            f"  {bar(float(links.load), width=24)} {percent_text(links.load):>8}  "
            f"{plural(links.count, 'link'):>12}  {ends:<16}  {rate_text(links.gb_per_s):>8} GB/s  "
            f"such as {topology.node_ids[src]} -> {topology.node_ids[dst]}"
        )
    if len(classes) > top:
        rest = classes[top:]
        count = sum(links.count for links in rest)
        share = percent_text(rest[0].load)
        lines.append(f"  and {plural(count, 'link')} that are busy for {share} of the time or less")
    return lines


def _height_lines(forest: Forest) -> list[str]:
    lines = []
    for row in height_counts(forest):
        name = "broadcast" if row.phase == Phase.BROADCAST else "reduce"
        lines.append(
            f"  {bar(float(row.share), width=24)} {percent_text(row.share):>8}  "
            f"height {row.height:<3} {plural(row.trees, f'{name} tree')}"
        )
    return lines


def _drawing(forest: Forest, tree: int) -> list[str]:
    """A tree as text."""
    if tree >= forest.num_trees:
        return [f"There is no tree {tree}: the plan has trees 0 .. {forest.num_trees - 1}."]
    phase = Phase(int(forest.tree_phase[tree]))
    share = f"{int(forest.tree_weight[tree])}/{forest.phase_weight(phase)}"
    word = "from its root" if phase == Phase.BROADCAST else "to its root"
    return [f"Tree {tree}: {share} of the data, {word}", *(f"  {line}" for line in draw_tree(forest, tree))]


def _record(plan: Plan, loads: LinkLoads, classes: list[LinkClass]) -> dict[str, Any]:
    """The explanation as JSON values."""
    topology = plan.topology
    rate = plan.problem.shards / loads.inv_rate if loads.inv_rate else None
    return {
        "collective": plan.problem.collective.value,
        "topology": topology.name,
        "ranks": topology.num_ranks,
        "planned_inv_rate": str(loads.inv_rate),
        "planned_algbw_exact": None if rate is None else str(rate),
        "cut": None if plan.bound is None else [topology.node_ids[node] for node in plan.bound.cut],
        "cut_in_words": None if plan.bound is None else describe_cut(plan.bound),
        "links": [
            {
                "from_kind": links.src_kind.name.lower(),
                "to_kind": links.dst_kind.name.lower(),
                "gb_per_s": str(links.gb_per_s),
                "load": str(links.load),
                "count": links.count,
                "example": [
                    topology.node_ids[topology.src[links.example]],
                    topology.node_ids[topology.dst[links.example]],
                ],
            }
            for links in classes
        ],
        "heights": None
        if plan.forest is None
        else [
            {
                "phase": row.phase.name.lower(),
                "height": row.height,
                "trees": row.trees,
                "share": str(row.share),
            }
            for row in height_counts(plan.forest)
        ],
    }
