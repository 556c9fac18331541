"""Bars of a page: parts of a whole, and devices with what each does."""

from __future__ import annotations

from collections.abc import Sequence

from coppice.report.svg import Markup, drawing, element, escape, fitted

_WIDTH, _LEFT, _RIGHT, _LINE = 1100.0, 300.0, 230.0, 24.0

Bar = tuple[str, float, str]
"""What a bar is of, its length, and the words beside it."""


def bars_picture(bars: Sequence[Bar], whole: float, *, name: str, label: str) -> Markup:
    """A bar for each part; a full one is the whole.

    Args:
        whole: Length of a full bar, above 0.
        label: What it shows, for those who cannot see it.

    Examples:
        >>> bars_picture([("layers", 3.0, "3 s")], 4.0, name="parts", label="parts").count("<rect")
        2
    """
    room = _WIDTH - _LEFT - _RIGHT
    rows = []
    for at, (words, value, beside) in enumerate(bars):
        y = 4 + at * _LINE
        width = room * min(1.0, max(0.0, value / whole))
        rows.append(
            element(
                "g",
                element("title", escape(f"{words}: {beside}")),
                element("text", escape(fitted(words, _LEFT - 20, 11)), x=_LEFT - 10, y=y + 13, class_="end"),
                element("rect", x=_LEFT, y=y + 2, width=room, height=_LINE - 8, rx=2, class_="track"),
                element(
                    "rect", x=_LEFT, y=y + 2, width=max(0.5, width), height=_LINE - 8, rx=2, class_="bar2"
                ),
                element("text", escape(beside), x=_WIDTH - _RIGHT + 10, y=y + 13),
            )
        )
    return drawing(_WIDTH, 8 + len(bars) * _LINE, *rows, name=name, label=label)


def stacked_picture(
    rows: Sequence[tuple[str, Sequence[tuple[str, float, str]]]], whole: float, *, name: str, label: str
) -> Markup:
    """A row for each device: parts of it one after the other, the rest empty.

    Args:
        rows: Name of each row, and for each part what it is, how long, and the variable of its colour.
        whole: Length of a full row, above 0.
    """
    room = _WIDTH - 140 - _RIGHT
    drawn = []
    for at, (words, parts) in enumerate(rows):
        y = 4 + at * 18
        x = 140.0
        drawn.append(element("text", escape(words), x=130, y=y + 12, class_="end small"))
        drawn.append(element("rect", x=x, y=y + 1, width=room, height=14, class_="track"))
        for what, value, colour in parts:
            width = room * value / whole
            title = element("title", escape(f"{words}: {what} {value / whole:.1%}"))
            drawn.append(
                element("rect", title, x=x, y=y + 1, width=width, height=14, style=f"fill:var({colour})")
            )
            x += width
        idle = max(0.0, 1 - sum(value for _, value, _ in parts) / whole)
        drawn.append(
            element("text", escape(f"waits {idle:.1%}"), x=_WIDTH - _RIGHT + 10, y=y + 12, class_="small")
        )
    return drawing(_WIDTH, 8 + len(rows) * 18, *drawn, name=name, label=label)
