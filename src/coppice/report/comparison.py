"""Charts of a comparison: time and bandwidth of every algorithm over size, against the bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, log2, log10

from coppice.comparison.outcome import Comparison, parameters_text
from coppice.comparison.ranges import percent
from coppice.planners.synthesis.synthesizing import METHODS
from coppice.report.svg import Markup, drawing, element, escape, fitted, join, number, text_width
from coppice.text import plural, rate_text, seconds_text, short_size, time_text

WIDTH = 1100.0
LEFT, RIGHT, TOP = 64.0, 236.0, 26.0
CHART = 250.0
GAP = 54.0
PICKED = "'s pick"
"""What is said of algorithms that a library picks at some size."""

MOST_LINES = 8
"""Lines that stand out, each with a colour and a name; the others are thin and grey."""

_Place = Callable[[float], float]


def comparison_picture(comparison: Comparison) -> Markup:
    """Draw a comparison; an empty picture where no algorithm applies."""
    height = TOP + 2 * CHART + GAP + 34
    names = _names(comparison)
    label = f"Algorithms for {comparison.problem.collective} over message size"
    if not names or comparison.sizes == (0,):
        words = escape("No algorithm has times over size.")
        return drawing(WIDTH, 40, element("text", words, x=LEFT, y=24), name="comparison", label=label)
    sizes = comparison.sizes
    across = _scale(log2(sizes[0]), log2(sizes[-1]), LEFT, WIDTH - RIGHT)
    parts = [
        _times(comparison, names, lambda size: across(log2(size))),
        _rates(comparison, names, lambda size: across(log2(size))),
        _sizes_axis(sizes, lambda size: across(log2(size)), height - 14),
        _legend(comparison, names),
    ]
    return drawing(WIDTH, height, *parts, name="comparison", label=label)


def comparison_table(comparison: Comparison) -> Markup:
    """Best algorithm at each size, and its distance from the bound."""
    heads = ("size", "time", "algbw (GB/s)", "busbw (GB/s)", "of limit", "best")
    rows = [element("tr", *(element("th", escape(head)) for head in heads))]
    for size in comparison.sizes:
        best = comparison.best(size)
        if best is None:
            continue
        cells = (
            short_size(size),
            time_text(best.time_us),
            f"{best.algbw_gb_per_s:.4g}",
            f"{comparison.busbw_gb_per_s(best):.4g}",
            percent(comparison.share_of_limit(best)),
            " ".join(filter(None, (best.algorithm, parameters_text(best)))),
        )
        rows.append(element("tr", *(element("td", escape(cell)) for cell in cells)))
    return element("div", element("table", *rows), class_="scroll")


def synthesis_table(comparison: Comparison) -> Markup:
    """Schedules of synthesis methods: rate, distance from the optimum, and search time."""
    heads = ("synthesised by", "rate (GB/s)", "below the optimum", "found in")
    rows = [element("tr", *(element("th", escape(head)) for head in heads))]
    for row in comparison.synthesized:
        gap = row.gap or 0.0
        cells = (
            row.algorithm,
            f"{float(comparison.optimum.algbw_gb_per_s) * (1 - gap):.5g}",
            percent(gap) if gap > 0 else "none",
            seconds_text(row.synthesis_seconds or 0.0),
        )
        rows.append(element("tr", *(element("td", escape(cell)) for cell in cells)))
    return element("div", element("table", *rows), class_="scroll")


def refused_methods(comparison: Comparison) -> list[str]:
    """Synthesis methods without a schedule, each with the reason."""
    return [f"{row.algorithm}: {row.refusal}" for row in comparison.left_out if row.algorithm in METHODS]


def _names(comparison: Comparison) -> list[tuple[str, str]]:
    """(algorithm, its classes): those that stand out in strong colours, the others thin and grey."""
    strong = comparison.outstanding(MOST_LINES)
    return [
        *((name, f"curve s{at}") for at, name in enumerate(strong)),
        *((name, "curve other") for name in comparison.times if name not in strong),
    ]


def _times(comparison: Comparison, names: Sequence[tuple[str, str]], x_of: _Place) -> Markup:
    """Time over size, both logarithmic."""
    limits = [(size, comparison.limit_us(size)) for size in _dense(comparison.sizes)]
    curves = {
        name: [(size, row.time_us) for size, row in comparison.times[name].items() if row.time_us]
        for name, _ in names
    }
    every = [us for points in (limits, *curves.values()) for _, us in points if us]
    low, high = floor(log10(min(every))), log10(max(every) * 1.1)
    y_of = _scale(low, high, TOP + CHART, TOP)
    parts = [_title("time", TOP)]
    parts += [_line(y_of(power), time_text(10.0**power)) for power in range(low, floor(high) + 1)]
    for name, colours in reversed(names):
        points = [(x_of(size), y_of(log10(us))) for size, us in curves[name]]
        words = (
            f"{name}: {time_text(curves[name][0][1])} to {time_text(curves[name][-1][1])}" if points else name
        )
        parts.append(_curve(points, colours, words))
    points = [(x_of(size), y_of(log10(us))) for size, us in limits if us]
    parts.append(_curve(points, "limit", "limit: no schedule is faster"))
    return join(parts)


def _rates(comparison: Comparison, names: Sequence[tuple[str, str]], x_of: _Place) -> Markup:
    """Algorithm bandwidth over size."""
    top = TOP + CHART + GAP
    optimum = float(comparison.optimum.algbw_gb_per_s)
    limits = [
        (size, size / us / 1000) for size in _dense(comparison.sizes) if (us := comparison.limit_us(size))
    ]
    curves = {
        name: [(size, row.algbw_gb_per_s) for size, row in comparison.times[name].items()]
        for name, _ in names
    }
    high = max([optimum, *(rate for points in (limits, *curves.values()) for _, rate in points)]) * 1.06
    y_of = _scale(0.0, high, top + CHART, top)
    parts = [_title("algbw (GB/s)", top)]
    step = 10.0 ** floor(log10(high))
    step = next((step * part for part in (0.1, 0.2, 0.5, 1.0) if high / (step * part) <= 6), step)
    parts += [_line(y_of(tick * step), f"{tick * step:.4g}") for tick in range(int(high / step) + 1)]
    for name, colours in reversed(names):
        points = [(x_of(size), y_of(rate)) for size, rate in curves[name]]
        best = max((rate for _, rate in curves[name]), default=0.0)
        parts.append(_curve(points, colours, f"{name}: up to {best:.4g} GB/s"))
    exact = rate_text(comparison.optimum.algbw_gb_per_s)
    points = [(x_of(size), y_of(rate)) for size, rate in limits]
    parts.append(_curve(points, "limit", f"limit: the optimum is {exact} GB/s"))
    return join(parts)


def _dense(sizes: Sequence[int]) -> list[int]:
    """Sizes between those measured, so that bends of the limit are seen."""
    first, last = sizes[0], sizes[-1]
    return sorted({round(first * (last / first) ** (step / 80)) for step in range(81)})


def _scale(low: float, high: float, start: float, end: float) -> _Place:
    """Places of values; the middle where there is a single one."""
    if high <= low:
        return lambda _: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _curve(points: Sequence[tuple[float, float]], colours: str, words: str) -> Markup:
    """A curve with its name; a short stroke where there is a single point."""
    if len(points) == 1:
        (x, y) = points[0]
        points = [(x - 6, y), (x + 6, y)]
    text = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return element("polyline", element("title", escape(words)), points=text, class_=colours, fill="none")


def _title(words: str, top: float) -> Markup:
    return element("text", escape(words), x=LEFT, y=top - 8, class_="strong")


def _line(y: float, words: str) -> Markup:
    """A horizontal line of the grid."""
    line = element("line", x1=LEFT, y1=y, x2=WIDTH - RIGHT, y2=y, class_="grid")
    return join([line, element("text", escape(words), x=LEFT - 8, y=y + 4, class_="end small quiet")])


def _sizes_axis(sizes: Sequence[int], x_of: _Place, y: float) -> Markup:
    """Sizes below the charts, as many as have room."""
    every = -(-len(sizes) // 14)
    return join(
        element("text", escape(short_size(size)), x=x_of(size), y=y, class_="middle small quiet")
        for size in sizes[::every]
    )


def _legend(comparison: Comparison, names: Sequence[tuple[str, str]]) -> Markup:
    """Names beside the charts: the limit, what stands out, and how many others there are."""
    others = max(len(names) - MOST_LINES, 0)
    rows: list[tuple[str, str]] = [("limit of all schedules", "limit"), *names[:MOST_LINES]]
    if others:
        rows.append((plural(others, "other"), "curve other"))
    parts = []
    for at, (name, colours) in enumerate(rows):
        x, y = WIDTH - RIGHT + 18, TOP + 6 + at * 19
        parts.append(element("line", x1=x, y1=y, x2=x + 22, y2=y, class_=colours))
        words = f"{name}, {comparison.picker}{PICKED}" if name in comparison.picked else name
        text = escape(words if text_width(words, 11) <= RIGHT - 52 else fitted(name, RIGHT - 52, 11))
        parts.append(element("text", text, x=x + 30, y=y + 4))
    return join(parts)
