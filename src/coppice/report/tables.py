"""The tables of a report."""

from __future__ import annotations

from collections.abc import Sequence

from coppice.comparison.outcome import Comparison, parameters_text
from coppice.report.svg import Markup, element, escape
from coppice.text import short_size, time_text

__all__ = ["comparison_table", "facts"]


def facts(rows: Sequence[tuple[str, str]]) -> Markup:
    """Named values."""
    cells = []
    for name, value in rows:
        cells += [element("dt", escape(name)), element("dd", escape(value))]
    return element("dl", *cells)


def comparison_table(comparison: Comparison) -> Markup:
    """The best algorithm at each size, and how close it comes to the limit."""
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
            f"{100 * min(comparison.share_of_limit(best), 1.0):.3g}%",
            " ".join(filter(None, (best.algorithm, parameters_text(best)))),
        )
        rows.append(element("tr", *(element("td", escape(cell)) for cell in cells)))
    return element("div", element("table", *rows), class_="scroll")
