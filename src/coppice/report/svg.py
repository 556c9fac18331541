"""SVG and HTML markup: escaping, elements, and canonical numbers.

Pieces of markup have a type of their own, :data:`Markup`, which only escaping and building an element make: text of a
topology cannot reach a page unescaped without the type checker seeing it. All of it is well-formed XML, pages too.

Colours of pictures and pages, on light, dark and paper; every picture is drawn with classes that are named here.
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
_LETTERS = {
    0.3: "ijlI.,:;'|! ",
    0.4: "ftrJ-()[]/_",
    0.7: "CDGHNOQRUAV",
    0.84: "w#×+=<>~",
    1.0: "mMW@%…→",
}
"""Widths of letters in units of the size of the text, in the widest of the usual sans-serif fonts."""

_LETTER = 0.636
_WIDTH_OF = {letter: width for width, letters in _LETTERS.items() for letter in letters}


def escape(text: str) -> Markup:
    """Escape text; characters that XML cannot hold become U+FFFD.

    >>> escape('<gpu "0"> & co')
    '&lt;gpu &quot;0&quot;&gt; &amp; co'
    """
    safe = _FORBIDDEN.sub("\ufffd", text).replace("&", "&amp;").replace("<", "&lt;")
    return Markup(safe.replace(">", "&gt;").replace('"', "&quot;"))


def number(value: float) -> str:
    """Format a coordinate with at most one decimal, canonically.

    >>> number(3.0), number(2.25), number(-0.01)
    ('3', '2.2', '0')
    """
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def element(tag: str, /, *children: Markup, **attributes: str | float | None) -> Markup:
    """Markup of an element; ``stroke_width`` becomes ``stroke-width``, ``class_`` becomes ``class``, None is omitted.

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
    """Concatenate markup."""
    return Markup(escape(between).join(parts))


def facts(rows: Sequence[tuple[str, str]]) -> Markup:
    """Definition list of named values."""
    cells = []
    for name, value in rows:
        cells += [element("dt", escape(name)), element("dd", escape(value))]
    return element("dl", *cells)


def drawing(width: float, height: float, *children: Markup, name: str, label: str) -> Markup:
    """SVG picture in its own units, scaled to the available width.

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


def text_width(label: str, size: float) -> float:
    """Room that a label takes, rather too much than too little.

    >>> text_width("ill", 10) < text_width("gpu", 10) < text_width("mlx", 10) < text_width("nvswitch", 10)
    True
    """
    return size * sum(_WIDTH_OF.get(letter, _LETTER) for letter in label)


def fitted(label: str, width: float, size: float) -> str:
    """Label shortened to fit: the whole, else its number, else its end.

    >>> fitted("gpu12", 40, 10), fitted("mlx5_12", 25, 10), fitted("nvswitch", 35, 10), fitted("x", 3, 10)
    ('gpu12', '12', '…itch', '')
    """
    if text_width(label, size) <= width:
        return label
    digits = re.search(r"\d+$", label)
    if digits is not None and text_width(digits[0], size) <= width:
        return digits[0]
    room = width - text_width("…", size)
    start = len(label)
    while start and text_width(label[start - 1 :], size) <= room:
        start -= 1
    return f"…{label[start:]}" if start < len(label) else ""


_LIGHT = """--page:#ffffff;--ink:#1c2733;--quiet:#5b6875;--line:#d5dbe2;--card:#f5f7f9;--gpu:#dcebfa;--gpu-edge:#3f78b5;
--nic:#e3f2e1;--nic-edge:#4d8f48;--switch:#ece5f6;--switch-edge:#7a5cab;--load0:#b4bcc6;--load1:#86b2dc;--load2:#2f74bd;
--load3:#c98a06;--load4:#cf4c12;--cut:#c0165a;--cut-fill:#c0165a14;--send:#2f74bd;--add:#c98a06;--chosen:#0a7d55;
--s0:#1f6fb4;--s1:#cf3a2c;--s2:#278a33;--s3:#c77700;--s4:#7d55b0;--s5:#0b8f9c;--s6:#c2539f;--s7:#7a5347;"""

_DARK = """--page:#14191f;--ink:#e4eaf0;--quiet:#9aa7b4;--line:#36414d;--card:#1c232b;--gpu:#1f3a55;--gpu-edge:#6fa8de;
--nic:#22402a;--nic-edge:#74bb78;--switch:#372d4d;--switch-edge:#a98bdb;--load0:#5d6874;--load1:#5c86b0;--load2:#6fb1f2;
--load3:#e3b341;--load4:#ff8150;--cut:#ff6fa5;--cut-fill:#ff6fa51c;--send:#6fb1f2;--add:#e3b341;--chosen:#4fd6a0;
--s0:#6fb1f2;--s1:#ff7b6e;--s2:#6cc877;--s3:#eeaa48;--s4:#bd9bea;--s5:#4ecbd6;--s6:#ee8fcf;--s7:#c9a08f;"""

_COLOURS = f""":root{{color-scheme:light;{_LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{_DARK}}}}}
@media print{{:root{{color-scheme:light;{_LIGHT}}}}}"""

PICTURE_STYLE = f"""{_COLOURS}
.picture{{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;background:var(--page);
-webkit-print-color-adjust:exact;print-color-adjust:exact}}
.picture text{{fill:var(--ink);font-size:11px}}
.picture text.small{{font-size:9px}}.picture text.quiet{{fill:var(--quiet)}}
.picture text.middle{{text-anchor:middle}}.picture text.end{{text-anchor:end}}.picture text.strong{{font-weight:600}}
.frame{{fill:var(--card);stroke:var(--line)}}
.gpu{{fill:var(--gpu);stroke:var(--gpu-edge)}}.nic{{fill:var(--nic);stroke:var(--nic-edge)}}
.switch{{fill:var(--switch);stroke:var(--switch-edge)}}
.link{{fill:none;stroke-linecap:round}}
.load0{{stroke:var(--load0);stroke-dasharray:3 3}}.load1{{stroke:var(--load1)}}.load2{{stroke:var(--load2)}}
.load3{{stroke:var(--load3)}}.load4{{stroke:var(--load4)}}
.bar1{{fill:var(--load1)}}.bar2{{fill:var(--load2)}}.bar3{{fill:var(--load3)}}.bar4{{fill:var(--load4)}}
.track{{fill:var(--card);stroke:var(--line)}}
.cut{{fill:var(--cut-fill);stroke:var(--cut);stroke-width:2;stroke-dasharray:7 4;stroke-linejoin:round}}
.picture text.cut-name{{fill:var(--cut);font-weight:600}}
.leader{{stroke:var(--cut)}}
.tick{{stroke:var(--cut);stroke-width:2.5;stroke-linecap:round}}.side{{stroke:var(--cut);stroke-width:2.5}}
.inside{{stroke:var(--load2)}}.across{{stroke:var(--load4)}}.edge{{fill:none;stroke-width:1.5}}
.send{{fill:var(--send)}}.add{{fill:var(--add)}}.grid{{stroke:var(--line);stroke-width:1}}.axis{{stroke:var(--quiet)}}
rect.lost{{fill:none}}.lost{{stroke:var(--cut);stroke-dasharray:4 3;opacity:.8}}
.cross{{fill:none;stroke:var(--cut);stroke-width:2;stroke-linecap:round}}.picture text.lost-name{{fill:var(--cut)}}
.critical{{fill:var(--cut)}}.limit{{fill:none;stroke:var(--ink);stroke-width:1.6;stroke-dasharray:6 3}}
.curve{{fill:none;stroke-width:2}}.other{{stroke:var(--load0);stroke-width:1;opacity:.75}}
.s0{{stroke:var(--s0)}}.s1{{stroke:var(--s1)}}.s2{{stroke:var(--s2)}}.s3{{stroke:var(--s3)}}
.s4{{stroke:var(--s4)}}.s5{{stroke:var(--s5)}}.s6{{stroke:var(--s6)}}.s7{{stroke:var(--s7)}}
.picture g:hover>.link,.picture g:hover>.edge{{stroke-width:5}}
.chosen>.link{{stroke:var(--chosen);stroke-dasharray:none;stroke-width:4}}
.picture rect:hover,.picture circle:hover{{opacity:.75}}
"""

PAGE_STYLE = f"""{PICTURE_STYLE}
*{{box-sizing:border-box}}
body{{margin:0 auto;padding:24px 20px 48px;max-width:1180px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}}
h1{{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}}h2{{font-size:19px;margin:36px 0 6px}}
p{{margin:4px 0 10px;overflow-wrap:anywhere}}.quiet{{color:var(--quiet)}}
dl{{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:4px 18px;margin:14px 0;padding:14px 18px;
background:var(--card);border:1px solid var(--line);border-radius:8px}}
dt{{color:var(--quiet)}}dd{{margin:0;overflow-wrap:anywhere}}
figure{{margin:10px 0 0;overflow-x:auto}}
figure svg{{max-width:100%;height:auto;min-width:680px;display:block}}figure svg.topology{{margin:0 auto}}
figure svg.tree{{min-width:0}}
.key{{display:flex;flex-wrap:wrap;gap:4px 18px;color:var(--quiet);font-size:13px;margin:6px 0}}
.key span{{display:inline-flex;align-items:center;gap:6px}}.key svg{{flex:none;background:none}}
select{{font:inherit;max-width:100%;color:var(--ink);background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:4px 8px}}
table{{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}}
th,td{{text-align:right;padding:3px 12px;border-bottom:1px solid var(--line)}}
th:last-child,td:last-child{{text-align:left}}
.scroll{{overflow-x:auto}}footer{{margin-top:40px;color:var(--quiet);font-size:13px;overflow-wrap:anywhere}}
.tree h3{{font-size:15px;margin:10px 0 0;font-weight:600}}
@media (max-width:640px){{body{{padding:16px 12px 32px}}dl{{grid-template-columns:minmax(0,1fr)}}dt{{margin-top:6px}}
figure svg{{max-width:none;min-width:0}}}}
@media print{{body{{max-width:none;padding:0;font-size:12px}}select,.screen{{display:none}}
figure,.scroll{{overflow:visible}}
figure svg,figure svg.tree{{max-width:100%;min-width:0;height:auto;max-height:230mm}}
table{{font-size:11px}}th,td{{padding:2px 7px}}
h2,h3,p,.key{{break-after:avoid}}figure,dl,tr{{break-inside:avoid}}@page{{margin:14mm}}}}
"""


def style(text: str) -> Markup:
    """Style element with rules from this file."""
    return element("style", Markup(text))


def standalone(picture: Markup) -> str:
    """Standalone SVG file of a picture, with its colours."""
    opening, content = picture.split(">", 1)
    return f"{opening}>{style(PICTURE_STYLE)}{content}\n"


def html_page(title: str, body: Sequence[Markup], *scripts: Markup) -> str:
    """Standalone HTML page.

    Args:
        body: What it shows, from top to bottom.
        scripts: Script elements, which neither hold ``<`` nor ``&``, so that pages stay well-formed XML.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", escape(title)),
        style(PAGE_STYLE),
    )
    page = element("html", head, element("body", join(body, "\n"), *scripts), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"
