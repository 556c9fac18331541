"""Plot in-network aggregation systems over workers, slots or loss."""

from __future__ import annotations

import os
from pathlib import Path

from coppice.comparison.plot import COLOURS, check_picture, save_picture
from coppice.errors import InputError
from coppice.innetwork.systems.hosts import YARDSTICKS
from coppice.innetwork.systems.sweep import AggregationSweep
from coppice.text import size_text


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
