"""Draw a topology: boxes, GPUs, NICs, switches, link utilisation, and the bottleneck cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb, hypot, log2

from coppice.errors import InputError
from coppice.report.svg import Markup, drawing, element, escape, fitted, join, number, standalone
from coppice.report.topology.direct import NodeBox
from coppice.report.topology.layout import DrawingLayout, Frame, lay_out
from coppice.schedule.loads import LinkLoads
from coppice.text import percent_text, rate_text
from coppice.topology.model import NodeKind, Topology

Point = tuple[float, float]

_BAR = 70.0
"""A node wider than that is a bar: lines meet it where it is nearest to them."""

_S_HEIGHT = 130.0
"""Lines to a bar run as an S up to this height: sideways in the gap between two rows, not across the nodes in them."""

_CUT_ROOM = (9.0, 5.0, 2.0)
"""Room between a node and the line around its side of the cut, the widest that fits."""

_KINDS = {NodeKind.GPU: "gpu", NodeKind.NIC: "nic", NodeKind.SWITCH: "switch"}


@dataclass(frozen=True, kw_only=True)
class TopologyPicture:
    """A drawing of a topology."""

    svg: Markup  # The picture
    omitted: tuple[str, ...]  # What it leaves out, in words; empty where everything is drawn
    # Number of the drawn line of each link by its ends, in both directions: the element's `data-link`
    joined: Mapping[tuple[int, int], int]
    encircled: bool  # The cut is a line around one of its sides, beside the marks on the links that cross it


def topology_picture(
    topology: Topology,
    *,
    # What each link carries under a plan; colours are then shares of the busiest link's time
    loads: LinkLoads | None = None,
    cut: Sequence[int] = (),  # Nodes of one side of a cut, usually the bottleneck's
    # What the picture shows, for those who cannot see it; made from the topology where empty
    label: str = "",
    # What the topology was before it lost nodes or links: these are drawn as lost
    whole: Topology | None = None,
) -> TopologyPicture:
    """Draw a topology; of a large one a part, as ``omitted`` states.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> picture = topology_picture(preset("dgx-a100", boxes=2))
        >>> picture.omitted, picture.svg.count('class="gpu"')
        ((), 16)
    """
    layout = lay_out(topology, _smaller_side(topology, cut))
    lost: list[Markup] = []
    if whole is not None:
        layout, lost = _with_lost(topology, whole, cut)
    place = layout.place
    side = set(cut)
    wires, joined = _wires(topology, layout, loads, side)
    outline = _outline(place, side)
    height = layout.height + (16 if side or lost else 0)
    parts = [
        join(_frame(frame) for frame in layout.frames),
        *lost,
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
    if lost:
        line = element(
            "line", x1=9, y1=height - 10, x2=31, y2=height - 10, class_="link lost", stroke_width=2
        )
        parts += [line, element("text", escape("lost"), x=38, y=height - 6, class_="lost-name")]
    return TopologyPicture(
        svg=drawing(
            layout.width, height, *parts, name="topology", label=label or f"Topology {topology.name}"
        ),
        omitted=layout.omitted,
        joined=joined,
        encircled=outline is not None,
    )


def _with_lost(topology: Topology, whole: Topology, cut: Sequence[int]) -> tuple[DrawingLayout, list[Markup]]:
    """The layout of the whole topology, with places of what is left, and what is lost: dashed, and crossed out."""
    number_of = {name: v for v, name in enumerate(whole.node_ids)}
    strange = next((name for name in topology.node_ids if name not in number_of), None)
    if strange is not None:
        raise InputError(
            f"expected `whole` to have all nodes of {topology.name:.60}, found no {strange!r} in {whole.name:.60}."
        )
    old = [number_of[name] for name in topology.node_ids]
    layout = lay_out(whole, [old[v] for v in _smaller_side(topology, cut)])
    left = {(old[a], old[b]) for a, b in topology.link_index}
    kept, seen, parts = set(old), set[tuple[int, int]](), list[Markup]()
    for a, b in whole.link_index:
        if (a, b) in left or (b, a) in left or (b, a) in seen or not {a, b} <= layout.place.keys():
            continue
        seen.add((a, b))
        line = wire(layout.place, a, b)
        words = escape(f"{whole.node_ids[a]} → {whole.node_ids[b]}: lost")
        parts.append(
            element("path", element("title", words), d=line.path, class_="link lost", stroke_width=1.6)
        )
        if {a, b} <= kept:
            parts.append(_cross(*line.at(0.5), 5))
    for v in sorted(layout.place.keys() - kept):
        at = layout.place[v]
        x, y = at.x - at.width / 2, at.y - at.height / 2
        words = escape(f"{whole.node_ids[v]}, lost")
        shape = element(
            "rect", element("title", words), x=x, y=y, width=at.width, height=at.height, rx=5, class_="lost"
        )
        name = fitted(whole.node_ids[v].rpartition("/")[2], at.width - 2, 9)
        text = element("text", escape(name), x=at.x, y=at.y + 3, class_="middle small quiet")
        parts += [shape, text, _cross(at.x, at.y, min(at.width, at.height) / 2)]
    place = {v: layout.place[at] for v, at in enumerate(old) if at in layout.place}
    return replace(layout, place=place), parts


def _cross(x: float, y: float, size: float) -> Markup:
    path = f"M{number(x - size)} {number(y - size)}L{number(x + size)} {number(y + size)}"
    path += f"M{number(x - size)} {number(y + size)}L{number(x + size)} {number(y - size)}"
    return element("path", d=path, class_="cross")


def topology_svg(
    topology: Topology,
    *,
    loads: LinkLoads | None = None,  # What each link carries under a plan
    cut: Sequence[int] = (),  # Nodes of one side of a cut
    whole: Topology | None = None,  # As for :func:`topology_picture`
) -> str:
    """Draw a topology as a standalone SVG file with its colours."""
    return standalone(topology_picture(topology, loads=loads, cut=cut, whole=whole).svg)


def load_class(share: Fraction) -> int:
    """Colour class of a link by utilisation: 0 (idle) .. 4 (always busy).

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


def _node(topology: Topology, v: int, at: NodeBox, *, boxed: bool) -> Markup:
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
        "text", escape(text), x=at.x, y=at.y + size * 0.36, class_="middle" if size == 11 else "middle small"
    )
    return element("g", element("title", escape(", ".join(words))), body, name)


def _wires(
    topology: Topology, layout: DrawingLayout, loads: LinkLoads | None, side: set[int]
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


def _ticks(
    topology: Topology, layout: DrawingLayout, side: set[int], outline: Sequence[Point] | None
) -> Markup:
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


def _outline(place: Mapping[int, NodeBox], side: set[int]) -> list[Point] | None:
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


def _corners(at: NodeBox, room: float) -> list[Point]:
    x, y = at.width / 2 + room, at.height / 2 + room
    return [(at.x - x, at.y - y), (at.x + x, at.y - y), (at.x + x, at.y + y), (at.x - x, at.y + y)]


@dataclass(frozen=True, slots=True)
class LinkCurve:
    """A Bezier curve of two, three or four points."""

    points: tuple[Point, ...]

    @property
    def path(self) -> str:
        """The curve as the ``d`` of a path."""
        first, *others = [f"{number(x)} {number(y)}" for x, y in self.points]
        return f"M{first}{'LQC'[len(others) - 1]}{' '.join(others)}"

    def at(self, along: float) -> Point:
        """The point at a share of the way."""
        degree = len(self.points) - 1
        weights = [comb(degree, i) * along**i * (1 - along) ** (degree - i) for i in range(degree + 1)]
        x = sum(weight * point[0] for weight, point in zip(weights, self.points, strict=True))
        y = sum(weight * point[1] for weight, point in zip(weights, self.points, strict=True))
        return x, y

    def stroke_across(self, along: float, length: float = 5.0) -> tuple[Point, Point]:
        """The ends of a short stroke across the curve."""
        x, y = self.at(along)
        (ax, ay), (bx, by) = self.at(max(along - 0.02, 0.0)), self.at(min(along + 0.02, 1.0))
        size = hypot(bx - ax, by - ay) or 1.0
        dx, dy = length * (by - ay) / size, -length * (bx - ax) / size
        return (x - dx, y - dy), (x + dx, y + dy)

    def leaves(self, outline: Sequence[Point]) -> float:
        """Parameter at which the curve leaves or enters a convex outline; the middle if it does neither."""
        steps = [step / 100 for step in range(101)]
        inside = [within(outline, self.at(step)) for step in steps]
        for before, after, step in zip(inside, inside[1:], steps, strict=False):
            if before != after:
                return step
        return 0.5


def wire(place: Mapping[int, NodeBox], a: int, b: int) -> LinkCurve:
    """Curve between two nodes."""
    p, q = place[a], place[b]
    px = _along(p, q.x) if p.width > _BAR else p.x
    qx = _along(q, px) if q.width > _BAR else q.x
    apart = abs(p.y - q.y)
    if max(p.width, q.width) > _BAR and p.height / 2 + q.height / 2 < apart < _S_HEIGHT and px != qx:
        down = 1 if q.y > p.y else -1
        py, qy = p.y + down * p.height / 2, q.y - down * q.height / 2
        middle = (py + qy) / 2
        return LinkCurve(((px, py), (px, middle), (qx, middle), (qx, qy)))
    if not _blocked(place, (a, b), (px, p.y), (qx, q.y)):
        return LinkCurve(((px, p.y), (qx, q.y)))
    return LinkCurve(((px, p.y), _bow(px, p.y, qx, q.y), (qx, q.y)))


def _along(bar: NodeBox, x: float) -> float:
    """The place on a bar that is nearest to ``x``."""
    return min(max(x, bar.x - bar.width / 2 + 8), bar.x + bar.width / 2 - 8)


def _bow(px: float, py: float, qx: float, qy: float) -> Point:
    """Where the bow between two points is drawn to: to the left of the way from the left or upper one."""
    if (qx, qy) < (px, py):
        px, py, qx, qy = qx, qy, px, py
    length = hypot(qx - px, qy - py) or 1.0
    out = min(0.28 * length, 60.0)
    return (px + qx) / 2 + out * (qy - py) / length, (py + qy) / 2 - out * (qx - px) / length


def _blocked(place: Mapping[int, NodeBox], ends: tuple[int, int], p: Point, q: Point) -> bool:
    """Some other node lies on the straight line."""
    length2 = (q[0] - p[0]) ** 2 + (q[1] - p[1]) ** 2
    for v, at in place.items():
        if v in ends or not length2:
            continue
        along = ((at.x - p[0]) * (q[0] - p[0]) + (at.y - p[1]) * (q[1] - p[1])) / length2
        if 0.02 < along < 0.98:
            x, y = p[0] + along * (q[0] - p[0]), p[1] + along * (q[1] - p[1])
            if abs(at.x - x) < at.width / 2 - 2 and abs(at.y - y) < at.height / 2 - 2:
                return True
    return False


def hull(points: Sequence[Point]) -> list[Point]:
    """The convex hull (Andrew's monotone chain).

    >>> hull([(0, 0), (2, 0), (1, 1), (0, 2), (2, 2)])
    [(0, 0), (2, 0), (2, 2), (0, 2)]
    """
    ordered = sorted(set(points))
    found: list[Point] = []
    for run in (ordered, ordered[::-1]):
        chain: list[Point] = []
        for point in run:
            while len(chain) > 1 and _turn(chain[-2], chain[-1], point) <= 0:
                chain.pop()
            chain.append(point)
        found += chain[:-1]
    return found


def within(outline: Sequence[Point], point: Point) -> bool:
    """Whether a point lies strictly inside a convex outline."""
    return all(_turn(a, b, point) > 0 for a, b in zip(outline, [*outline[1:], outline[0]], strict=True))


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
