"""How busy the links are, as bars: one for each class of links of like ends, rate and load."""

from __future__ import annotations

from coppice.report.svg import Markup, drawing, element, escape, fitted, join
from coppice.report.topology.picture import load_class
from coppice.schedule.explanation import LinkClass, link_classes
from coppice.schedule.loads import LinkLoads
from coppice.text import percent_text, plural, rate_text
from coppice.topology.model import NodeKind, Topology

MOST_CLASSES = 16
WIDTH = 1000.0
LEFT, RIGHT = 330.0, 70.0
"""Room for the words before a bar and the percentage after it."""

LINE = 34.0
_NAMES = {NodeKind.GPU: "GPU", NodeKind.NIC: "NIC", NodeKind.SWITCH: "switch"}


def load_picture(loads: LinkLoads) -> Markup:
    """Bars of the busiest classes of links; the last line tells what they leave out."""
    classes = link_classes(loads)
    shown = classes[:MOST_CLASSES]
    rows = [_row(loads.topology, links, 8 + at * LINE) for at, links in enumerate(shown)]
    height = 12 + len(shown) * LINE
    if len(classes) > len(shown):
        rest = classes[MOST_CLASSES:]
        count = plural(sum(links.count for links in rest), "further link")
        words = (
            f"{count} in {plural(len(rest), 'class')}, busy {percent_text(rest[0].load)} of the time or less"
        )
        rows.append(element("text", escape(words), x=LEFT, y=height + 8, class_="quiet"))
        height += 20
    return drawing(WIDTH, height, join(rows), name="loads", label="How busy each class of links is")


def _row(topology: Topology, links: LinkClass, y: float) -> Markup:
    """Words, a bar and a percentage."""
    ends = f"{_NAMES[links.src_kind]} → {_NAMES[links.dst_kind]}"
    words = f"{plural(links.count, 'link')} {ends}, {rate_text(links.gb_per_s)} GB/s"
    names = topology.node_ids
    example = f"{names[topology.src[links.example]]} → {names[topology.dst[links.example]]}"
    track = WIDTH - LEFT - RIGHT
    length = float(links.load) * track
    parts = [
        element(
            "title", escape(f"{words}, such as {example}: busy {percent_text(links.load)} of the plan's time")
        ),
        element("text", escape(fitted(words, LEFT - 14, 11)), x=LEFT - 10, y=y + 10, class_="end"),
        element(
            "text",
            escape(fitted(f"such as {example}", LEFT - 14, 9)),
            x=LEFT - 10,
            y=y + 22,
            class_="end small quiet",
        ),
        element("rect", x=LEFT, y=y, width=track, height=20, rx=3, class_="track"),
    ]
    if links.load:
        colour = f"bar{load_class(links.load)}"
        parts.append(element("rect", x=LEFT, y=y, width=max(length, 1.0), height=20, rx=3, class_=colour))
    parts.append(
        element(
            "text",
            escape(percent_text(links.load, most_decimals=1)),
            x=WIDTH - RIGHT + 8,
            y=y + 14,
            class_="strong",
        )
    )
    return element("g", *parts)
