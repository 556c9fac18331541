"""HTML page of a plan: rates and limits, topology, trees, loads, timeline, and other algorithms.

The page holds everything that it shows: it opens from disk, asks no network for anything, and is readable on light and
dark screens and on paper. Hovering a link, a bar or an edge of a tree tells its name and numbers. The same plan gives
the same bytes, and even for thousands of ranks less than a megabyte of them: large pictures show a part, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from coppice.bounds.describe import describe_cut
from coppice.collectives import Collective
from coppice.comparison.outcome import Comparison
from coppice.report.comparison import comparison_picture, comparison_table, refused_methods, synthesis_table
from coppice.report.svg import NOTHING, Markup, drawing, element, escape, facts, fitted, html_page, join
from coppice.report.timeline import timeline_picture
from coppice.report.topology.picture import load_class, topology_picture
from coppice.report.tree import sketches, tree_picture
from coppice.schedule.explanation import LinkClass, link_classes, plan_loads
from coppice.schedule.forest import expanded_edges
from coppice.schedule.loads import LinkLoads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify_plan
from coppice.simulation.models import DEFAULT_MODEL, Model
from coppice.simulation.simulator import fastest
from coppice.simulation.timeline import Timeline
from coppice.text import percent_text, plural, rate_line, rate_text, time_text
from coppice.topology.model import NodeKind, Topology
from coppice.version import __version__

MOST_CLASSES = 16
WIDTH = 1000.0
LEFT, RIGHT = 330.0, 70.0
"""Room for the words before a bar and the percentage after it."""

LINE = 34.0
_NAMES = {NodeKind.GPU: "GPU", NodeKind.NIC: "NIC", NodeKind.SWITCH: "switch"}


def load_picture(loads: LinkLoads) -> Markup:
    """Draw the busiest classes of links; the last line counts the omitted ones."""
    classes = link_classes(loads)
    shown = classes[:MOST_CLASSES]
    rows = [_row(loads.topology, links, 8 + at * LINE) for at, links in enumerate(shown)]
    height = 12 + len(shown) * LINE
    if len(classes) > len(shown):
        rest = classes[MOST_CLASSES:]
        count = plural(sum(links.count for links in rest), "further link")
        words = (
            f"{count} in {plural(len(rest), 'class')}, busy {percent_text(rest[0].load)} of the time or less"
        )
        rows.append(element("text", escape(words), x=LEFT, y=height + 8, class_="quiet"))
        height += 20
    return drawing(WIDTH, height, join(rows), name="loads", label="How busy each class of links is")


def _row(topology: Topology, links: LinkClass, y: float) -> Markup:
    """Words, a bar and a percentage."""
    ends = f"{_NAMES[links.src_kind]} → {_NAMES[links.dst_kind]}"
    words = f"{plural(links.count, 'link')} {ends}, {rate_text(links.gb_per_s)} GB/s"
    names = topology.node_ids
    example = f"{names[topology.src[links.example]]} → {names[topology.dst[links.example]]}"
    track = WIDTH - LEFT - RIGHT
    length = float(links.load) * track
    parts = [
        element(
            "title", escape(f"{words}, such as {example}: busy {percent_text(links.load)} of the plan's time")
        ),
        element("text", escape(fitted(words, LEFT - 14, 11)), x=LEFT - 10, y=y + 10, class_="end"),
        element(
            "text",
            escape(fitted(f"such as {example}", LEFT - 14, 9)),
            x=LEFT - 10,
            y=y + 22,
            class_="end small quiet",
        ),
        element("rect", x=LEFT, y=y, width=track, height=20, rx=3, class_="track"),
    ]
    if links.load:
        colour = f"bar{load_class(links.load)}"
        parts.append(element("rect", x=LEFT, y=y, width=max(length, 1.0), height=20, rx=3, class_=colour))
    parts.append(
        element(
            "text",
            escape(percent_text(links.load, most_decimals=1)),
            x=WIDTH - RIGHT + 8,
            y=y + 14,
            class_="strong",
        )
    )
    return element("g", *parts)


DEFAULT_SIZE_BYTES = 64 * 2**20
MOST_MESSAGES = 4_000_000
"""Transfers of a plan that is simulated for its timeline, in one piece each."""

FINE_MESSAGES = 1_000_000
"""Messages into which chunks may be cut up."""

_SCRIPT = """
(function () {
  var choice = document.getElementById("tree-choice");
  if (!choice) { return; }
  var mark = document.getElementById("tree-mark");
  var trees = Array.from(document.querySelectorAll("section.tree"));
  var links = Array.from(document.querySelectorAll("svg.topology g[data-link]"));
  function show() {
    var used = new Set((trees[choice.selectedIndex].dataset.links || "").split(" "));
    trees.forEach(function (tree, at) { tree.hidden = at !== choice.selectedIndex; });
    links.forEach(function (link) {
      link.classList.toggle("chosen", mark.checked ? used.has(link.dataset.link) : false);
    });
  }
  choice.addEventListener("change", show);
  mark.addEventListener("change", show);
  show();
})();
"""
"""Shows the chosen tree only, and marks its links in the topology drawing if asked; without scripts all trees are seen.

The text holds neither ``<`` nor ``&``, so that pages stay well-formed XML."""


def report_html(
    plan: Plan,  # The plan; it is verified first
    *,
    size_bytes: int = DEFAULT_SIZE_BYTES,  # Message size M of the timeline
    comparison: Comparison | None = None,  # Rivals of the plan (:func:`coppice.comparison.compare`), or None
    # What the topology was before it lost nodes or links, which are drawn as lost; or None
    whole: Topology | None = None,
    model: Model = DEFAULT_MODEL,
    on_stage: Callable[[str], None] | None = None,
) -> str:
    """Render the report of a plan as an HTML page that is well-formed XML.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_GATHER)
        >>> report_html(plan(problem).plan, size_bytes=2**20)[:15]
        '<!DOCTYPE html>'
    """
    stage = on_stage or (lambda _: None)
    stage("verifying the plan")
    checked = verify_plan(plan)
    checked.require_ok()
    stage("counting loads")
    loads = plan_loads(plan)
    stage("simulating")
    size = 0 if plan.problem.collective is Collective.BARRIER else size_bytes
    run = _simulated(plan, size, model)
    stage("drawing")
    topology = plan.topology
    title = f"{plan.problem.collective} on {topology.name}"
    cut = plan.bound.cut if plan.bound is not None else ()
    label = f"{title}: topology and bottleneck cut"
    picture = topology_picture(topology, loads=loads, cut=cut, label=label, whole=whole)
    body = [
        element("h1", escape(title)),
        element("p", escape(_subtitle(plan)), class_="quiet"),
        facts(_facts(plan, checked, loads, run)),
        element("h2", escape("Topology")),
        element("p", escape(_topology_words(plan))),
        *_omitted(picture.omitted),
        _topology_key(cut=bool(cut)),
        element("figure", picture.svg),
        *_trees(plan, picture.joined),
        element("h2", escape("Link loads")),
        element("p", escape("Share of the plan's bandwidth time for which each class of links is busy.")),
        element("figure", load_picture(loads)),
        *_timeline(run, plan),
        *([] if comparison is None else _comparison(comparison)),
        element("footer", escape(_footer(plan))),
    ]
    return html_page(title, body, element("script", Markup(_SCRIPT)))


def topology_html(topology: Topology, *, whole: Topology | None = None) -> str:
    """Render a topology as an HTML page: picture, link rates, and degradations."""
    picture = topology_picture(topology, whole=whole)
    return _small_page(topology.name, topology, [*_omitted(picture.omitted), element("figure", picture.svg)])


def comparison_html(comparison: Comparison) -> str:
    """Render a comparison as an HTML page: charts, and the best algorithm at each size."""
    topology = comparison.problem.topology
    title = f"{comparison.problem.collective} on {topology.name}"
    return _small_page(title, topology, _comparison(comparison))


def _small_page(title: str, topology: Topology, shown: Sequence[Markup]) -> str:
    """A page without a plan: a title, what the topology holds, and what is shown."""
    body = [
        element("h1", escape(title)),
        element("p", escape(_topology_size(topology)), class_="quiet"),
        *shown,
        element("footer", escape(f"Made by coppice {__version__}. Topology {topology.sha256[:16]}.")),
    ]
    return html_page(title, body)


@dataclass(frozen=True, kw_only=True)
class _Simulated:
    """A simulation, or why there is none."""

    timeline: Timeline | None
    pieces: int
    size_bytes: int
    words: str


def _simulated(plan: Plan, size_bytes: int, model: Model) -> _Simulated:
    """The plan at one size, its chunks cut into as many pieces as serve it."""
    messages = expanded_edges(plan.forest) if plan.forest is not None else 0
    if plan.schedule is not None:
        messages = plan.schedule.num_transfers
    if messages > MOST_MESSAGES:
        words = f"{messages:,} transfers are too many for a timeline: it is drawn up to {MOST_MESSAGES:,}."
        return _Simulated(timeline=None, pieces=0, size_bytes=size_bytes, words=words)
    most = min(max(FINE_MESSAGES // max(messages, 1), 1), 256)
    timeline = fastest(plan.body, size_bytes, model=model, most=most)
    return _Simulated(timeline=timeline, pieces=timeline.pieces, size_bytes=size_bytes, words="")


def _subtitle(plan: Plan) -> str:
    words = _topology_size(plan.topology)
    return f"{words} Planned by {plan.planner}." if plan.planner else words


def _topology_size(topology: Topology) -> str:
    boxes = f" in {plural(len(topology.hosts), 'box')}" if len(topology.hosts) > 1 else ""
    return f"{plural(topology.num_ranks, 'rank')}{boxes}, {topology.num_links} directed links."


def _facts(plan: Plan, checked: Report, loads: LinkLoads, run: _Simulated) -> list[tuple[str, str]]:
    """What an engineer wants to know first."""
    problem, bound = plan.problem, plan.bound
    factor = problem.busbw_factor
    rate = problem.shards / loads.inv_rate if loads.inv_rate else Fraction(0)
    rows = []
    if rate:
        words = f"{rate_line(rate)} algbw, {rate_line(rate * factor)} busbw by its busiest link"
        rows.append(("Plan reaches", words))
    if bound is not None and bound.inv_rate:
        share = f"; the plan reaches {percent_text(rate / bound.algbw_gb_per_s)} of it" if rate else ""
        name = "Bound" if checked.bound_proved else "Claimed bound, not proved"
        name = "Optimum" if checked.optimal else name
        rows.append((name, f"{rate_line(bound.algbw_gb_per_s)} algbw{share}"))
        if checked.bound_proved:
            rows.append(("Bottleneck", describe_cut(bound)))
    rows.append(("Verified", _verified(checked)))
    if plan.forest is not None:
        trees = shape(plan.forest)
        words = f"{trees.distinct_trees} distinct, height {trees.max_height} at most{trees.together}"
        if trees.trees_per_root is not None:
            words = f"{trees.trees_per_root} per root, {words}"
        rows.append(("Trees", words))
    if plan.schedule is not None:
        count = plural(plan.schedule.num_chunks, "chunk")
        rows.append(("Transfers", f"{plan.schedule.num_transfers:,} of {count}"))
    if run.timeline is not None:
        words = f"{time_text(run.timeline.time_us)} for {_bytes(run.size_bytes)}"
        if run.size_bytes:
            words += f", {run.timeline.algbw_gb_per_s:.4g} GB/s algbw, {run.timeline.busbw_gb_per_s:.4g} GB/s busbw"
        rows += [("Simulated", words), ("Model of time", run.timeline.model.text)]
    given = {
        name: value for name, value in plan.parameters.items() if value is not None and value is not False
    }
    if given:
        rows.append(("Parameters", ", ".join(f"{name} = {value}" for name, value in sorted(given.items()))))
    if plan.topology.source:
        rows.append(("Rates from", plan.topology.source))
    return rows


def _bytes(size: int) -> str:
    """A size with a binary unit.

    >>> _bytes(64 * 2**20), _bytes(1000), _bytes(1536)
    ('64 MiB', '1000 bytes', '1536 bytes')
    """
    unit = max((power for power in range(5) if size and size % 1024**power == 0), default=0)
    return f"{size // 1024**unit} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _verified(checked: Report) -> str:
    return "yes" if checked.bound_proved is None else f"yes; {checked.proof_in_words}"


def _topology_words(plan: Plan) -> str:
    if plan.bound is None or not plan.bound.cut:
        return "Lines are links; their colour is the share of the plan's time for which they are busy."
    return f"The bottleneck: {describe_cut(plan.bound)}. Colours say how long each link is busy."


def _omitted(parts: Sequence[str]) -> list[Markup]:
    """What a picture leaves out or folds."""
    if not parts:
        return []
    return [element("p", escape(f"Large topology: {', '.join(parts)}."), class_="quiet")]


def _topology_key(*, cut: bool) -> Markup:
    """What colours and shapes mean."""
    rows = [
        ("rect", "gpu", "GPU"),
        ("rect", "nic", "NIC"),
        ("rect", "switch", "switch"),
        ("line", "link load0", "unused"),
        ("line", "link load1", "busy below 50%"),
        ("line", "link load2", "50% to 90%"),
        ("line", "link load3", "90% and more"),
        ("line", "link load4", "all the time"),
    ]
    if cut:
        rows.append(("line", "tick", "crosses the cut"))
    return _key(rows)


def _key(rows: Sequence[tuple[str, str, str]]) -> Markup:
    """Samples of shapes with their meaning."""
    found = []
    for kind, colours, words in rows:
        if kind == "line":
            shape_ = element("line", x1=2, y1=7, x2=24, y2=7, class_=colours, stroke_width=2.5)
        else:
            shape_ = element("rect", x=3, y=1.5, width=20, height=11, rx=2, class_=colours)
        sample = element("svg", shape_, width=26, height=14, viewBox="0 0 26 14", aria_hidden="true")
        found.append(element("span", sample, escape(words)))
    return element("div", *found, class_="key")


def _trees(plan: Plan, joined: Mapping[tuple[int, int], int]) -> list[Markup]:
    """Representative trees, one of which is seen at a time."""
    chosen = sketches(plan)
    if not chosen:
        return []
    options, sections = [], []
    for at, sketch in enumerate(chosen):
        options.append(element("option", escape(sketch.title)))
        used = sorted({joined[pair] for pair in sketch.links() if pair in joined})
        drawn = tree_picture(plan.topology, sketch, name=f"tree{at}")
        sections.append(
            element(
                "section",
                element("h3", escape(sketch.title)),
                element("figure", drawn),
                class_="tree",
                data_links=" ".join(map(str, used)),
            )
        )
    what = "trees" if plan.forest is not None else "ways of chunks"
    box = element("input", type="checkbox", id="tree-mark")
    words = "A column for each transfer away from the root; orange arrows lead from box to box."
    return [
        element("h2", escape(what.capitalize())),
        element("p", escape(f"{plural(len(chosen), 'representative')} of the plan's {what}. {words}")),
        element(
            "p",
            element("select", *options, id="tree-choice", aria_label=f"which of the {what}"),
            escape(" "),
            element("label", box, escape(" mark its links in the topology drawing")),
            class_="screen",
        ),
        *sections,
    ]


def _timeline(run: _Simulated, plan: Plan) -> list[Markup]:
    """The Gantt chart, and what it shows."""
    heading = element("h2", escape("Timeline"))
    if run.timeline is None:
        return [heading, element("p", escape(run.words), class_="quiet")]
    picture = timeline_picture(run.timeline)
    pieces = f", chunks in {plural(run.pieces, 'piece')}" if run.pieces > 1 else ""
    words = (
        f"Simulated: {_bytes(run.size_bytes)} take {time_text(run.timeline.time_us)}{pieces}, "
        f"{run.timeline.messages.count:,} messages. A row is a link, a bar a message that passes it."
    )
    notes = []
    if picture.folded:
        notes.append(
            "Links that carry equally much share a row with their number (×): its moments are those of one of them."
        )
    if picture.rows < picture.used:
        notes.append(f"{picture.rows} of {picture.used:,} links are shown, the busiest of each class.")
    if picture.areas:
        notes.append("Where messages are too many to tell apart, heights show how much a link is in use.")
    rows = [("rect", "send", "copies"), ("rect", "critical", "critical path")]
    if plan.problem.collective.reduces:
        rows.insert(1, ("rect", "add", "is added"))
    return [
        heading,
        element("p", escape(words)),
        *([element("p", escape(" ".join(notes)), class_="quiet")] if notes else []),
        _key(rows),
        element("figure", picture.svg),
    ]


def _comparison(comparison: Comparison) -> list[Markup]:
    """Charts of all algorithms, and the best one at each size."""
    optimum = rate_text(comparison.optimum.algbw_gb_per_s)
    words = (
        f"Every algorithm that performs {comparison.problem.collective} here, simulated with "
        f"the model {comparison.model.text}. Nothing exceeds {optimum} GB/s, or takes less than "
        f"{time_text(comparison.latency.time_us)}."
    )
    return [
        element("h2", escape("Comparison")),
        element("p", escape(words)),
        element("figure", comparison_picture(comparison)),
        comparison_table(comparison) if comparison.times else NOTHING,
        synthesis_table(comparison) if comparison.synthesized else NOTHING,
        *(element("p", escape(line), class_="quiet") for line in refused_methods(comparison)),
    ]


def _footer(plan: Plan) -> str:
    made = f"Made by coppice {__version__}"
    by = f" from a plan of version {plan.version}" if plan.version else ""
    return f"{made}{by}. Topology {plan.topology.sha256[:16]}."
