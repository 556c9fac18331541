"""Choose what of a topology is drawn, and draw it: boxes, GPUs, NICs, switches, link utilisation, and a cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log2

from coppice.errors import InputError
from coppice.report.svg import NOTHING, Markup, drawing, element, escape, join, number, standalone
from coppice.report.topology.cut import NAME, CutLine, cut_line
from coppice.report.topology.direct import direct, drawn_part, is_direct
from coppice.report.topology.folding import MOST_NODES, DrawnGraph, fold, part_of, structure_of
from coppice.report.topology.layout import layered
from coppice.report.topology.sheet import DrawingLayout, Frame
from coppice.schedule.loads import LinkLoads
from coppice.text import percent_text, plural, rate_text, shortened
from coppice.topology.model import NodeKind, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """What is drawn, and where."""

    whole: Topology  # What is drawn, with what was lost of it
    graph: DrawnGraph
    layout: DrawingLayout
    cut: CutLine | None  # The line of the cut, None without one
    old: tuple[int, ...]  # The node of the whole for each node of what is left of it
    lost_nodes: frozenset[int]  # Nodes of the whole that are lost
    lost_links: frozenset[tuple[int, int]]
    omitted: tuple[str, ...]  # What is left out or folded, in words


def drawing_of(topology: Topology, cut: Sequence[int] = (), whole: Topology | None = None) -> Drawing:
    """Choose what is drawn, and lay it out.

    Args:
        cut: Nodes of one side of a cut.
        whole: What the topology was before it lost nodes or links.
    """
    drawn = topology if whole is None else whole
    old = tuple(range(topology.num_nodes)) if whole is None else _numbers(topology, whole)
    lost_nodes = frozenset(range(drawn.num_nodes)).difference(old)
    left = (
        {(old[a], old[b]) for a, b in topology.link_index} if whole is not None else drawn.link_index.keys()
    )
    lost_links = frozenset(drawn.link_index.keys() - left)
    side = {old[v] for v in cut}
    hurt = {v for pair in lost_links for v in pair}
    marks: list[Hashable] = [(v in side, v in lost_nodes, v in hurt) for v in range(drawn.num_nodes)]
    structure = structure_of(drawn)
    omitted: tuple[str, ...]
    if is_direct(drawn):
        nodes = list(range(drawn.num_nodes)) if drawn.num_nodes < MOST_NODES else drawn_part(drawn)
        graph = part_of(drawn, structure, nodes)
        layout = direct(drawn, graph)
        omitted = (
            (f"{len(nodes)} of {drawn.num_nodes:,} nodes are drawn",) if len(nodes) < drawn.num_nodes else ()
        )
    else:
        graph = fold(drawn, structure, marks)
        layout = layered(drawn, graph)
        omitted = graph.folded
    first = [node.members[0] for node in graph.nodes]
    ours = {v for v, member in enumerate(first) if member in side}
    theirs = {v for v, member in enumerate(first) if member not in side and member not in lost_nodes}
    line = cut_line(layout, ours, theirs) if side else None
    if line is not None and line.name_at is None:
        layout = replace(layout, height=layout.height + 18)
        line = cut_line(layout, ours, theirs)
    return Drawing(
        whole=drawn,
        graph=graph,
        layout=layout,
        cut=line,
        old=old,
        lost_nodes=lost_nodes,
        lost_links=lost_links,
        omitted=omitted,
    )


def _numbers(topology: Topology, whole: Topology) -> tuple[int, ...]:
    """The node of the whole for each node that is left."""
    number_of = {name: v for v, name in enumerate(whole.node_ids)}
    strange = next((name for name in topology.node_ids if name not in number_of), None)
    if strange is not None:
        raise InputError(
            f"expected `whole` to have all nodes of {topology.name:.60}, found no {strange!r} in {whole.name:.60}."
        )
    return tuple(number_of[name] for name in topology.node_ids)


_KINDS = {NodeKind.GPU: "gpu", NodeKind.NIC: "nic", NodeKind.SWITCH: "switch"}

_MOST_NAMES = 12
"""Nodes that are named of those for which one stands."""

_STACKED = 4.0
"""How far the frame behind a frame that stands for several is seen."""


@dataclass(frozen=True, kw_only=True)
class TopologyPicture:
    """A drawing of a topology."""

    svg: Markup  # The picture
    omitted: tuple[str, ...]  # What it leaves out or folds, in words; empty where every node is drawn
    # Number of the drawn line of each link by its ends, in both directions: the element's `data-link`
    joined: Mapping[tuple[int, int], int]


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
    """Draw a topology: every node below 100 of them; of a larger one what is alike stands as one with its number.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> picture = topology_picture(preset("dgx-a100", boxes=2))
        >>> picture.omitted, picture.svg.count('class="gpu"')
        ((), 16)
    """
    drawn = drawing_of(topology, cut, whole)
    layout = drawn.layout
    lines = _DrawnLines(topology, drawn, loads, {drawn.old[v] for v in cut})
    lost = drawn.lost_nodes or drawn.lost_links
    height = layout.height + (16 if lost else 0)
    parts = [
        *(_frame(frame) for frame in layout.frames),
        *([] if drawn.cut is None else [_encircled(drawn.cut)]),
        *(lines.drawn(number, pair) for number, pair in enumerate(layout.routes)),
        *(_node(drawn, v) for v in sorted(layout.place)),
        *(lines.cross(pair) for pair in layout.routes),
        *(
            element("text", escape(frame.name), x=frame.name_at[0], y=frame.name_at[1], class_="strong")
            for frame in layout.frames
        ),
        *(
            element("text", escape(words), x=x, y=y, class_="small quiet")
            for words, (x, y) in layout.captions
        ),
        *(lines.tick(pair) for pair in layout.routes if lines.is_cut(pair)),
        *([] if drawn.cut is None else [_cut_name(drawn.cut)]),
    ]
    if lost:
        line = element(
            "line", x1=9, y1=height - 10, x2=31, y2=height - 10, class_="link lost", stroke_width=2
        )
        parts += [line, element("text", escape("lost"), x=38, y=height - 6, class_="lost-name")]
    number_of = {pair: at for at, pair in enumerate(layout.routes)}
    joined = {}
    for a, b in topology.link_index:
        i, j = sorted((drawn.graph.drawn[drawn.old[a]], drawn.graph.drawn[drawn.old[b]]))
        if (i, j) in number_of:
            joined[a, b] = joined[b, a] = number_of[i, j]
    return TopologyPicture(
        svg=drawing(
            layout.width, height, *parts, name="topology", label=label or f"Topology {topology.name}"
        ),
        omitted=drawn.omitted,
        joined=joined,
    )


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


def _frame(frame: Frame) -> Markup:
    """A box; behind one that stands for several another is seen."""

    def at(off: float) -> Markup:
        x, y = frame.x + off, frame.y + off
        return element("rect", x=x, y=y, width=frame.width, height=frame.height, rx=8, class_="frame")

    return join([at(_STACKED), at(0.0)] if frame.stacked else [at(0.0)])


def _encircled(cut: CutLine) -> Markup:
    return element("path", element("title", escape(NAME)), d=cut.path, class_="cut")


def _cut_name(cut: CutLine) -> Markup:
    """The name of the cut, joined with its line where it is not close to it."""
    if cut.name_at is None:
        return NOTHING
    at = cut.name_at
    name = element("text", escape(NAME), x=at.x, y=at.y + 4, class_="cut-name middle")
    if cut.leader is None:
        return name
    (x1, y1), (x2, y2) = cut.leader
    return join([element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="leader"), name])


def _node(drawn: Drawing, v: int) -> Markup:
    """A node: rounded where it is a GPU or a NIC, a bar where it is a switch; its full name on hover."""
    topology, node, at = drawn.whole, drawn.graph.nodes[v], drawn.layout.place[v]
    member = node.members[0]
    kind = NodeKind(int(topology.kind[member]))
    lost = member in drawn.lost_nodes
    body = element(
        "rect",
        x=at.left,
        y=at.top,
        width=at.width,
        height=at.height,
        rx=2 if kind is NodeKind.SWITCH else 5,
        class_="lost" if lost else _KINDS[kind],
    )
    label = drawn.layout.labels[v]
    small = "" if label.size > 9 else " small"
    name = element(
        "text",
        escape(label.text),
        x=label.at.x,
        y=label.at.y + label.size * 0.36,
        class_=f"middle{small}{' quiet' if lost else ''}",
    )
    title = element("title", escape(_node_words(drawn, v)))
    return element("g", title, body, name, *([_cross(at.right, at.top, 4)] if lost else []))


def _node_words(drawn: Drawing, v: int) -> str:
    """A node in words, or those that it stands for."""
    topology, members = drawn.whole, drawn.graph.nodes[v].members
    member = members[0]
    if len(members) > 1:
        names = shortened([topology.node_ids[each] for each in members], _MOST_NAMES)
        words = [f"{len(members):,} nodes alike: {names}"]
    else:
        words = [topology.node_ids[member]]
        if topology.rank[member] >= 0:
            words.append(f"rank {int(topology.rank[member])}")
    if topology.kind[member] == NodeKind.GPU and topology.rank[member] < 0:
        words.append("relay, takes no part")
    if topology.multicast[member]:
        words.append("copies in hardware")
    if topology.aggregate[member]:
        words.append("adds in hardware")
    if member in drawn.lost_nodes:
        words.append("lost")
    return ", ".join(words)


def _cross(x: float, y: float, size: float) -> Markup:
    path = f"M{number(x - size)} {number(y - size)}L{number(x + size)} {number(y + size)}"
    path += f"M{number(x - size)} {number(y + size)}L{number(x + size)} {number(y - size)}"
    return element("path", d=path, class_="cross")


class _DrawnLines:
    """The lines of a drawing, each with what its links are and carry."""

    def __init__(self, topology: Topology, drawn: Drawing, loads: LinkLoads | None, side: set[int]) -> None:
        self.topology, self.drawing, self.loads, self.side = topology, drawn, loads, side
        self.thinnest = min(topology.capacity.tolist(), default=1)
        # Links that are left, by their ends in the whole.
        self.link = {(drawn.old[a], drawn.old[b]): e for (a, b), e in topology.link_index.items()}

    def is_cut(self, pair: tuple[int, int]) -> bool:
        """Whether a line crosses the cut."""
        a, b = (self.drawing.graph.nodes[v].members[0] for v in pair)
        return (a in self.side) != (b in self.side) and any(each in self.link for each in self._links(pair))

    def drawn(self, at: int, pair: tuple[int, int]) -> Markup:
        """A line; hovering says the rates and loads of its links."""
        way = self.drawing.layout.routes[pair].path
        kept = [self.link[each] for each in self._links(pair) if each in self.link]
        words = self._words(pair)
        if not kept:
            line = element("path", d=way, class_="link lost", stroke_width=1.6)
            return element("g", element("title", escape("\n".join(words))), line)
        if self.is_cut(pair):
            words.append(f"crosses the {NAME}")
        colour = "load1"
        if self.loads is not None:
            inv_rate = self.loads.inv_rate
            colour = f"load{max(load_class(self.loads.utilisation(e, inv_rate)) for e in kept)}"
        widest = max(int(self.topology.capacity[e]) for e in kept)
        line = element(
            "path",
            d=way,
            class_=f"link {colour}",
            stroke_width=min(1.2 + 0.5 * log2(widest / self.thinnest), 4.0),
        )
        return element("g", element("title", escape("\n".join(words))), line, data_link=str(at))

    def cross(self, pair: tuple[int, int]) -> Markup:
        """A cross on a line that is lost, between nodes that are not."""
        links = self._links(pair)
        if any(each in self.link for each in links) or self.drawing.lost_nodes.intersection(links[0]):
            return NOTHING
        return _cross(*self.drawing.layout.routes[pair].at(0.5)[0], 5)

    def tick(self, pair: tuple[int, int]) -> Markup:
        """A short stroke across a line at the cut."""
        way = self.drawing.layout.routes[pair]
        along = 0.5 if self.drawing.cut is None else self.drawing.cut.crossed_by(way)
        (x1, y1), (x2, y2) = way.stroke_across(along)
        return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="tick")

    def _links(self, pair: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        return self.drawing.graph.links[pair]

    def _words(self, pair: tuple[int, int]) -> list[str]:
        """What each direction of a line is and carries."""
        drawn, names = self.drawing.graph.drawn, self.drawing.whole.node_ids
        words = []
        for start in pair:
            links = [each for each in self._links(pair) if drawn[each[0]] == start]
            kept = [each for each in links if each in self.link]
            gone = len(links) - len(kept)
            if kept:
                first = f"{names[kept[0][0]]} → {names[kept[0][1]]}"
                if len(kept) > 1:
                    first = f"{plural(len(kept), 'link')} like {first}"
                line = f"{first}: {self._link_words([self.link[each] for each in kept])}"
                words.append(line + (f"; {gone} lost" if gone else ""))
            elif links:
                words.append(f"{names[links[0][0]]} → {names[links[0][1]]}: lost")
        return words

    def _link_words(self, links: Sequence[int]) -> str:
        """Rate, latency and load of links."""
        topology = self.topology
        rates = Counter(topology.gb_per_s(e) for e in links)
        words = " or ".join(f"{rate_text(rate)} GB/s" for rate in sorted(rates))
        latencies = sorted({float(topology.latency_us[e]) for e in links} - {0.0})
        if latencies:
            words += f", {' or '.join(f'{each:g}' for each in latencies)} us"
        if self.loads is None:
            return words
        inv_rate = self.loads.inv_rate
        busiest = max(self.loads.utilisation(e, inv_rate) for e in links)
        return f"{words}, busy {percent_text(busiest)} of the time"
