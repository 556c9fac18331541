"""A heat map of sizes and shapes: one cell for each measured size, its text, its colour and what hovering tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coppice.report.svg import Markup, drawing, element, escape
from coppice.tuning.fit import SizeFit
from coppice.tuning.records import CallShape

__all__ = ["HEAT_STYLE", "HeatCell", "heat_map"]

HEAT_STYLE = (
    ".heat-good{fill:var(--chosen)}.heat-far{fill:var(--load4)}.heat-none{fill:var(--card);stroke:var(--line)}"
    ".picture text.cell{text-anchor:middle;font-size:10px;pointer-events:none}"
)
"""Rules for the colours of heat maps, beside the page's own."""

_LEFT, _TOP, _WIDTH, _HEIGHT = 210, 34, 62, 30


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCell:
    """What a cell shows.

    Attributes:
        text: A few letters.
        strength: 0 .. 1, how strong the colour is; None where nothing is known.
        tip: What hovering tells.
    """

    text: str
    strength: float | None
    tip: str


def heat_map(
    sizes: Mapping[CallShape, Sequence[SizeFit]],
    show: Callable[[CallShape, SizeFit], HeatCell],
    *,
    colour: str,
    name: str,
    label: str,
    words: Callable[[int], str],
) -> Markup:
    """The picture.

    Args:
        sizes: What is known of each shape.
        show: What a cell shows.
        colour: Class of the cells, ``heat-good`` or ``heat-far``.
        name: Class of the picture.
        label: What it shows, for those who cannot see it.
        words: A size in few letters.
    """
    columns = sorted({size.size_bytes for each in sizes.values() for size in each})
    width, height = _LEFT + _WIDTH * len(columns) + 10, _TOP + _HEIGHT * len(sizes) + 10
    parts = [
        element(
            "text", escape(words(size)), class_="middle small", x=_LEFT + _WIDTH * (at + 0.5), y=_TOP - 10
        )
        for at, size in enumerate(columns)
    ]
    for row, (shape, known) in enumerate(sizes.items()):
        top = _TOP + _HEIGHT * row
        parts.append(element("text", escape(str(shape)), class_="end", x=_LEFT - 10, y=top + _HEIGHT / 2 + 4))
        for size in known:
            left = _LEFT + _WIDTH * columns.index(size.size_bytes)
            cell = show(shape, size)
            strength = None if cell.strength is None else f"{0.08 + 0.8 * min(1.0, cell.strength):.2f}"
            parts.append(
                element(
                    "g",
                    element("title", escape(cell.tip)),
                    element(
                        "rect",
                        x=left + 1,
                        y=top + 1,
                        width=_WIDTH - 2,
                        height=_HEIGHT - 2,
                        rx=3,
                        class_="heat-none" if strength is None else colour,
                        fill_opacity=strength,
                    ),
                    element(
                        "text", escape(cell.text), class_="cell", x=left + _WIDTH / 2, y=top + _HEIGHT / 2 + 4
                    ),
                )
            )
    return drawing(width, height, *parts, name=name, label=label)
