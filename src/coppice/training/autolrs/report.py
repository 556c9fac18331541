"""Report of a learning-rate search as a page or a picture: rates, losses, trials, and the fits behind each choice.

Trials lie side by side where they were made, not one upon another: the axis counts their steps too. A panel shows eight
curves at most, and a point stands for the median of its neighbours.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil, exp
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from coppice.errors import InputError, MissingExtraError
from coppice.files import write_atomically
from coppice.report.svg import PAGE_STYLE, Markup, element, escape, join, style
from coppice.training.autolrs.log import Curve, Kept, Method, Retreat, SearchLog, TrialEnd, read_search

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CURVES = 8
"""Trials of a stage whose losses are drawn, evenly chosen among more; the chosen rate is always one of them."""

MOST_PANELS = 8
"""Stages that have a panel, evenly chosen among more; the first and the last are always among them."""

_COLUMNS = 4
_MOST_POINTS = 10
_MOST_KEPT_POINTS = 48
_WIDE = 30.0
"""Ratio of losses from which their axis is logarithmic."""

_KEPT, _TRIAL, _FAILED, _LOWER, _HIGHER = "#1f5fa8", "#a9a9a9", "#d1495b", "#2a9d8f", "#e9a03b"


@dataclass(frozen=True, kw_only=True)
class Span:
    """Steps with one rate, on an axis that includes trials."""

    kind: str  # `kept`, `trial` or `failed`
    first: int  # Step that it begins with
    steps: int  # How many
    event: Kept | TrialEnd | Retreat  # What the log says of it


def spans(search: SearchLog) -> list[Span]:
    """Segments in order, without gaps: warm-up, trials, failed stages, stages."""
    kept = search.by_stage
    stages = sorted({*kept, *search.trials})
    found: list[Span] = []
    at = 0
    for stage in stages:
        parts: list[tuple[str, int, Kept | TrialEnd | Retreat]] = [
            ("trial" if trial.forecast is not None else "failed", trial.losses.steps[-1] + 1, trial)
            for trial in search.trials.get(stage, [])
        ]
        parts += [("failed", event.steps, event) for event in search.retreats if event.stage == stage]
        if stage in kept:
            parts.append(("kept", kept[stage].steps, kept[stage]))
        for kind, steps, event in parts:
            found.append(Span(kind=kind, first=at, steps=steps, event=event))
            at += steps
    return found


def chosen_evenly(count: int, most: int) -> list[int]:
    """At most ``most`` evenly spread numbers below ``count``, with the first and the last.

    >>> chosen_evenly(10, 4)
    [0, 3, 6, 9]
    """
    if count <= most:
        return list(range(count))
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]


def thinned(
    steps: Sequence[int], losses: Sequence[float], most: int = _MOST_POINTS
) -> tuple[list[float], list[float]]:
    """Midpoints and median losses of at most ``most`` equal parts.

    >>> thinned([0, 1, 2], [3.0, 2.0, 1.0])
    ([0.0, 1.0, 2.0], [3.0, 2.0, 1.0])
    """
    size = ceil(len(steps) / most)
    starts = range(0, len(steps), max(size, 1))
    return [fmean(steps[at : at + size]) for at in starts], [median(losses[at : at + size]) for at in starts]


def picture(search: SearchLog, kind: str) -> bytes:
    """Render the plot as ``svg`` or ``png``, reproducibly."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    with mpl.rc_context({"svg.hashsalt": "coppice", "font.size": 9}):
        draw(search).savefig(buffer, format=kind, dpi=120, metadata=metadata)
    return buffer.getvalue()


def draw(search: SearchLog) -> Figure:
    """Draw the matplotlib figure."""
    from matplotlib.figure import Figure

    stages = sorted(search.trials)
    stages = [stages[number] for number in chosen_evenly(len(stages), MOST_PANELS)]
    rows = ceil(len(stages) / _COLUMNS)
    columns = ceil(len(stages) / max(rows, 1)) or 1
    figure = Figure(figsize=(11, 5.6 + 2.5 * rows), layout="constrained")
    grid = figure.add_gridspec(2 + rows, columns, height_ratios=[2.6, 2.2, *[2.5] * rows])
    above = figure.add_subplot(grid[0, :])
    found = spans(search)
    _draw_rates(search, found, above)
    _draw_losses(found, figure.add_subplot(grid[1, :], sharex=above))
    panels = [
        figure.add_subplot(grid[2 + number // columns, number % columns]) for number in range(len(stages))
    ]
    annealed = search.start.settings.method is Method.ANNEALED
    for stage, axes in zip(stages, panels, strict=True):
        (_draw_scores if annealed else _draw_fits)(search, stage, axes)
    if panels:
        _explain(figure, search, annealed=annealed)
    return figure


def _draw_rates(search: SearchLog, found: Sequence[Span], axes: Axes) -> None:
    """Every rate where it was used."""
    for span in found:
        steps, rates = _rates(search, span)
        colour = {"kept": _KEPT, "trial": _TRIAL, "failed": _FAILED}[span.kind]
        width = 2.6 if span.kind == "kept" else 1.6
        axes.plot(steps, rates, color=colour, linewidth=width, solid_capstyle="butt")
    lowest = min((_lr(span.event) for span in found), default=1.0)
    highest = max((_lr(span.event) for span in found), default=1.0)
    axes.set_yscale("log")
    axes.set_ylim(lowest / 2, highest * 2)
    axes.set_ylabel("learning rate")
    axes.set_title(search.summary, fontsize=10)
    _tidy(axes)
    axes.tick_params(labelbottom=False)
    _legend(axes, found)


def _rates(search: SearchLog, span: Span) -> tuple[list[int], list[float]]:
    event, last = span.event, span.first + span.steps
    if isinstance(event, Kept) and event.phase == "warmup":
        return [span.first, last], [event.lr / event.steps, event.lr]
    if search.start.settings.method is Method.ANNEALED:
        parts = range(101)
        steps = [span.first + span.steps * part // 100 for part in parts]
        return steps, [event.lr * (1 - part / 100.5) for part in parts]
    return [span.first, last], [_lr(event)] * 2


def _lr(event: Kept | TrialEnd | Retreat) -> float:
    return event.lr


def _legend(axes: Axes, found: Sequence[Span]) -> None:
    """Legend with an entry for each kind drawn, placed outside the plot."""
    from matplotlib.lines import Line2D

    words = {
        "kept": (_KEPT, "kept"),
        "trial": (_TRIAL, "trial, taken back"),
        "failed": (_FAILED, "failed, taken back"),
    }
    kinds = {span.kind for span in found}
    handles = [
        Line2D([], [], color=colour, linewidth=2.4, label=label)
        for kind, (colour, label) in words.items()
        if kind in kinds
    ]
    axes.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.005, 1.0),
        borderaxespad=0.0,
        frameon=False,
        fontsize=8,
    )


def _draw_losses(found: Sequence[Span], axes: Axes) -> None:
    """Training losses of the steps that are kept, and of trials behind them."""
    seen: list[float] = []
    for span in found:
        if isinstance(span.event, Retreat) or span.kind == "failed":
            continue
        steps, losses = _finite(span.event.losses)
        if not steps:
            continue
        kept = span.kind == "kept"
        places, levels = thinned(steps, losses, _MOST_KEPT_POINTS if kept else _MOST_POINTS)
        colour, width = (_KEPT, 1.6) if kept else (_TRIAL, 0.8)
        axes.plot([span.first + step for step in places], levels, color=colour, linewidth=width)
        if kept:
            seen += levels
    if seen and min(seen) > 0 and max(seen) / min(seen) > _WIDE:
        axes.set_yscale("log")
    axes.set_xlabel("step, trials included")
    axes.set_ylabel("training loss")
    _tidy(axes)


def _draw_fits(search: SearchLog, stage: int, axes: Axes) -> None:
    """Losses of a stage's trials and the curves through them."""
    trials = search.trials[stage]
    kept = search.by_stage.get(stage)
    for trial in _shown(trials, kept):
        colour, chosen = _side(trial, kept)
        steps, losses = _finite(trial.losses if trial.validations is None else trial.validations)
        front = 3 if chosen else 2
        if steps:
            axes.plot(*thinned(steps, losses), ".", markersize=3.5, color=colour, zorder=front)
        if trial.fit is not None and steps:
            a, b, c = trial.fit
            places = [steps[0] + (steps[-1] - steps[0]) * part / 60 for part in range(61)]
            curve = [a * exp(-b * place) + c for place in places]
            axes.plot(places, curve, color=colour, linewidth=2.0 if chosen else 1.1, zorder=front)
    _look_at_the_good(trials, axes)
    _title(search, stage, axes)
    axes.set_xlabel("step of the trial", fontsize=8)
    _tidy(axes, ticks=4)


def _draw_scores(search: SearchLog, stage: int, axes: Axes) -> None:
    """Where every rate ended once it had fallen."""
    trials = search.trials[stage]
    kept = search.by_stage.get(stage)
    scores = [trial.forecast for trial in trials if trial.forecast is not None]
    for trial in trials:
        colour, chosen = _side(trial, kept)
        if trial.forecast is not None:
            axes.plot([trial.lr], [trial.forecast], "o", color=colour, markersize=7 if chosen else 4.5)
    axes.set_xscale("log")
    if scores:
        top = sorted(scores)[len(scores) * 3 // 4]
        room = max(top - min(scores), 1e-12)
        axes.set_ylim(min(scores) - 0.15 * room, top + 0.3 * room)
        axes.set_xlim(min(trial.lr for trial in trials) / 1.6, max(trial.lr for trial in trials) * 1.6)
    _title(search, stage, axes)
    axes.set_xlabel("learning rate", fontsize=8)
    _tidy(axes, ticks=4)


def _title(search: SearchLog, stage: int, axes: Axes) -> None:
    judged = "validation" if search.trials[stage][0].validations is not None else "training"
    kept = search.by_stage.get(stage)
    rate = "" if kept is None else f", lr {kept.lr:.3g}"
    axes.set_title(f"stage {stage}: {judged} loss{rate}", fontsize=8)


def _side(trial: TrialEnd, kept: Kept | None) -> tuple[str, bool]:
    """Colour of a trial: on which side of the chosen rate it lies."""
    if trial.forecast is None:
        return _FAILED, False
    if kept is None:
        return _TRIAL, False
    if trial.lr == kept.lr:
        return _KEPT, True
    return (_LOWER if trial.lr < kept.lr else _HIGHER), False


def _shown(trials: Sequence[TrialEnd], kept: Kept | None) -> list[TrialEnd]:
    """At most eight trials: the chosen one, and others evenly over the rates."""
    chosen = [trial for trial in trials if kept is not None and trial.lr == kept.lr]
    others = sorted((trial for trial in trials if trial not in chosen), key=_lr)
    return [*(others[at] for at in chosen_evenly(len(others), MOST_CURVES - len(chosen))), *chosen]


def _explain(figure: Figure, search: SearchLog, *, annealed: bool) -> None:
    """The legend of the panels, below them."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"marker": "o", "linewidth": 0 if annealed else 1.6, "markersize": 5}
    failed = any(trial.forecast is None for trials in search.trials.values() for trial in trials)
    words = [(_KEPT, "chosen rate"), (_LOWER, "lower rate"), (_HIGHER, "higher rate")]
    if failed and not annealed:
        words.append((_FAILED, "failed"))
    handles = [Line2D([], [], color=colour, label=label, **style) for colour, label in words]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)


def _tidy(axes: Axes, *, ticks: int = 7) -> None:
    """A quiet grid, and labels with room between them."""
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    for axis, scale in ((axes.xaxis, axes.get_xscale()), (axes.yaxis, axes.get_yscale())):
        if scale == "log":
            axis.set_major_locator(LogLocator(numticks=5))
            axis.set_minor_formatter(NullFormatter())
        else:
            axis.set_major_locator(MaxNLocator(ticks if axis is axes.xaxis else 4))
    if axes.get_xscale() != "log":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=True, color="0.93")
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _look_at_the_good(trials: Sequence[TrialEnd], axes: Axes) -> None:
    """Trials that explode would press all others onto one line: they leave at the top."""
    seen = []
    for trial in trials:
        steps, losses = _finite(trial.losses if trial.validations is None else trial.validations)
        if losses:
            seen.append(thinned(steps, losses)[1])
    highest = sorted(max(losses) for losses in seen)
    lowest = min((min(losses) for losses in seen), default=0.0)
    if highest:
        top = highest[len(highest) // 2]
        axes.set_ylim(lowest - 0.08 * (top - lowest), top + 0.15 * (top - lowest) + 1e-12)


def _finite(seen: Curve) -> tuple[list[int], list[float]]:
    pairs = [(step, loss) for step, loss in zip(seen.steps, seen.losses, strict=True) if loss is not None]
    return [step for step, _ in pairs], [loss for _, loss in pairs]


PACKAGE = "matplotlib"
SUFFIXES = (".html", ".svg", ".png")


def write_report(log: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Write the report of a log.

    Args:
        path: Picture (.svg, .png) or page (.html) to write.

    Returns:
        Size of the file in bytes; the same log gives the same bytes.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise InputError(
            f"expected a file called *{', *'.join(SUFFIXES)}, found {target.name!r}: choose such a name."
        )
    if find_spec(PACKAGE) is None:
        raise MissingExtraError.of(PACKAGE, extra="autolrs")
    search = read_search(log)
    if target.suffix == ".png":
        content = picture(search, "png")
    else:
        content = picture(search, "svg")
        if target.suffix == ".html":
            content = _page(search, content.decode()).encode()
    write_atomically(target, content)
    return len(content)


def _page(search: SearchLog, drawn: str) -> str:
    """The picture and the tables as one HTML page that needs no network."""
    start = drawn.index("<svg")
    # Matplotlib gives a size in points; on a page the picture takes the width that there is.
    scaled = re.sub(
        r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"', r'\1\2 width="100%"', drawn[start:], count=1
    )
    settings = search.start.settings
    facts = [
        ("range", f"{settings.lr_range[0]:g} to {settings.lr_range[1]:g}"),
        ("stages", f"{settings.tau} steps, doubling to {settings.tau_max}"),
        ("trials", f"{settings.candidates} per stage, 1/{settings.trial_share} of its steps each"),
        (
            "warm-up",
            f"{settings.warmup_steps} steps to {settings.warmup_lr:g}" if settings.warmup_steps else "none",
        ),
        ("method", str(settings.method)),
        ("seed", str(settings.seed)),
    ]
    title = "Learning rates found by AutoLRS"
    head = element(
        "head", element("meta", charset="utf-8"), element("title", escape(title)), style(PAGE_STYLE)
    )
    parts = [
        element("h1", escape(title)),
        element("p", escape(search.summary)),
        _table(("setting", "value"), facts),
        element("figure", Markup(scaled)),
        element("h2", escape("Trials")),
        _table(
            ("stage", "trial", "learning rate", "steps", "forecast", "outliers", "verdict"),
            _trial_rows(search),
        ),
    ]
    if search.retreats:
        rows = [
            (str(r.stage), f"{r.lr:.4g}", str(r.steps), r.verdict, f"{r.next_lr:.4g}")
            for r in search.retreats
        ]
        parts += [
            element("h2", escape("Stages that began again")),
            _table(("stage", "learning rate", "lost steps", "verdict", "then"), rows),
        ]
    page = element("html", head, element("body", join(parts, "\n")), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _trial_rows(search: SearchLog) -> list[tuple[str, ...]]:
    kept = search.by_stage
    rows: list[tuple[str, ...]] = []
    for stage, trials in search.trials.items():
        for trial in trials:
            chosen = stage in kept and kept[stage].lr == trial.lr
            forecast = "-" if trial.forecast is None else f"{trial.forecast:.5g}"
            verdict = "chosen" if chosen else trial.verdict
            steps = str(trial.losses.steps[-1] + 1)
            rows.append(
                (
                    str(stage),
                    str(trial.number),
                    f"{trial.lr:.4g}",
                    steps,
                    forecast,
                    str(trial.outliers),
                    verdict,
                )
            )
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    head = element("tr", join(element("th", escape(cell)) for cell in header))
    body = join(element("tr", join(element("td", escape(cell)) for cell in row)) for row in rows)
    return element("table", element("thead", head), element("tbody", body))
