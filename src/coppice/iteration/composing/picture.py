"""One picture: the time of an iteration under each policy as bars, with what none of them beats."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from coppice.comparison.plot import check_picture, save_picture
from coppice.iteration.composing.compared import ComparedPolicies, gain_of
from coppice.text import seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COMPUTES, _WAITS, _BASELINE = "#1f77b4", "#ff7f0e", "#b9c0c8"
_FAR = 1.5
"""Bars end at so many times the baseline; those that go on are told by their numbers."""
_FAMILIES = {"job": "", "gradients": "policies of gradients", "order": "orders of pipelines"}


def plot_policies(found: ComparedPolicies, path: str | os.PathLike[str], *, title: str) -> None:
    """Draw policies as horizontal bars, the fastest above.

    A bar is the computation of the busiest device and the rest of the iteration. A black line is what none of them
    beats, a tick what no order of the same passes and messages does.

    Args:
        path: Picture to write; its suffix (.png, .svg or .pdf) decides the kind.
    """
    target = Path(path)
    check_picture(target)
    save_picture(_figure(found, title), target, bbox_inches="tight")


def _figure(found: ComparedPolicies, title: str) -> Figure:
    from matplotlib.figure import Figure

    counts = [sum(row.family == family for row in found.rows) for family in found.baselines]
    figure = Figure(figsize=(10, 1.8 + 0.3 * sum(counts) + 0.8 * (len(counts) - 1)), layout="constrained")
    every = figure.subplots(len(counts), 1, squeeze=False, gridspec_kw={"height_ratios": counts})[:, 0]
    for family, axes in zip(found.baselines, every, strict=True):
        _bars(found, family, axes)
    every[-1].set_xlabel("time of an iteration")
    figure.suptitle(title)
    handles, labels = every[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _bars(found: ComparedPolicies, family: str, axes: Axes) -> None:
    """The bars of a family."""
    rows = [row for row in found.rows if row.family == family]
    baseline = found.baselines[family]
    places = range(len(rows))
    end = 1000 * min(max(row.seconds for row in rows), _FAR * baseline.seconds)
    computes = [1000 * min(row.compute_seconds, row.seconds) for row in rows]
    waits = [max(0.0, min(end, 1000 * row.seconds) - own) for row, own in zip(rows, computes, strict=True)]
    shades = [_BASELINE if row is baseline else _WAITS for row in rows]
    axes.barh(places, computes, color=_COMPUTES, label="computation of the busiest device")
    axes.barh(places, waits, left=computes, color=shades)
    axes.barh([0], [0], color=_WAITS, label="the rest (grey: of the baseline)")
    least = 1000 * found.compute_seconds(family)
    axes.axvline(least, color="black", linewidth=1.6, label="the least computation, which no row beats")
    bounds = [1000 * row.lower_bound_seconds for row in rows]
    seen = [(bound, place) for bound, place in zip(bounds, places, strict=True) if bound <= end]
    axes.plot(
        [bound for bound, _ in seen],
        [place for _, place in seen],
        linestyle="",
        marker="|",
        markersize=11,
        markeredgewidth=2,
        color="#d62728",
        label="its own lower bound",
    )
    for place, row in zip(places, rows, strict=True):
        words = ("... " if 1000 * row.seconds > end else "") + seconds_text(row.seconds)
        if row is not baseline:
            words += f", {round(-100 * gain_of(row, baseline), 1) + 0.0:+.1f}%"
        right = max(row.seconds, row.lower_bound_seconds)
        axes.text(
            min(end, 1000 * right) + 0.005 * end, place, f" {words}", va="center", fontsize=8, clip_on=False
        )
    axes.set_yticks(places, [row.name + (" (late)" if row.staleness else "") for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, end * 1.16)
    axes.set_title(_FAMILIES[family], fontsize=10, loc="left")
    axes.xaxis.set_major_formatter(lambda value, _: seconds_text(value / 1000) if value else "0")
    axes.grid(visible=True, axis="x", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
