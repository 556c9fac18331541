"""Plot the time and bandwidth of every algorithm over size, the bounds, the winners, and in-network systems."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby, pairwise
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coppice.comparison.outcome import Comparison
from coppice.errors import InputError, MissingExtraError
from coppice.files import write_atomically
from coppice.innetwork.systems.hosts import YARDSTICKS
from coppice.innetwork.systems.registry import AggregationSweep
from coppice.text import plural, short_size, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PACKAGE = "matplotlib"
SUFFIXES = (".png", ".svg", ".pdf")
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#17becf", "#e377c2", "#8c564b")
"""Colours of the algorithms that stand out, told apart at a glance; the optimal planner has the first."""
OTHERS = "#b9c0c8"
"""Colour of all others."""

FINE, COARSE = 192, 12
"""Steps between the first size and the last on a logarithmic axis, and those between points of a straight line."""
SEEN = 0.002
"""Share by which a straight line may be off."""
LIMIT = "limit: nothing is faster"
MODELLED = " (modelled)"
PICKED = "'s pick)"


def plot(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Plot a comparison.

    Above: time over size, with the limit that no schedule goes below. In the middle: algorithm bandwidth over size,
    with the optimum. Below: the best algorithm at each size.

    Args:
        path: Picture to write; its suffix (.png, .svg or .pdf) decides the kind.
    """
    target = Path(path)
    check_picture(target)
    if not comparison.times or comparison.sizes == (0,):
        raise InputError(
            f"there is nothing to draw over size: no algorithm for {comparison.problem.collective} has times."
        )
    save_picture(_figure(comparison), target, bbox_inches="tight")


def save_picture(figure: Figure, target: Path, **options: Any) -> None:
    """Write a figure reproducibly, without dates and random names.

    Args:
        target: Picture to write; its suffix (.png, .svg or .pdf) decides the kind.
        options: Further ones of ``Figure.savefig``.
    """
    import matplotlib as mpl

    metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(target.suffix, {})
    content = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "coppice"}):
        figure.savefig(content, format=target.suffix[1:], dpi=150, metadata=metadata, **options)
    write_atomically(target, content.getvalue())


def check_picture(path: Path) -> None:
    """Refuse early what :func:`plot` cannot write."""
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"expected a picture called *{', *'.join(SUFFIXES)}, found {path.name}: choose such a name."
        )
    if find_spec(PACKAGE) is None:
        raise MissingExtraError.of(PACKAGE, extra="plot")


def _figure(comparison: Comparison) -> Figure:
    """The picture in memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.5), layout="constrained")
    picked = 1 if comparison.picks else 0
    time, rate, *bands = figure.subplots(
        3 + picked,
        1,
        sharex=True,
        gridspec_kw={"height_ratios": [5, 5, *[0.55] * (1 + picked)], "hspace": 0.03},
    )
    styles = _styles(comparison)
    for name, by_size in comparison.times.items():
        sizes = list(by_size)
        time.plot(sizes, [row.time_us for row in by_size.values()], label=name, **styles[name])
        rate.plot(sizes, [row.algbw_gb_per_s for row in by_size.values()], **styles[name])
    _modelled(comparison, time, rate)
    _limits(comparison, time, rate)
    won = [(found.first_bytes, found.last_bytes, found.algorithm) for found in comparison.ranges]
    _band(comparison, bands[0], "best", [(*each, styles[each[-1]]["color"]) for each in won])
    if picked:
        _band(comparison, bands[1], comparison.picker, _picks(comparison, styles))
    _label(comparison, figure, time, rate, bands[-1])
    return figure


def _styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Lines that stand out are strong and coloured, winners more than others; the rest is thin and grey."""
    winners = {found.algorithm for found in comparison.ranges}
    styles: dict[str, dict[str, Any]] = {
        name: {"color": OTHERS, "linewidth": 0.8, "zorder": 2} for name in comparison.times
    }
    for number, name in enumerate(comparison.outstanding(len(COLOURS))):
        width = 2.2 if name in winners else 1.4
        styles[name] = {"color": COLOURS[number], "linewidth": width, "zorder": 3}
        styles[name] |= {"marker": "osD^vPX*"[number], "markersize": 4}
    return styles


def _modelled(comparison: Comparison, time: Axes, rate: Axes) -> None:
    """Systems in the network, dashed, with the exact bound of the best of them."""
    found = comparison.modelled
    if found is None:
        return
    for number, name in enumerate(found.placed):
        rows = [row for row in found.times if row.system == name]
        sizes = [row.size_bytes for row in rows]
        style: dict[str, Any] = {
            "color": COLOURS[-1 - number % len(COLOURS)],
            "linewidth": 1.4,
            "linestyle": "--",
        }
        time.plot(sizes, [row.time_us for row in rows], label=f"{name}{MODELLED}", **style)
        rate.plot(sizes, [row.algbw_gb_per_s for row in rows], **style)


def _limits(comparison: Comparison, time: Axes, rate: Axes) -> None:
    """What no schedule goes beyond."""
    first, last = comparison.sizes[0], comparison.sizes[-1]
    sizes, limit = _limit_line(comparison)
    style: dict[str, Any] = {"color": "black", "linewidth": 1.4, "zorder": 4}
    optimum = float(comparison.optimum.algbw_gb_per_s)
    bounds = {} if comparison.modelled is None else comparison.modelled.bounds
    top = max([optimum, *(float(1 / each) for each in bounds.values())])
    time.plot(sizes, limit, label=LIMIT, **style)
    time.fill_between(sizes, limit, min(limit) * 0.4, color="black", alpha=0.07, linewidth=0)
    time.axhline(comparison.latency.time_us, color="black", linewidth=1, linestyle=":", zorder=1)
    time.set_ylim(bottom=min(limit) * 0.6)
    reached = [size / us / 1000 for size, us in zip(sizes, limit, strict=True)]
    rate.plot(sizes, reached, **style)
    rate.axhline(optimum, color="black", linewidth=1, linestyle="--", zorder=1)
    rate.fill_between(sizes, reached, optimum * 1.12, color="black", alpha=0.07, linewidth=0)
    rate.set_ylim(0, top * 1.12)
    for each in dict.fromkeys(bounds.values()):
        rate.axhline(float(1 / each), color="black", linewidth=1, linestyle="-.", zorder=1)
    rate.annotate(
        f"optimum {optimum:.4g} GB/s", (first, optimum), xytext=(2, 3), textcoords="offset points", fontsize=9
    )
    time.annotate(
        f"latency bound {comparison.latency.time_us:.3g} us",
        (last, comparison.latency.time_us),
        xytext=(-2, 3),
        textcoords="offset points",
        fontsize=9,
        ha="right",
    )


def _limit_line(comparison: Comparison) -> tuple[list[int], list[float]]:
    """Sizes and limits in microseconds, denser than the measurements where the limit bends or has a corner."""
    first, last = comparison.sizes[0], comparison.sizes[-1]
    sizes = [round(first * (last / first) ** (step / FINE)) for step in range(FINE + 1)]
    limit = {step: comparison.limit_us(sizes[step]) for step in range(0, FINE + 1, COARSE)}
    todo = [(step, step + COARSE) for step in range(0, FINE, COARSE)]
    while todo:
        low, high = todo.pop()
        middle = (low + high) // 2
        if middle == low:
            continue
        limit[middle] = comparison.limit_us(sizes[middle])
        share = (middle - low) / (high - low)
        straight = limit[low] ** (1 - share) * limit[high] ** share  # on axes that are logarithmic both
        if abs(straight - limit[middle]) > SEEN * limit[middle]:
            todo += [(low, middle), (middle, high)]
    return [sizes[step] for step in sorted(limit)], [limit[step] for step in sorted(limit)]


_PickInterval = tuple[int, int, str, str]
"""First and last size, what is written over them, and its colour."""


def _picks(comparison: Comparison, styles: dict[str, dict[str, Any]]) -> list[_PickInterval]:
    """NCCL's picks, neighbouring sizes with the same one together; those without times here by NCCL's name."""
    found = []
    for name, run in groupby(
        comparison.picks,
        key=lambda pick: pick.algorithm if pick.algorithm in comparison.times else pick.name,
    ):
        picks = list(run)
        colour = styles[name]["color"] if name in styles else OTHERS
        found.append((picks[0].size_bytes, picks[-1].size_bytes, str(name), colour))
    return found


def _band(comparison: Comparison, band: Axes, title: str, intervals: Sequence[_PickInterval]) -> None:
    """A strip whose colour at each size is that of an algorithm, with its name where there is room."""
    sizes = comparison.sizes
    edges = _edges(sizes)
    for first, last, name, colour in intervals:
        left, right = edges[sizes.index(first)], edges[sizes.index(last) + 1]
        band.axvspan(left, right, color=colour, alpha=0.85, linewidth=0)
        share = (log2(right) - log2(left)) / (log2(edges[-1]) - log2(edges[0]))
        if share * 105 > len(name):
            middle = (left * right) ** 0.5
            ink = "black" if colour == OTHERS else "white"
            band.text(middle, 0.5, name, ha="center", va="center", fontsize=9, color=ink)
    band.set_yticks([])
    band.set_ylim(0, 1)
    band.set_ylabel(title, rotation=0, ha="right", va="center")


def _label(comparison: Comparison, figure: Figure, time: Axes, rate: Axes, band: Axes) -> None:
    """Axes, title and legend."""
    problem, model = comparison.problem, comparison.model
    time.set_xscale("log", base=2)
    time.set_yscale("log")
    time.set_ylabel("time (us)")
    rate.set_ylabel("algbw (GB/s)")
    for axes in (time, rate):
        axes.grid(visible=True, which="major", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
    every = -(-len(comparison.sizes) // 12)
    ticks = comparison.sizes[::every]
    band.set_xticks(ticks, [short_size(size) for size in ticks])
    band.minorticks_off()
    edges = _edges(comparison.sizes)
    band.set_xlim(edges[0], edges[-1])
    band.set_xlabel("size M (bytes)")
    handles = dict(zip(*reversed(time.get_legend_handles_labels()), strict=True))
    strong = comparison.outstanding(len(COLOURS))
    names = [LIMIT, *strong]
    labels = [
        LIMIT,
        *(f"{name} ({comparison.picker}{PICKED}" if name in comparison.picked else name for name in strong),
    ]
    others = [name for name in comparison.times if name not in strong]
    if others:
        names.append(others[0])
        labels.append(plural(len(others), "other"))
    for name in handles:
        if name.endswith(MODELLED):
            names.append(name)
            labels.append(name)
    figure.legend(
        [handles[name] for name in names], labels, loc="outside right upper", fontsize=9, frameon=False
    )
    figure.suptitle(
        f"{problem.collective} on {problem.topology.name}: {problem.topology.num_ranks} ranks\n"
        f"model {model.text}",
        fontsize=10,
    )


def _edges(sizes: Sequence[int]) -> list[float]:
    """Borders between neighbouring sizes, halfway on the logarithmic axis, and the two ends."""
    if len(sizes) == 1:
        return [sizes[0] / 2**0.5, sizes[0] * 2**0.5]
    inner = [(a * b) ** 0.5 for a, b in pairwise(sizes)]
    return [sizes[0] ** 2 / inner[0], *inner, sizes[-1] ** 2 / inner[-1]]


def plot_sweep(found: AggregationSweep, path: str | os.PathLike[str]) -> None:
    """Plot the rate of every system over the values of a sweep; host-only algorithms are dashed.

    Args:
        path: Picture to write; its suffix (.png, .svg or .pdf) decides the kind.
    """
    target = Path(path)
    check_picture(target)
    if not found.found:
        raise InputError("there is nothing to draw: no system suits at any value.")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "coppice"}):
        figure = Figure(figsize=(8, 5))
        axes = figure.subplots()
        for position, system in enumerate(found.found):
            points = [
                (value, rate)
                for value, rate in zip(found.values, found.goodput(system), strict=True)
                if rate is not None
            ]
            dashed = system in YARDSTICKS
            axes.plot(
                [value for value, _ in points],
                [rate for _, rate in points],
                label=system,
                color=COLOURS[position % len(COLOURS)],
                linestyle="--" if dashed else "-",
                marker="o" if position < len(COLOURS) else "s",
            )
        if found.over == "loss":
            axes.set_xscale("symlog", linthresh=min([each for each in found.values if each] or [1e-5]))
        else:
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(found.values), [f"{value:g}" for value in found.values])
        axes.set_ylim(bottom=0)
        axes.set_xlabel({"loss": "loss of packets, each way"}.get(found.over, found.over))
        axes.set_ylabel(f"GB/s of an all-reduce of {size_text(found.size_bytes)}")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small", ncols=2)
    save_picture(figure, target, bbox_inches="tight")
