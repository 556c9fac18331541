"""State of a layout: vertices with their positions, the rows that they stand in, and the vertices of each line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp

from coppice.report.svg import text_width
from coppice.report.topology.folding import DrawnGraph
from coppice.report.topology.geometry import LinkRoute, NodeBox, Point
from coppice.topology.model import NodeKind, Topology

HEIGHT = 22.0
BAR_HEIGHT = 18.0
"""Height of a node, and of a switch."""

WIDE = 70.0
"""A switch wider than that is a bar: lines meet it where they come from."""

_ARC, _MOST_ARC, _ARC_WIDTH = 10.0, 96.0, 420.0
"""Depth of an arc: at least, what width adds at most, and the width that adds 63% of that."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A box: its corner, size and name, and where the name is written."""

    x: float
    y: float
    width: float
    height: float
    name: str
    name_at: Point
    stacked: bool = False  # It stands for several

    @property
    def box(self) -> NodeBox:
        """Its place."""
        return NodeBox(self.x + self.width / 2, self.y + self.height / 2, self.width, self.height)


@dataclass(frozen=True, slots=True)
class NodeLabel:
    """What is written in or beside a node."""

    text: str
    size: int
    at: NodeBox  # Room that it takes

    @classmethod
    def centred(cls, text: str, size: int, x: float, y: float) -> NodeLabel:
        """A label around a point."""
        return cls(text, size, NodeBox(x, y, text_width(text, size), size * 1.1))

    def moved(self, dx: float, dy: float) -> NodeLabel:
        """The same label elsewhere."""
        return NodeLabel(self.text, self.size, self.at.moved(dx, dy))


@dataclass(frozen=True, slots=True)
class DrawingLayout:
    """A finished layout; nodes are drawn ones."""

    width: float  # Width of the drawing
    height: float  # Its height
    place: dict[int, NodeBox]  # Place of each node
    labels: dict[int, NodeLabel]  # Label of each node
    routes: dict[tuple[int, int], LinkRoute]  # Way of each line, from its first end to its second
    frames: tuple[Frame, ...] = ()  # Boxes
    captions: tuple[tuple[str, Point], ...] = ()  # Names of rows, and where they begin

    def moved(
        self, dx: float, dy: float
    ) -> tuple[dict[int, NodeBox], dict[int, NodeLabel], dict[tuple[int, int], LinkRoute]]:
        """Places, labels and ways elsewhere."""
        return (
            {v: at.moved(dx, dy) for v, at in self.place.items()},
            {v: label.moved(dx, dy) for v, label in self.labels.items()},
            {pair: way.moved(dx, dy) for pair, way in self.routes.items()},
        )


@dataclass(frozen=True, slots=True)
class Band:
    """A row on the drawing, or the edge of a row of boxes towards the network."""

    number: int
    top: float
    bottom: float
    arcs_up: bool  # Links within the row are arcs above it, not below


@dataclass(slots=True)
class Sheet:
    """A drawing in the making."""

    topology: Topology
    graph: DrawnGraph
    fresh: int  # The first number that is free for ports and bends
    x: dict[int, float] = field(default_factory=dict)  # Place across of each vertex
    band: dict[int, Band] = field(default_factory=dict)  # Row of each vertex
    size: dict[int, float] = field(default_factory=dict)  # Width of each node
    labels: dict[int, tuple[str, int]] = field(default_factory=dict)  # Label of each node, and its size
    port: dict[int, int] = field(default_factory=dict)  # Port of each node that is linked outside its box
    # Vertices of each line, or of the part of it from a node to its port and from port to port
    chains: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    captions: list[tuple[str, Point]] = field(default_factory=list)
    bands: int = 0  # How many rows there are

    def add_band(self, vertices: Iterable[int], top: float, bottom: float, *, arcs_up: bool) -> None:
        """A row of vertices."""
        self.bands += 1
        band = Band(self.bands, top, bottom, arcs_up)
        self.band |= dict.fromkeys(vertices, band)

    def height(self, v: int) -> float:
        """Height of a node."""
        kind = self.topology.kind[self.graph.nodes[v].members[0]]
        return BAR_HEIGHT if kind == NodeKind.SWITCH else HEIGHT

    def arc_room(self, nodes: Sequence[int]) -> float:
        """Room for arcs beside a row."""
        inside = set(nodes)
        at = {v: place for place, v in enumerate(sorted(nodes, key=self.x.__getitem__))}
        depths = [
            arc_depth(self.x[a], self.x[b])
            for a, b in self.graph.links
            if a in inside and b in inside and abs(at[a] - at[b]) > 1
        ]
        return max(depths) + 4 if depths else 0.0


def arc_depth(a: float, b: float) -> float:
    """How far an arc between two places goes off its row."""
    return _ARC + _MOST_ARC * (1 - exp(-abs(a - b) / _ARC_WIDTH))
