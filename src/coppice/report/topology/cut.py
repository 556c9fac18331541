"""Draw a cut: a line around one of its sides, through the links that it cuts, and its name beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot

import numpy as np
from numpy.typing import NDArray

from coppice.report.svg import number, text_width
from coppice.report.topology.geometry import LinkRoute, NodeBox, Point, hull, meets
from coppice.report.topology.sheet import DrawingLayout

_LEAST_ROOM = 4.0
_FRAME_ROOM = 4.0
"""Room between a node, or a frame all of whose nodes are on one side, and the line around that side."""

_CELL = 2.0
"""Size of the squares in which areas are measured."""

_STRIP = 3.0
"""Half the width of the area along a line whose ends are on the encircled side."""

_SMOOTH = 1.8
"""How far the outline of an area may be moved to make it straight."""

_TURN = 6.0
"""Radius of the corners of the line."""

_NEAR = 16.0
"""A name further off is joined with its line."""

_CLOSE = 120.0
"""How far from the line a place for its name is looked for first."""

NAME = "bottleneck cut"
_SIZE = 11.0


@dataclass(frozen=True, slots=True)
class CutLine:
    """The line of a cut."""

    loops: tuple[tuple[Point, ...], ...]  # Closed lines, each without its first point at the end
    name_at: NodeBox | None  # Where its name has room
    leader: tuple[Point, Point] | None  # From the name to the line, where it is not close by

    @property
    def path(self) -> str:
        """The line as the ``d`` of a path, its corners rounded."""
        return "".join(_rounded_loop(loop) for loop in self.loops)

    def inside(self, point: Point) -> bool:
        """Whether a point is on the encircled side."""
        x, y = point
        odd = False
        for loop in self.loops:
            for (ax, ay), (bx, by) in zip(loop, (*loop[1:], loop[0]), strict=True):
                if (ay > y) != (by > y) and x < ax + (y - ay) / (by - ay) * (bx - ax):
                    odd = not odd
        return odd

    def crossed_by(self, way: LinkRoute) -> float:
        """Share of the way at which a line first crosses; the middle if it does not."""
        steps = [step / 100 for step in range(101)]
        inside = [self.inside(way.at(step)[0]) for step in steps]
        for before, after, step in zip(inside, inside[1:], steps, strict=False):
            if before != after:
                return step + 0.005
        return 0.5


def cut_line(layout: DrawingLayout, side: Collection[int], other: Collection[int]) -> CutLine | None:
    """The line around the side with fewer nodes; None where a side has none on the drawing.

    Args:
        side: Drawn nodes of one side.
        other: Those of the other side.
    """
    ours = [v for v in layout.place if v in side]
    theirs = [v for v in layout.place if v in other]
    if not ours or not theirs:
        return None
    if len(theirs) < len(ours):
        ours, theirs = theirs, ours
    loops = _around(layout, ours, theirs)
    name_at = _free_place(layout, loops)
    leader = None
    if name_at is not None:
        near, edge = _nearest(name_at, loops)
        if hypot(near[0] - edge[0], near[1] - edge[1]) > _NEAR:
            leader = (edge, near)
    return CutLine(loops, name_at, leader)


def _around(
    layout: DrawingLayout, ours: Sequence[int], theirs: Sequence[int]
) -> tuple[tuple[Point, ...], ...]:
    """The hull of some nodes where it holds no others, otherwise an outline of them and of the lines between them."""
    others = [box for v in theirs for box in (layout.place[v], layout.labels[v].at)]
    for room, framed in ((9.0, True), (9.0, False), (6.0, False), (4.0, False)):
        outline = hull(corner for box in _boxes(layout, ours, framed=framed, room=room) for corner in box)
        edges = list(pairwise([*outline, outline[0]]))
        line = CutLine((tuple(outline),), None, None)
        if not any(
            line.inside((box.x, box.y)) or any(meets(p, q, box, 1.0) for p, q in edges) for box in others
        ):
            return (tuple(outline),)
    area = Area(layout.width, layout.height)
    inside = set(ours)
    for v in ours:
        area.add_box(layout.place[v], _LEAST_ROOM)
        area.add_box(layout.labels[v].at, _LEAST_ROOM + 1)
    for pair, way in layout.routes.items():
        if inside.issuperset(pair):
            area.add_line(way.flat, _STRIP)
    for box in others:
        area.add_box(box, _CELL, inside=False)
    return area.outlines()


def _boxes(layout: DrawingLayout, nodes: Sequence[int], *, framed: bool, room: float) -> list[list[Point]]:
    """Corners of what a line goes around: frames of which all nodes are ours, other nodes, and their labels."""
    ours = set(nodes)
    found = []
    for frame in layout.frames if framed else ():
        at = frame.box
        inside = {v for v, place in layout.place.items() if at.overlaps(place)}
        if inside <= ours:
            found.append(at.corners(_FRAME_ROOM))
            ours -= inside
    for v in sorted(ours):
        found += [layout.place[v].corners(room), layout.labels[v].at.corners(_LEAST_ROOM)]
    return found


def names_on(layout: DrawingLayout) -> list[NodeBox]:
    """Room that names of boxes and rows take."""
    found = []
    for frame in layout.frames:
        wide = text_width(frame.name, _SIZE) * 1.06
        x, y = frame.name_at
        found.append(NodeBox(x + wide / 2, y - 4, wide, 13))
    for words, (x, y) in layout.captions:
        wide = text_width(words, 9)
        found.append(NodeBox(x + wide / 2, y - 3, wide, 11))
    return found


def _free_place(layout: DrawingLayout, loops: Sequence[Sequence[Point]]) -> NodeBox | None:
    """The place nearest to the line where its name lies over nothing."""
    wide, high = text_width(NAME, _SIZE) * 1.06 + 4, _SIZE + 3
    area = Area(layout.width, layout.height)
    for box in (*layout.place.values(), *(label.at for label in layout.labels.values()), *names_on(layout)):
        area.add_box(box, 2.0)
    for way in layout.routes.values():
        area.add_line(way.flat, 2.0)
    for loop in loops:
        area.add_line([*loop, loop[0]], 2.0)
    for frame in layout.frames:
        corners = frame.box.corners()
        area.add_line([*corners, corners[0]], 1.0)
    places = area.free(wide, high)
    fits = (places[:, 0] <= layout.width - wide / 2 - 2) & (places[:, 1] <= layout.height - high / 2 - 2)
    points = np.array([point for loop in loops for point in _dense([*loop, loop[0]], 10.0)])
    low, most = points.min(axis=0) - _CLOSE, points.max(axis=0) + _CLOSE
    close = fits & (places >= low).all(axis=1) & (places <= most).all(axis=1)
    places = places[close if close.any() else fits]
    if not len(places):
        return None
    dx = np.maximum(np.abs(places[:, None, 0] - points[None, :, 0]) - wide / 2, 0)
    dy = np.maximum(np.abs(places[:, None, 1] - points[None, :, 1]) - high / 2, 0)
    order = np.argsort(np.hypot(dx, dy).min(axis=1).round(1), kind="stable").tolist()
    line = CutLine(tuple(map(tuple, loops)), None, None)
    x, y = next((places[at].tolist() for at in order if not line.inside(places[at].tolist())), (0.0, 0.0))
    return NodeBox(x, y, wide, high) if x else None


def _nearest(box: NodeBox, loops: Sequence[Sequence[Point]]) -> tuple[Point, Point]:
    """The point of a line that is nearest to a box, and the one of the box that is nearest to it."""
    found = []
    for loop in loops:
        for x, y in _dense([*loop, loop[0]], 3.0):
            edge = (min(max(x, box.left), box.right), min(max(y, box.top), box.bottom))
            found.append((round(hypot(x - edge[0], y - edge[1]), 1), (x, y), edge))
    _, near, edge = min(found)
    return near, edge


def _dense(points: Iterable[Point], step: float) -> list[Point]:
    """Points along straight lines, at most a step apart."""
    listed = list(points)
    found = listed[:1]
    for (px, py), (qx, qy) in pairwise(listed):
        pieces = max(int(hypot(qx - px, qy - py) / step), 1)
        found += [(px + (qx - px) * at / pieces, py + (qy - py) * at / pieces) for at in range(1, pieces + 1)]
    return found


class Area:
    """A part of a drawing, measured in small squares."""

    def __init__(self, width: float, height: float) -> None:
        self.cells: NDArray[np.bool_] = np.zeros(
            (int(height / _CELL) + 2, int(width / _CELL) + 2), dtype=bool
        )

    def add_box(self, box: NodeBox, room: float, *, inside: bool = True) -> None:
        """Add a box with room around it, or take it away."""
        rows = slice(max(int((box.top - room) / _CELL), 0), max(int((box.bottom + room) / _CELL) + 1, 0))
        columns = slice(max(int((box.left - room) / _CELL), 0), max(int((box.right + room) / _CELL) + 1, 0))
        self.cells[rows, columns] = inside

    def add_line(self, points: Sequence[Point], room: float) -> None:
        """Add a line with room on both sides."""
        at = (np.array(_dense(points, _CELL)) / _CELL).astype(np.int64)
        reach = round(room / _CELL)
        for down in range(-reach, reach + 1):
            for across in range(-reach, reach + 1):
                rows = np.clip(at[:, 1] + down, 0, self.cells.shape[0] - 1)
                self.cells[rows, np.clip(at[:, 0] + across, 0, self.cells.shape[1] - 1)] = True

    def free(self, width: float, height: float) -> NDArray[np.float64]:
        """Centres of places for a box of a size that hold nothing of the area."""
        wide, high = int(width / _CELL) + 1, int(height / _CELL) + 1
        sums = np.zeros((self.cells.shape[0] + 1, self.cells.shape[1] + 1), dtype=np.int64)
        sums[1:, 1:] = self.cells.cumsum(axis=0).cumsum(axis=1)
        taken = sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
        corners = np.argwhere(taken == 0)[:, ::-1]
        found = corners[(corners % 3 == 0).all(axis=1)]
        centres: NDArray[np.float64] = found * _CELL + np.array([width / 2, height / 2])
        return centres

    def outlines(self) -> tuple[tuple[Point, ...], ...]:
        """Closed lines around the area.

        >>> area = Area(40, 40)
        >>> area.add_box(NodeBox(20, 20, 10, 10), 0)
        >>> area.outlines()
        (((14.0, 14.0), (26.0, 14.0), (26.0, 26.0), (14.0, 26.0)),)
        """
        cells = np.pad(self.cells, 1)
        after: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        # Each side of a cell that borders on nothing, the area to its right.
        for rows, columns, first, second in (
            (-1, 0, (0, 0), (0, 1)),
            (0, 1, (0, 1), (1, 1)),
            (1, 0, (1, 1), (1, 0)),
            (0, -1, (1, 0), (0, 0)),
        ):
            border = cells & ~np.roll(cells, (-rows, -columns), axis=(0, 1))
            for row, column in np.argwhere(border).tolist():
                after[row + first[0], column + first[1]].append((row + second[0], column + second[1]))
        loops = []
        while after:
            start = min(after)
            loop = [start]
            while True:
                ends = after[loop[-1]]
                found = ends.pop()
                if not ends:
                    del after[loop[-1]]
                if found == start:
                    break
                loop.append(found)
            corners = [
                point
                for before, point, behind in zip(
                    (loop[-1], *loop[:-1]), loop, (*loop[1:], loop[0]), strict=True
                )
                if (before[0] == point[0]) != (point[0] == behind[0])
            ]
            points = [((column - 1) * _CELL, (row - 1) * _CELL) for row, column in corners]
            loops.append(tuple(_simple([*points, points[0]])[:-1]))
        return tuple(loops)


def _simple(points: Sequence[Point]) -> list[Point]:
    """A line without points that lie close to the straight way (Douglas and Peucker, 1973)."""
    (ax, ay), (bx, by) = points[0], points[-1]
    length = hypot(bx - ax, by - ay)
    off = [
        abs((bx - ax) * (y - ay) - (by - ay) * (x - ax)) / length if length else hypot(x - ax, y - ay)
        for x, y in points
    ]
    far = max(range(len(points)), key=off.__getitem__)
    if off[far] <= _SMOOTH:
        return [points[0], points[-1]]
    return [*_simple(points[: far + 1])[:-1], *_simple(points[far:])]


def _rounded_loop(loop: Sequence[Point]) -> str:
    """A closed line with rounded corners."""
    words: list[str] = []
    for before, corner, after in zip((loop[-1], *loop[:-1]), loop, (*loop[1:], loop[0]), strict=True):
        ends = []
        for other in (before, after):
            length = hypot(other[0] - corner[0], other[1] - corner[1]) or 1.0
            share = min(_TURN, length / 2) / length
            ends.append(
                (corner[0] + share * (other[0] - corner[0]), corner[1] + share * (other[1] - corner[1]))
            )
        (ax, ay), (bx, by) = ends
        words.append(f"{'L' if words else 'M'}{number(ax)} {number(ay)}")
        words.append(f"Q{number(corner[0])} {number(corner[1])} {number(bx)} {number(by)}")
    return f"{''.join(words)}Z"
