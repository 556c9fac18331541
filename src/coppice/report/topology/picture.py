"""The topology as a picture: boxes, GPUs, NICs, switches, how busy each link is, and the bottleneck cut through it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import log2

from coppice.report.style import PICTURE_STYLE, style
from coppice.report.svg import Markup, drawing, element, escape, fitted, join, number
from coppice.report.topology.direct import Place
from coppice.report.topology.layout import Frame, Layout, lay_out
from coppice.report.topology.wires import Point, hull, wire, within
from coppice.schedule.loads import LinkLoads
from coppice.text import percent_text, rate_text
from coppice.topology.model import NodeKind, Topology

__all__ = ["TopologyPicture", "load_class", "topology_picture", "topology_svg"]

_CUT_ROOM = (9.0, 5.0, 2.0)
"""Room between a node and the line around its side of the cut, the widest that fits."""

_KINDS = {NodeKind.GPU: "gpu", NodeKind.NIC: "nic", NodeKind.SWITCH: "switch"}


@dataclass(frozen=True, kw_only=True)
class TopologyPicture:
    """A drawing of a topology.

    Attributes:
        svg: The picture.
        omitted: What it leaves out, in words; empty where everything is drawn.
        joined: Number of the drawn line of each link by its ends, in both directions: the element's ``data-link``.
        encircled: The cut is a line around one of its sides, beside the marks on the links that cross it.
    """

    svg: Markup
    omitted: tuple[str, ...]
    joined: Mapping[tuple[int, int], int]
    encircled: bool


def topology_picture(
    topology: Topology, *, loads: LinkLoads | None = None, cut: Sequence[int] = (), label: str = ""
) -> TopologyPicture:
    """Draw a topology; a large one in part, which ``omitted`` states.

    Args:
        topology: What to draw.
        loads: What each link carries under a plan; colours are then shares of the busiest link's time.
        cut: Nodes of one side of a cut, usually the bottleneck's.
        label: What the picture shows, for those who cannot see it; made from the topology where empty.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> picture = topology_picture(preset("dgx-a100", boxes=2))
        >>> picture.omitted, picture.svg.count('class="gpu"')
        ((), 16)
    """
    layout = lay_out(topology, _smaller_side(topology, cut))
    place = layout.place
    side = set(cut)
    wires, joined = _wires(topology, layout, loads, side)
    outline = _outline(place, side)
    height = layout.height + (16 if side else 0)
    parts = [
        join(_frame(frame) for frame in layout.frames),
        *([] if outline is None else [_encircled(outline)]),
        wires,
        join(_node(topology, v, place[v], boxed=bool(layout.frames)) for v in sorted(place)),
        join(_frame_name(frame) for frame in layout.frames),
        *([_ticks(topology, layout, side, outline)] if side else []),
    ]
    if side:
        words = "bottleneck cut"
        if outline is None:
            words = "the marked links cross the bottleneck cut"
        parts.append(element("text", escape(words), x=layout.width - 8, y=height - 6, class_="cut-name end"))
    return TopologyPicture(
        svg=drawing(
            layout.width, height, *parts, name="topology", label=label or f"Topology {topology.name}"
        ),
        omitted=layout.omitted,
        joined=joined,
        encircled=outline is not None,
    )


def topology_svg(topology: Topology, *, loads: LinkLoads | None = None, cut: Sequence[int] = ()) -> str:
    """The same drawing as the text of an SVG file of its own, with its colours.

    Args:
        topology: What to draw.
        loads: What each link carries under a plan.
        cut: Nodes of one side of a cut.
    """
    picture = topology_picture(topology, loads=loads, cut=cut)
    opening, content = picture.svg.split(">", 1)
    return f"{opening}>{style(PICTURE_STYLE)}{content}\n"


def load_class(share: Fraction) -> int:
    """Colour of a link that is busy for a share of the plan's time: 0 not at all .. 4 all the time.

    >>> [load_class(Fraction(n, 10)) for n in (0, 4, 5, 9, 10)]
    [0, 1, 2, 3, 4]
    """
    if not share:
        return 0
    return 1 + sum(share >= edge for edge in (Fraction(1, 2), Fraction(9, 10), Fraction(1)))


def _smaller_side(topology: Topology, cut: Sequence[int]) -> Collection[int]:
    """The side of the cut with fewer nodes."""
    if 2 * len(cut) <= topology.num_nodes:
        return cut
    return set(range(topology.num_nodes)).difference(cut)


def _encircled(outline: Sequence[Point]) -> Markup:
    text = " ".join(f"{number(x)},{number(y)}" for x, y in outline)
    return element("polygon", element("title", escape("bottleneck cut")), points=text, class_="cut")


def _frame(frame: Frame) -> Markup:
    return element("rect", x=frame.x, y=frame.y, width=frame.width, height=frame.height, rx=8, class_="frame")


def _frame_name(frame: Frame) -> Markup:
    """The name of a box, over the lines that pass it."""
    name = fitted(frame.name, frame.width - 16, 11)
    return element("text", escape(name), x=frame.x + 9, y=frame.y + 15, class_="strong halo")


def _node(topology: Topology, v: int, at: Place, *, boxed: bool) -> Markup:
    """A node: rounded where it is a GPU or a NIC, a bar where it is a switch; its full name on hover."""
    kind = NodeKind(int(topology.kind[v]))
    full = topology.node_ids[v]
    short = full
    if topology.host[v] >= 0:  # in a frame the box is named, without one the only node of a box stands for it
        short = full.rpartition("/")[2] if boxed else topology.hosts[topology.host[v]]
    words = [full]
    if topology.rank[v] >= 0:
        words.append(f"rank {int(topology.rank[v])}")
    elif kind is NodeKind.GPU:
        words.append("relay, takes no part")
    if topology.multicast[v]:
        words.append("copies in hardware")
    if topology.aggregate[v]:
        words.append("adds in hardware")
    size = 11 if at.width > 42 else 9
    text = fitted(short, at.width - 2, size)
    body = element(
        "rect",
        x=at.x - at.width / 2,
        y=at.y - at.height / 2,
        width=at.width,
        height=at.height,
        rx=2 if kind is NodeKind.SWITCH else 5,
        class_=_KINDS[kind],
    )
    name = element(
        "text",
        escape(text),
        x=at.x,
        y=at.y + size * 0.36,
        class_="middle" if size == 11 else "middle small",
    )
    return element("g", element("title", escape(", ".join(words))), body, name)


def _wires(
    topology: Topology, layout: Layout, loads: LinkLoads | None, side: set[int]
) -> tuple[Markup, dict[tuple[int, int], int]]:
    """A line for each two linked nodes; hovering says both rates and loads."""
    index, place = topology.link_index, layout.place
    thinnest = min(topology.capacity.tolist(), default=1)
    joined: dict[tuple[int, int], int] = {}
    lines: list[Markup] = []
    for a, b in index:
        if a not in place or b not in place or (b, a) in joined:
            continue
        joined[a, b] = joined[b, a] = len(lines)
        ways = [(x, y, index[x, y]) for x, y in ((a, b), (b, a)) if (x, y) in index]
        words = [
            f"{topology.node_ids[x]} → {topology.node_ids[y]}: {_link_words(topology, e, loads)}"
            for x, y, e in ways
        ]
        if (a in side) != (b in side):
            words.append("crosses the bottleneck cut")
        widest = max(int(topology.capacity[e]) for _, _, e in ways)
        colour = "load1"
        if loads is not None:
            inv_rate = loads.inv_rate
            colour = f"load{max(load_class(loads.utilisation(e, inv_rate)) for _, _, e in ways)}"
        line = element(
            "path",
            d=wire(place, a, b).path,
            class_=f"link {colour}",
            stroke_width=min(1.2 + 0.5 * log2(widest / thinnest), 4.0),
        )
        lines.append(
            element("g", element("title", escape("\n".join(words))), line, data_link=str(len(lines)))
        )
    return join(lines), joined


def _link_words(topology: Topology, link: int, loads: LinkLoads | None) -> str:
    """Rate, latency and load of a link."""
    words = f"{rate_text(topology.gb_per_s(link))} GB/s"
    if topology.latency_us[link]:
        words += f", {topology.latency_us[link]:g} us"
    if loads is None:
        return words
    return f"{words}, busy {percent_text(loads.utilisation(link, loads.inv_rate))} of the time"


def _ticks(topology: Topology, layout: Layout, side: set[int], outline: Sequence[Point] | None) -> Markup:
    """A short stroke across every drawn link that crosses the cut, at the line around its side if there is one."""
    place = layout.place
    strokes = []
    for a, b in topology.link_index:
        if a not in place or b not in place or (a in side) == (b in side):
            continue
        if a > b and (b, a) in topology.link_index:
            continue
        line = wire(place, a, b)
        (x1, y1), (x2, y2) = line.stroke_across(0.5 if outline is None else line.leaves(outline))
        strokes.append(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="tick"))
    return join(strokes)


def _outline(place: Mapping[int, Place], side: set[int]) -> list[Point] | None:
    """A line around one side of the cut, None where some node of the other side would lie within."""
    inside = [v for v in place if v in side]
    outside = [v for v in place if v not in side]
    if not inside or not outside:
        return None
    for ours, theirs in sorted(((inside, outside), (outside, inside)), key=lambda pair: len(pair[0])):
        points = [point for v in theirs for point in (*_corners(place[v], 0), (place[v].x, place[v].y))]
        for room in _CUT_ROOM:
            outline = hull([corner for v in ours for corner in _corners(place[v], room)])
            if not any(within(outline, point) for point in points):
                return outline
    return None


def _corners(at: Place, room: float) -> list[Point]:
    x, y = at.width / 2 + room, at.height / 2 + room
    return [(at.x - x, at.y - y), (at.x + x, at.y - y), (at.x + x, at.y + y), (at.x - x, at.y + y)]
