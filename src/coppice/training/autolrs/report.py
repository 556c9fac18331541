"""A search for learning rates as a page that opens from disk, or as a picture: the schedule, the losses, every fit."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil, exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coppice.errors import InputError, MissingExtraError
from coppice.files import write_atomically
from coppice.report.style import PAGE_STYLE, style
from coppice.report.svg import Markup, element, escape, join
from coppice.training.autolrs.log import (
    Curve,
    Event,
    Finished,
    Kept,
    Retreat,
    Start,
    TrialEnd,
    read_events,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SUFFIXES", "SearchLog", "picture", "read_search", "write_report"]

PACKAGE = "matplotlib"
SUFFIXES = (".html", ".svg", ".png")
_COLUMNS = 4
_MOST_STAGES = 32
"""Stages whose fits are drawn, evenly chosen among more."""


def write_report(log: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Draw a log.

    Args:
        log: What AutoLRS wrote.
        path: Picture (.svg, .png) or page (.html) to write.

    Returns:
        Size of the file in bytes; the same log gives the same bytes.

    Raises:
        InputError: If the log cannot be used, or the file cannot be written.
        MissingExtraError: If matplotlib is not installed.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        msg = f"expected a file called *{', *'.join(SUFFIXES)}, found {target.name!r}: choose such a name."
        raise InputError(msg)
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


@dataclass(frozen=True, kw_only=True)
class SearchLog:
    """What a log tells.

    Attributes:
        start: Settings.
        trials: Trials by stage.
        kept: The warm-up and the stages that are over.
        retreats: Stages that began again.
        finished: The end, if the training reached it.
    """

    start: Start
    trials: dict[int, list[TrialEnd]]
    kept: list[Kept]
    retreats: list[Retreat]
    finished: Finished | None

    def record(self) -> dict[str, Any]:
        """The schedule as JSON values."""
        return {
            "schedule": [
                {
                    "phase": event.phase,
                    "stage": event.stage,
                    "lr": event.lr,
                    "first_step": event.first_step,
                    "steps": event.steps,
                }
                for event in self.kept
            ],
            "search_steps": self.search_steps,
            "lost_steps": sum(event.steps for event in self.retreats),
            "finished": self.finished is not None,
        }

    @property
    def search_steps(self) -> int:
        """Steps of trials."""
        return sum(trial.losses.steps[-1] + 1 for trials in self.trials.values() for trial in trials)

    @property
    def by_stage(self) -> dict[int, Kept]:
        """The stages that are over, by number; -1 is the warm-up."""
        return {event.stage: event for event in self.kept}

    @property
    def summary(self) -> str:
        """Its steps, in words."""
        kept = sum(event.steps for event in self.kept)
        words = f"AutoLRS: {kept:,} steps kept, {self.search_steps:,} of trials"
        lost = sum(event.steps for event in self.retreats)
        if lost:
            words += f", {lost:,} lost in stages that failed"
        return words if self.finished is not None else f"{words} so far"


def read_search(path: str | os.PathLike[str]) -> SearchLog:
    """Read a log.

    Raises:
        InputError: If it cannot be read, or is no such log, or tells of no trial and no stage.
    """
    events: Sequence[Event] = read_events(path)
    trials: dict[int, list[TrialEnd]] = {}
    for event in events:
        if isinstance(event, TrialEnd):
            trials.setdefault(event.stage, []).append(event)
    kept = [event for event in events if isinstance(event, Kept)]
    if not trials and not kept:
        msg = f"expected a trial or a stage in {os.fspath(path)}, found none yet: let the training go on."
        raise InputError(msg)
    return SearchLog(
        start=next(event for event in events if isinstance(event, Start)),
        trials=trials,
        kept=kept,
        retreats=[event for event in events if isinstance(event, Retreat)],
        finished=next((event for event in events if isinstance(event, Finished)), None),
    )


def picture(search: SearchLog, kind: str) -> bytes:
    """The picture as ``svg`` or ``png``: no date and no random names are in it, the same log gives the same bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {}
    with mpl.rc_context({"svg.hashsalt": "coppice"}):
        _figure(search).savefig(buffer, format=kind, dpi=120, metadata=metadata)
    return buffer.getvalue()


def _figure(search: SearchLog) -> Figure:
    from matplotlib.figure import Figure

    stages = sorted(search.trials)
    if len(stages) > _MOST_STAGES:
        stages = [stages[number * len(stages) // _MOST_STAGES] for number in range(_MOST_STAGES)]
    rows = ceil(len(stages) / _COLUMNS)
    figure = Figure(figsize=(11, 5 + 2.3 * rows), layout="constrained")
    grid = figure.add_gridspec(2 + rows, _COLUMNS, height_ratios=[2.5, 2.0, *[2.3] * rows])
    above = figure.add_subplot(grid[0, :])
    _draw_schedule(search, above)
    _draw_losses(search, figure.add_subplot(grid[1, :], sharex=above))
    for number, stage in enumerate(stages):
        axes = figure.add_subplot(grid[2 + number // _COLUMNS, number % _COLUMNS])
        _draw_fits(search, stage, axes)
    return figure


def _draw_schedule(search: SearchLog, axes: Axes) -> None:
    """Rates over kept steps, and what was tried before each stage."""
    at = 0
    for event in search.kept:
        at = event.first_step + event.steps
        steps = [event.first_step, at]
        rates = [event.lr / event.steps, event.lr] if event.phase == "warmup" else [event.lr] * 2
        axes.plot(steps, rates, color="#1f77b4", linewidth=2.2, solid_capstyle="butt", zorder=3)
    kept = search.by_stage
    for stage, trials in search.trials.items():
        place = kept[stage].first_step if stage in kept else at
        good = [trial for trial in trials if trial.forecast is not None]
        bad = [trial for trial in trials if trial.forecast is None]
        axes.scatter([place] * len(good), [t.lr for t in good], s=14, color="0.55", zorder=2)
        axes.scatter([place] * len(bad), [t.lr for t in bad], s=22, color="#d62728", marker="x", zorder=2)
    axes.set_yscale("log")
    axes.set_ylabel("learning rate")
    axes.set_title(search.summary, fontsize=10)
    axes.grid(visible=True, color="0.92")
    axes.tick_params(labelbottom=False)


def _draw_losses(search: SearchLog, axes: Axes) -> None:
    """Training losses of the steps that are kept."""
    for event in search.kept:
        steps, losses = _finite(event.losses)
        axes.plot([event.first_step + step for step in steps], losses, color="0.3", linewidth=0.8)
    axes.set_xlabel("kept step")
    axes.set_ylabel("training loss")
    axes.grid(visible=True, color="0.92")


def _draw_fits(search: SearchLog, stage: int, axes: Axes) -> None:
    """Losses of a stage's trials and the curves through them; the rate that was chosen is blue."""
    kept = search.by_stage.get(stage)
    for trial in search.trials[stage]:
        chosen = kept is not None and trial.lr == kept.lr
        colour = "#1f77b4" if chosen else "#d62728" if trial.forecast is None else "0.6"
        seen = trial.losses if trial.validations is None else trial.validations
        steps, losses = _finite(seen)
        front = 3 if chosen else 2
        axes.plot(steps, losses, ".", markersize=2.5, color=colour, zorder=front)
        if trial.fit is not None and steps:
            a, b, c = trial.fit
            places = [steps[0] + (steps[-1] - steps[0]) * part / 60 for part in range(61)]
            axes.plot(
                places,
                [a * exp(-b * place) + c for place in places],
                color=colour,
                linewidth=1.2,
                zorder=front,
            )
    _look_at_the_good(search.trials[stage], axes)
    judged = "validation" if search.trials[stage][0].validations is not None else "training"
    rate = "" if kept is None else f", lr {kept.lr:.3g}"
    axes.set_title(f"stage {stage} ({judged} loss){rate}", fontsize=8)
    axes.tick_params(labelsize=7)


def _look_at_the_good(trials: Sequence[TrialEnd], axes: Axes) -> None:
    """Trials that explode would press all others onto one line: they leave at the top."""
    seen = [_finite(trial.losses if trial.validations is None else trial.validations)[1] for trial in trials]
    highest = sorted(max(losses) for losses in seen if losses)
    lowest = min((min(losses) for losses in seen if losses), default=0.0)
    if highest:
        top = highest[len(highest) // 2]
        axes.set_ylim(lowest - 0.08 * (top - lowest), top + 0.15 * (top - lowest) + 1e-12)


def _finite(seen: Curve) -> tuple[list[int], list[float]]:
    pairs = [(step, loss) for step, loss in zip(seen.steps, seen.losses, strict=True) if loss is not None]
    return [step for step, _ in pairs], [loss for _, loss in pairs]
