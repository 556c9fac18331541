"""HTML page of a fit: heat maps of gain and of distance from the bound, rules, and all comparisons.

The page holds everything that it shows and asks no network for anything; the same fit gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.report.svg import PAGE_STYLE, Markup, drawing, element, escape, facts, join, style
from coppice.topology.model import Topology
from coppice.tuning.fit import NO_END, Fit, SizeFit
from coppice.tuning.records import CallShape, TimedRun
from coppice.tuning.table import undo_line
from coppice.version import __version__

_MOST_ROWS = 2_000
_UNITS = ("", "K", "M", "G", "T")
_FULL_GAIN = 3.0
"""Gain at which a cell has its full colour."""

_HEAT_STYLE = (
    ".heat-good{fill:var(--chosen)}.heat-far{fill:var(--load4)}.heat-none{fill:var(--card);stroke:var(--line)}"
    ".picture text.cell{text-anchor:middle;font-size:10px;pointer-events:none}"
)
"""Rules for the colours of heat maps, beside the page's own."""

_LEFT, _TOP, _WIDTH, _HEIGHT = 210, 34, 62, 30


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCell:
    """Content of a cell."""

    text: str  # A few letters
    strength: float | None  # 0 .. 1, how strong the colour is; None where nothing is known.
    tip: str  # What hovering tells


def tuning_html(fit: Fit, *, topology: str = "") -> str:
    """Render the page as HTML that is well-formed XML.

    Args:
        topology: Name of the topology of the bounds, empty where there are none.
    """
    title = f"Tuning of {fit.library} {fit.version}".rstrip()
    sizes = [size for each in fit.sizes.values() for size in each]
    changed = [size for size in sizes if size.taken is not None]
    gains = sorted(size.taken.verdict.gain for size in changed if size.taken is not None)
    outliers = sum(each.verdict.outliers for size in sizes for each in size.candidates)
    summary = [
        ("sizes measured", str(len(sizes))),
        ("another choice than the default", f"at {len(changed)} of them"),
        ("median gain there", f"{gains[len(gains) // 2]:.2f} times as fast" if gains else "none"),
        ("far-off times", f"{outliers}; they are kept and counted"),
        ("bounds", topology or "none: no topology was given"),
        ("take back", undo_line(fit.library).removeprefix("undo: ")),
    ]
    body = [
        element("h1", escape(title)),
        facts(summary),
        _section(
            "Gain on the default",
            "Default's time / time of the rule. Empty cells keep the default: no choice was faster beyond noise.",
            _heat_map(fit.sizes, _gain, colour="heat-good", name="gain", label=f"{title}: gain"),
        ),
    ]
    if any(size.bound_us is not None for size in sizes):
        text = (
            "Share of the bandwidth bound that the rule reaches; the stronger the colour, the further away."
        )
        body.append(
            _section(
                "Distance from the bound",
                text,
                _heat_map(fit.sizes, _distance, colour="heat-far", name="bound", label=f"{title}: bound"),
            )
        )
    body += [_rules(fit), _comparisons(fit), element("footer", escape(f"coppice {__version__}"))]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("title", escape(title)),
        style(PAGE_STYLE),
        style(_HEAT_STYLE),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _section(title: str, text: str, picture: Markup) -> Markup:
    return element(
        "section",
        element("h2", escape(title)),
        element("p", escape(text), class_="quiet"),
        element("figure", picture),
    )


def _gain(shape: CallShape, size: SizeFit) -> HeatCell:
    taken = size.taken
    place = f"{shape} of {_short(size.size_bytes)}"
    if taken is None:
        best = size.candidates[0] if size.candidates else None
        near = (
            ""
            if best is None
            else f"; nearest: {best.choice}, {_interval(best.verdict.low, best.verdict.high)}"
        )
        return HeatCell(text="", strength=None, tip=f"{place}: default, {size.default_us:.4g} us{near}")
    verdict = taken.verdict
    interval = _interval(verdict.low, verdict.high)
    return HeatCell(
        text=f"{verdict.gain:.2f}",
        strength=math.log(max(1.0, verdict.gain)) / math.log(_FULL_GAIN),
        tip=f"{place}: {taken.choice}, {verdict.time_us:.4g} us; {verdict.gain:.2f} times as fast ({interval})",
    )


def _distance(shape: CallShape, size: SizeFit) -> HeatCell:
    share = size.reached(size.time_us)
    if share is None or size.bound_us is None:
        return HeatCell(
            text="?", strength=None, tip=f"{shape} of {_short(size.size_bytes)}: no bound is known"
        )
    before = size.reached(size.default_us) or 0.0
    tip = (
        f"{shape} of {_short(size.size_bytes)}: {size.time_us:.4g} us, bound {size.bound_us:.4g} us; "
        f"default {100 * before:.1f} %"
    )
    return HeatCell(text=f"{100 * share:.3g} %", strength=max(0.0, 1 - share), tip=tip)


def _rules(fit: Fit) -> Markup:
    rows = [
        (
            str(rule.shape),
            f"{_short(rule.first_bytes)} .. {'' if rule.last_bytes == NO_END else _short(rule.last_bytes)}",
            f"{rule.gain:.2f}" if rule.choice else "",
            _interval(rule.low, rule.high) if rule.choice else "",
            "" if rule.reached is None else f"{100 * rule.reached:.3g} %",
            str(rule.choice or "default"),
        )
        for rule in fit.rules
    ]
    titles = ("collective, nodes x ranks", "sizes", "gain", "95 % interval", "of the bound", "choice")
    return element("section", element("h2", escape("Rules")), _table(titles, rows))


def _comparisons(fit: Fit) -> Markup:
    rows = [
        (
            str(shape),
            _short(size.size_bytes),
            f"{each.verdict.gain:.3g}",
            _interval(each.verdict.low, each.verdict.high),
            f"{each.p_value:.2g}",
            f"{each.verdict.repeats} ({each.verdict.outliers})",
            str(each.choice),
        )
        for shape, known in fit.sizes.items()
        for size in known
        for each in size.candidates
    ]
    titles = ("collective", "size", "gain", "95 % interval", "p-value", "repeats (far off)", "choice")
    hidden = len(rows) - _MOST_ROWS
    note = (
        f"{hidden} further rows are left out."
        if hidden > 0
        else "Every choice beside the default of its pair."
    )
    return element(
        "section",
        element("h2", escape("All comparisons")),
        element("p", escape(note), class_="quiet"),
        _table(titles, rows[:_MOST_ROWS]),
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    head = element("tr", *(element("th", escape(title)) for title in titles))
    body = join(element("tr", *(element("td", escape(text)) for text in row)) for row in rows)
    return element("div", element("table", head, body), class_="scroll")


def _heat_map(
    sizes: Mapping[CallShape, Sequence[SizeFit]],  # What is known of each shape
    show: Callable[[CallShape, SizeFit], HeatCell],
    *,
    colour: str,  # Class of the cells, `heat-good` or `heat-far`
    name: str,
    label: str,  # What it shows, for those who cannot see it
) -> Markup:
    """The picture."""
    columns = sorted({size.size_bytes for each in sizes.values() for size in each})
    width, height = _LEFT + _WIDTH * len(columns) + 10, _TOP + _HEIGHT * len(sizes) + 10
    parts = [
        element(
            "text", escape(_short(size)), class_="middle small", x=_LEFT + _WIDTH * (at + 0.5), y=_TOP - 10
        )
        for at, size in enumerate(columns)
    ]
    for row, (shape, known) in enumerate(sizes.items()):
        top = _TOP + _HEIGHT * row
        parts.append(element("text", escape(str(shape)), class_="end", x=_LEFT - 10, y=top + _HEIGHT / 2 + 4))
        for size in known:
            left = _LEFT + _WIDTH * columns.index(size.size_bytes)
            cell = show(shape, size)
            strength = None if cell.strength is None else f"{0.08 + 0.8 * min(1.0, cell.strength):.2f}"
            parts.append(
                element(
                    "g",
                    element("title", escape(cell.tip)),
                    element(
                        "rect",
                        x=left + 1,
                        y=top + 1,
                        width=_WIDTH - 2,
                        height=_HEIGHT - 2,
                        rx=3,
                        class_="heat-none" if strength is None else colour,
                        fill_opacity=strength,
                    ),
                    element(
                        "text", escape(cell.text), class_="cell", x=left + _WIDTH / 2, y=top + _HEIGHT / 2 + 4
                    ),
                )
            )
    return drawing(width, height, *parts, name=name, label=label)


def _interval(low: float, high: float) -> str:
    return f"{low:.2f} .. {high:.2f}"


def _short(size_bytes: int) -> str:
    """A size in few letters.

    >>> _short(65536), _short(1000), _short(32769)
    ('64K', '1000', '32K')
    """
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.{4 if not unit else 3}g}{_UNITS[unit]}"


def bounds_us(runs: Iterable[TimedRun], topology: Topology) -> dict[tuple[CallShape, int], float]:
    """Lower bounds for measured shapes that use all ranks of a topology.

    Returns:
        Microseconds by shape and size; shapes of fewer ranks are left out, since nothing says which ranks they are.

    Examples:
        >>> from coppice.tuning.records import LibraryChoice
        >>> from coppice.topology.presets import preset
        >>> run = TimedRun(library="mpich", collective=Collective.ALL_GATHER, nodes=1, ranks=4, size_bytes=8_000_000,
        ...           choice=LibraryChoice("ring"), default_us=(1.0,), time_us=(1.0,))
        >>> bounds_us([run], preset("ring", gpus=4, gb_per_s=1))
        {(CallShape(collective=<Collective.ALL_GATHER: 'all_gather'>, nodes=1, ranks=4), 8000000): 3000.0}
    """
    found: dict[tuple[CallShape, int], float] = {}
    rates: dict[Collective, float] = {}
    counts = set()
    for run in runs:
        counts.add(run.ranks)
        if run.ranks != topology.num_ranks or run.collective is Collective.BARRIER:
            continue
        if run.collective not in rates:
            root = 0 if run.collective.rooted else None
            limit = bound_of(Problem(topology=topology, collective=run.collective, root=root))
            rates[run.collective] = float(limit.algbw_gb_per_s)
        if rates[run.collective]:
            found[run.shape, run.size_bytes] = run.size_bytes / rates[run.collective] / 1e3
    if topology.num_ranks not in counts:
        words = ", ".join(map(str, sorted(counts)))
        raise InputError(
            f"expected the topology of a measured communicator ({words} ranks), found {topology.num_ranks} ranks."
        )
    return found
