"""Report of a learning-rate search as a page or a picture: schedule, losses, and every fit."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from coppice.errors import InputError, MissingExtraError
from coppice.files import write_atomically
from coppice.report.svg import PAGE_STYLE, Markup, element, escape, join, style
from coppice.training.autolrs.log import SearchLog, read_search
from coppice.training.autolrs.picture import picture

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
