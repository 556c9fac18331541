"""Markup by hand: escaped text, elements, and numbers that are always written alike.

Pieces of markup have a type of their own, :data:`Markup`, which only escaping and building an element make: text of a
topology cannot reach a page unescaped without the type checker seeing it. All of it is well-formed XML, pages too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NewType

Markup = NewType("Markup", str)
"""Well-formed markup, or a piece of it."""

NOTHING = Markup("")

# What XML 1.0 has no way to write, not even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_EMPTY = frozenset({"circle", "input", "line", "meta", "path", "polygon", "polyline", "rect"})
_LETTER = 0.62
"""Width of a letter of the sans-serif text, in units of its size: a little more than the average one."""


def escape(text: str) -> Markup:
    """Text as markup; characters that XML cannot hold become U+FFFD.

    >>> escape('<gpu "0"> & co')
    '&lt;gpu &quot;0&quot;&gt; &amp; co'
    """
    safe = _FORBIDDEN.sub("\ufffd", text).replace("&", "&amp;").replace("<", "&lt;")
    return Markup(safe.replace(">", "&gt;").replace('"', "&quot;"))


def number(value: float) -> str:
    """A coordinate with at most one decimal, the same text for the same place.

    >>> number(3.0), number(2.25), number(-0.01)
    ('3', '2.2', '0')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def element(tag: str, /, *children: Markup, **attributes: str | float | None) -> Markup:
    """An element; ``stroke_width`` is the attribute ``stroke-width``, ``class_`` is ``class``, None leaves one out.

    >>> element("text", escape("a < b"), x=1.5, class_="name")
    '<text x="1.5" class="name">a &lt; b</text>'
    >>> element("rect", width=3)
    '<rect width="3"/>'
    """
    parts = [tag]
    for name, value in attributes.items():
        if value is not None:
            text = escape(value) if isinstance(value, str) else number(value)
            parts.append(f'{name.strip("_").replace("_", "-")}="{text}"')
    opening = " ".join(parts)
    if tag in _EMPTY and not children:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{''.join(children)}</{tag}>")


def join(parts: Iterable[Markup], between: str = "") -> Markup:
    """Pieces of markup one after the other."""
    return Markup(escape(between).join(parts))


def facts(rows: Sequence[tuple[str, str]]) -> Markup:
    """Named values, as a list of terms and what they are."""
    cells = []
    for name, value in rows:
        cells += [element("dt", escape(name)), element("dd", escape(value))]
    return element("dl", *cells)


def drawing(width: float, height: float, *children: Markup, name: str, label: str) -> Markup:
    """An SVG picture of a size in its own units, which scales to the width that it gets.

    Args:
        width: Width in units; on a page at most so many pixels.
        children: What is drawn, back to front.
        label: What it shows, for those who cannot see it.
    """
    return element(
        "svg",
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        class_=f"picture {name}",
        role="img",
        aria_label=label,
    )


def fitted(label: str, width: float, size: float) -> str:
    """A label that fits: as it is, else its number, else its end.

    >>> fitted("gpu12", 40, 10), fitted("mlx5_12", 25, 10), fitted("nvswitch", 25, 10), fitted("x", 3, 10)
    ('gpu12', '12', '…tch', '')
    """
    letters = int(width / (_LETTER * size))
    if len(label) <= letters:
        return label
    digits = re.search(r"\d+$", label)
    if digits is not None and len(digits[0]) <= letters:
        return digits[0]
    return f"…{label[1 - letters :]}" if letters > 1 else ""
