"""Notebook output of a topology, a bound, a plan, a timeline or a comparison: a small table and a picture."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from coppice.bounds.describe import describe_cut
from coppice.bounds.result import Bound
from coppice.comparison.outcome import Comparison
from coppice.report.comparison import comparison_picture, comparison_table
from coppice.report.svg import PAGE_STYLE, Markup, element, facts, join, style
from coppice.report.timeline import timeline_picture
from coppice.report.topology.picture import topology_picture
from coppice.schedule.explanation import plan_loads
from coppice.schedule.plan import Plan
from coppice.simulation.timeline import Timeline
from coppice.text import rate_text, time_text
from coppice.topology.model import Topology

MOST_NODES = 400
"""Larger topologies are shown without a picture: a notebook keeps what it shows."""


def topology_html(topology: Topology) -> str:
    """Table and picture of a topology."""
    rows = [
        ("Topology", topology.name),
        ("Ranks", f"{topology.num_ranks:,}"),
        ("Nodes", f"{topology.num_nodes:,}"),
        ("Links", f"{topology.num_links:,}"),
    ]
    return _shown(rows, _drawn(topology))


def bound_html(bound: Bound) -> str:
    """Rates of a bound, and the bottleneck cut through the topology."""
    topology = bound.problem.topology
    return _shown(
        [("Collective", f"{bound.problem.collective} on {topology.name}"), *_optimum(bound)],
        _drawn(topology, cut=bound.cut),
    )


def plan_html(plan: Plan) -> str:
    """Claims of a plan, and its link loads with the bottleneck cut."""
    rows = [
        (
            "Plan",
            f"{plan.problem.collective} on {plan.topology.name} by {plan.planner or 'an unknown planner'}",
        )
    ]
    if plan.inv_rate:
        rows.append(("Claims", f"algbw {rate_text(plan.algbw_gb_per_s)} GB/s"))
    if plan.bound is not None:
        rows += _optimum(plan.bound)
    if plan.forest is not None:
        rows.append(("Trees", f"{len(plan.trees):,}"))
    cut = () if plan.bound is None else plan.bound.cut
    return _shown(rows, _drawn(plan.topology, plan=plan, cut=cut))


def result_html(result: Any) -> str:
    """Result of :func:`coppice.plan`: the plan, its distance from the optimum, and its verification."""
    loss = float(result.loss)
    rows = [
        ("Plan", f"{result.plan.problem.collective} on {result.plan.topology.name} by {result.plan.planner}"),
        (
            "Reaches",
            f"algbw {rate_text(result.algbw_gb_per_s)} GB/s, busbw {rate_text(result.busbw_gb_per_s)} GB/s",
        ),
        ("Of the optimum", "all of it" if loss == 0 else f"{100 * (1 - loss):.4g}%"),
        *_optimum(result.bound),
        ("Verified", "yes" if result.report.ok else "no"),
    ]
    if result.trees_per_root is not None:
        trees = result.shape
        height = f"height {trees.max_height} at most{trees.together}"
        rows.append(("Trees", f"{result.trees_per_root} per root, {height}"))
    if result.ring_gain is not None:
        rows.append(("Gain over the best ring", f"{float(result.ring_gain):.3g}x"))
    return _shown(rows, _drawn(result.plan.topology, plan=result.plan, cut=result.bound.cut))


def timeline_html(timeline: Timeline) -> str:
    """Time and rates of a simulation, and its Gantt chart."""
    rows = [
        ("Simulated", f"{timeline.collective} of {timeline.size_bytes:,} bytes"),
        ("Time", time_text(timeline.time_us)),
        ("Rates", f"algbw {timeline.algbw_gb_per_s:.4g} GB/s, busbw {timeline.busbw_gb_per_s:.4g} GB/s"),
    ]
    return _shown(rows, timeline_picture(timeline).svg if timeline.hops is not None else None)


def comparison_html(comparison: Comparison) -> str:
    """Best algorithm at each size, with times and rates of all."""
    problem = comparison.problem
    title = facts([("Compared", f"{problem.collective} on {problem.topology.name}")])
    return _framed(title, comparison_table(comparison), element("figure", comparison_picture(comparison)))


def _optimum(bound: Bound) -> list[tuple[str, str]]:
    if not bound.inv_rate:
        return []
    rates = f"algbw {rate_text(bound.algbw_gb_per_s)} GB/s, busbw {rate_text(bound.busbw_gb_per_s)} GB/s"
    return [("Optimum", rates), ("Bottleneck", describe_cut(bound))]


def _drawn(topology: Topology, *, plan: Plan | None = None, cut: tuple[int, ...] = ()) -> Markup | None:
    if topology.num_nodes > MOST_NODES:
        return None
    loads = None if plan is None else plan_loads(plan)
    return topology_picture(topology, loads=loads, cut=cut).svg


def _shown(rows: list[tuple[str, str]], picture: Markup | None) -> str:
    return _framed(facts(rows), *([] if picture is None else [element("figure", picture)]))


def _framed(*parts: Markup) -> str:
    """Parts with the style of a page, which does not reach the notebook around them."""
    return str(element("div", style(_scoped_style()), join(parts), class_="coppice"))


@cache
def _scoped_style() -> str:
    """The rules of a page on light, each for what lies within ``div.coppice`` only."""
    rules = []
    for selectors, body in re.findall(
        r"([^{}@]+)\{([^{}]*)\}", re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\}", "", PAGE_STYLE)
    ):
        names = [each.strip() for each in selectors.split(",")]
        if names == [":root"]:
            rules.append(f".coppice{{{body}background:var(--page);color:var(--ink);padding:2px 12px 10px}}")
        elif "body" not in names and "*" not in names:
            rules.append(f"{','.join(f'.coppice {name}' for name in names)}{{{body}}}")
    return "".join(rules)
