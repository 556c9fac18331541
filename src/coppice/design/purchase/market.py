"""Price and performance of candidate networks for a workload, as a table and a plot."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coppice.comparison.plot import check_picture, save_picture
from coppice.design.purchase.offers import Offer, offers
from coppice.design.purchase.performance import NetworkTiming, Slowdown, slowdown, timing
from coppice.design.purchase.request import Prices, TrainingWorkload
from coppice.errors import InputError
from coppice.simulation.models import ALPHA_BETA
from coppice.simulation.simulated import model_record

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import MarketJson, QuoteJson, WorkloadTimingJson


@dataclass(frozen=True, eq=False, kw_only=True)
class Quote:
    """A network with its price and performance."""

    offer: Offer  # The network
    cost: float  # Of all its parts
    timings: tuple[NetworkTiming, ...]  # Of each collective of the workload
    iteration_us: float  # All collectives of an iteration, one after the other
    slowdown: Slowdown | None  # By the failures of the workload; None where it names none

    @property
    def cost_per_rate(self) -> float:
        """Cost per iteration per second."""
        return self.cost * self.iteration_us / 1e6

    def record(self) -> QuoteJson:
        """The figures as JSON values."""
        parts, lost = self.offer.parts, self.slowdown
        timings: list[WorkloadTimingJson] = [
            {"time_us": each.time_us, "how": each.how} for each in self.timings
        ]
        return {
            "network": self.offer.name,
            "nic_ports": parts.nic_ports,
            "switches": {str(radix): count for radix, count in sorted(parts.switches.items())},
            "cables": sum(parts.cables.values()),
            "fibres": sum(parts.fibres.values()),
            "cost": self.cost,
            "timings": timings,
            "collectives": timings,
            "iteration_us": self.iteration_us,
            "cost_per_rate": self.cost_per_rate,
            "slowdown_mean": None if lost is None else _finite(lost.mean),
            "slowdown_worst": None if lost is None else _finite(lost.worst),
            "cut_off": None if lost is None else lost.cut_off,
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class Market:
    """All networks for a workload, by cost per performance."""

    workload: TrainingWorkload
    prices: Prices
    quotes: tuple[Quote, ...]

    def record(self) -> MarketJson:
        """The figures as JSON values."""
        return {
            "ranks": self.workload.ranks,
            "model": model_record(ALPHA_BETA),
            "currency": self.prices.currency,
            "quotes": [quote.record() for quote in self.quotes],
        }


def compare_networks(
    workload: TrainingWorkload,
    prices: Prices,  # What parts there are and what they cost
    *,
    oversubscriptions: Sequence[Fraction] = (Fraction(1), Fraction(2)),  # Of the leaves of switched networks
    on_progress: Callable[[str], None] | None = None,  # Told the name of each network
) -> Market:
    """Size, price and time every network that can be built for a workload."""
    if min(oversubscriptions, default=Fraction(0)) < 1:
        raise InputError(
            f"expected oversubscriptions of 1 or more, found {', '.join(map(str, oversubscriptions)) or 'none'}."
        )
    quotes = []
    for offer in offers(workload, prices, oversubscriptions=oversubscriptions):
        if on_progress is not None:
            on_progress(offer.name)
        timings = tuple(timing(offer, workload, use) for use in workload.collectives)
        total = sum(
            use.count * found.time_us for use, found in zip(workload.collectives, timings, strict=True)
        )
        quotes.append(
            Quote(
                offer=offer,
                cost=offer.parts.cost(prices),
                timings=timings,
                iteration_us=total,
                slowdown=slowdown(offer, workload),
            )
        )
    if not quotes:
        raise InputError(
            "no network can be built from this price list: add a switch of larger radix, or ports to the ranks."
        )
    quotes.sort(key=lambda quote: (quote.cost_per_rate, quote.offer.name))
    return Market(workload=workload, prices=prices, quotes=tuple(quotes))


def csv_text(market: Market) -> str:
    """All figures as CSV, one network per line."""
    text = io.StringIO()
    rows: list[Mapping[str, Any]] = [quote.record() for quote in market.quotes]
    names = [name for name in rows[0] if name not in ("timings", "collectives")]
    places = range(len(market.workload.collectives))
    header = [*names, *(f"collective{place}_{column}" for place in places for column in ("us", "how"))]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        cells = [
            "+".join(f"{n}x{radix}" for radix, n in row[name].items()) if name == "switches" else row[name]
            for name in names
        ]
        for each in row["timings"]:
            cells += [each["time_us"], each["how"]]
        writer.writerow(["" if cell is None else cell for cell in cells])
    return text.getvalue()


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


_SWITCHED, _DIRECT = "#d62728", "#1f77b4"

_LINES = 8
_NAMES = 24


def draw(market: Market, path: str | os.PathLike[str]) -> None:
    """Plot a market: faster networks to the left, cheaper ones lower.

    Args:
        path: Picture to write; its suffix (.png, .svg or .pdf) decides the kind.
    """
    target = Path(path)
    check_picture(target)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots()
    handles = []
    for number, quote in enumerate(market.quotes, start=1):
        direct = quote.offer.graph is not None
        place = (quote.iteration_us / 1000, quote.cost)
        (point,) = axes.plot(
            *place,
            color=_DIRECT if direct else _SWITCHED,
            label=f"{number}  {quote.offer.name}",
            linestyle="none",
            marker="o" if direct else "s",
            markersize=8,
            zorder=3,
        )
        handles.append(point)
    _ranges(market, axes)
    _equal_lines(market, axes)
    _numbers(market, axes)
    axes.set_xlabel("iteration (ms)")
    axes.set_ylabel(f"cost ({market.prices.currency})")
    axes.set_title(
        f"networks for {market.workload.ranks} ranks; grey: equal cost per performance", fontsize=11
    )
    shown = handles[:_NAMES]
    if len(handles) > len(shown):
        shown.append(axes.plot([], [], linestyle="none", label=f"and {len(handles) - len(shown)} more")[0])
    figure.legend(
        handles=shown,
        title="least cost per performance first\nsquares: switched, circles: direct links",
        title_fontsize=9,
        alignment="left",
        fontsize=9,
        frameon=False,
        labelspacing=0.9,
        loc="outside right upper",
    )
    save_picture(figure, target)


def _ranges(market: Market, axes: Any) -> None:
    """Axes from 0 where the networks differ much, else around them, so that points do not crowd in a corner."""
    for values, limit in (
        ([quote.iteration_us / 1000 for quote in market.quotes], axes.set_xlim),
        ([quote.cost for quote in market.quotes], axes.set_ylim),
    ):
        low, high = min(values), max(values)
        room = 0.12 * (high - low or high or 1.0)
        limit(0 if low < 0.4 * high else low - room, high + room)


def _numbers(market: Market, axes: Any) -> None:
    """The number of each network above its point; those of points that lie together stand in one label."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    places = [(quote.iteration_us / 1000, quote.cost) for quote in market.quotes]
    shares = [((x - left) / (right - left), (y - bottom) / (top - bottom)) for x, y in places]
    for group in together(shares, (0.035, 0.05)):
        words = ", ".join(str(number + 1) for number in group)
        middle = sum(places[number][0] for number in group) / len(group)
        highest = max(places[number][1] for number in group)
        axes.annotate(
            words,
            (middle, highest),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            zorder=4,
        )


def together(points: Sequence[tuple[float, float]], room: tuple[float, float]) -> list[list[int]]:
    """Groups of points so close that their labels would overlap.

    Args:
        room: Width and height of a label.

    Examples:
        >>> together([(0.1, 0.1), (0.5, 0.1), (0.12, 0.11)], (0.05, 0.05))
        [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    for number, (x, y) in enumerate(points):
        near = [
            group
            for group in groups
            if any(
                abs(points[each][0] - x) < room[0] and abs(points[each][1] - y) < room[1] for each in group
            )
        ]
        groups = [group for group in groups if group not in near]
        groups.append(sorted([*(each for group in near for each in group), number]))
    return sorted(groups)


def _equal_lines(market: Market, axes: Any) -> None:
    """Hyperbolas through the best network and its multiples."""
    best = min(quote.cost_per_rate for quote in market.quotes)
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    if best <= 0 or right <= 0 or top <= 0:
        return
    for step in range(_LINES):
        level = best * 2 ** (step / 2) * 1000
        first = level / top
        if first < right:
            times = [first * (right / first) ** (place / 100) for place in range(101)]
            axes.plot(times, [level / time for time in times], color="0.85", linewidth=0.9, zorder=1)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
