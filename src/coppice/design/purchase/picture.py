"""One picture: what every network costs over how long an iteration takes, with lines of equal cost per performance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coppice.comparison.plot import check_picture
from coppice.design.purchase.market import Market
from coppice.errors import InputError

__all__ = ["draw"]

_SWITCHED, _DIRECT = "#d62728", "#1f77b4"
_LINES = 8


def draw(market: Market, path: str | os.PathLike[str]) -> None:
    """Draw a market; networks to the left are faster, lower ones cheaper.

    Args:
        market: What to draw.
        path: Picture to write; its suffix (.png, .svg or .pdf) decides the kind.

    Raises:
        InputError: If the suffix is another one, or the file cannot be written.
        MissingExtraError: If matplotlib is not installed.
    """
    target = Path(path)
    check_picture(target)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for direct, colour, label in ((False, _SWITCHED, "switched"), (True, _DIRECT, "direct links")):
        chosen = [quote for quote in market.quotes if (quote.offer.graph is not None) == direct]
        if chosen:
            times = [quote.iteration_us / 1000 for quote in chosen]
            axes.scatter(times, [quote.cost for quote in chosen], color=colour, label=label, zorder=3)
    for quote in market.quotes:
        place = (quote.iteration_us / 1000, quote.cost)
        axes.annotate(quote.offer.name, place, xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.margins(0.18)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _equal_lines(market, axes)
    axes.set_xlabel("iteration (ms)")
    axes.set_ylabel(f"cost ({market.prices.currency})")
    axes.set_title(
        f"networks for {market.workload.ranks} ranks; grey: equal cost per performance", fontsize=11
    )
    axes.legend(frameon=False, loc="upper right")
    metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(target.suffix, {})
    try:
        with mpl.rc_context({"svg.hashsalt": "coppice"}):
            figure.savefig(target, dpi=150, metadata=metadata)
    except OSError as error:
        msg = f"cannot write {target} ({error.strerror or error}): choose another place."
        raise InputError(msg) from None


def _equal_lines(market: Market, axes: Any) -> None:
    """Hyperbolas through the best network and its multiples."""
    best = min(quote.cost_per_rate for quote in market.quotes)
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    if best <= 0 or right <= 0 or top <= 0:
        return
    for step in range(_LINES):
        level = best * 2 ** (step / 2) * 1000
        first = level / top
        if first < right:
            times = [first * (right / first) ** (place / 100) for place in range(101)]
            axes.plot(times, [level / time for time in times], color="0.85", linewidth=0.9, zorder=1)
