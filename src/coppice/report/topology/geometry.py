"""Geometry of drawings: boxes, link routes, intersections and convex hulls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import hypot

from coppice.report.svg import number

Point = tuple[float, float]

_STEPS = 24
"""Straight pieces that stand for a curve where it is measured."""

_CORNER = 5.0
"""Radius of the corners of a line."""


@dataclass(frozen=True, slots=True)
class NodeBox:
    """Centre and size of a node or of a label."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> float:
        """Its left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        """Its upper edge."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height / 2

    def moved(self, dx: float, dy: float) -> NodeBox:
        """The same box elsewhere."""
        return NodeBox(self.x + dx, self.y + dy, self.width, self.height)

    def corners(self, room: float = 0.0) -> list[Point]:
        """Its corners, with room around it."""
        left, right, top, bottom = self.left - room, self.right + room, self.top - room, self.bottom + room
        return [(left, top), (right, top), (right, bottom), (left, bottom)]

    def overlaps(self, other: NodeBox, room: float = 0.0) -> bool:
        """Whether two boxes share a point, or come nearer than ``room`` in both directions."""
        return (
            abs(self.x - other.x) < (self.width + other.width) / 2 + room
            and abs(self.y - other.y) < (self.height + other.height) / 2 + room
        )


@dataclass(frozen=True)
class LinkRoute:
    """The way of a link on the drawing: where it begins, and pieces that are straight (one point) or cubic (three)."""

    start: Point
    pieces: tuple[tuple[Point, ...], ...]

    @classmethod
    def through(cls, points: Sequence[Point]) -> LinkRoute:
        """Straight from point to point."""
        kept = [points[0], *(q for p, q in pairwise(points) if hypot(q[0] - p[0], q[1] - p[1]) > 0.05)]
        return cls(kept[0], tuple((point,) for point in kept[1:]))

    @property
    def end(self) -> Point:
        """Where it ends."""
        return self.pieces[-1][-1] if self.pieces else self.start

    def then(self, other: LinkRoute) -> LinkRoute:
        """This way, and another from its end on."""
        return LinkRoute(self.start, (*self.pieces, (other.start,), *other.pieces))

    def moved(self, dx: float, dy: float) -> LinkRoute:
        """The same way elsewhere."""
        pieces = tuple(tuple((x + dx, y + dy) for x, y in piece) for piece in self.pieces)
        return LinkRoute((self.start[0] + dx, self.start[1] + dy), pieces)

    def backwards(self) -> LinkRoute:
        """The same way from its end."""
        starts = [self.start, *(piece[-1] for piece in self.pieces[:-1])]
        pieces = [(*reversed(piece[:-1]), start) for start, piece in zip(starts, self.pieces, strict=True)]
        return LinkRoute(self.end, tuple(reversed(pieces)))

    @property
    def path(self) -> str:
        """The way as the ``d`` of a path, its corners rounded."""
        words = [f"M{_written(self.start)}"]
        before = self.start
        for at, piece in enumerate(self.pieces):
            after = self.pieces[at + 1] if at + 1 < len(self.pieces) else ()
            if len(piece) == 1 and len(after) == 1:
                words += _rounded(before, piece[0], after[0])
            else:
                words.append(f"{'L' if len(piece) == 1 else 'C'}{' '.join(map(_written, piece))}")
            before = piece[-1]
        return "".join(words)

    @cached_property
    def flat(self) -> list[Point]:
        """Points along the way, between which it is straight."""
        points = [self.start]
        for piece in self.pieces:
            if len(piece) == 1:
                points.append(piece[0])
            else:
                points += [_cubic(points[-1], piece, step / _STEPS) for step in range(1, _STEPS)] + [
                    piece[-1]
                ]
        return points

    def crosses(self, box: NodeBox, room: float = 0.0) -> bool:
        """Whether the way passes through a box, or comes nearer than ``room``."""
        return any(meets(p, q, box, room) for p, q in pairwise(self.flat))

    def at(self, along: float) -> tuple[Point, Point]:
        """The point at a share of its length, and the direction there (of length 1)."""
        lengths = [hypot(q[0] - p[0], q[1] - p[1]) for p, q in pairwise(self.flat)]
        left = along * sum(lengths)
        for (p, q), length in zip(pairwise(self.flat), lengths, strict=True):
            if length and left <= length:
                way = ((q[0] - p[0]) / length, (q[1] - p[1]) / length)
                return (p[0] + left * way[0], p[1] + left * way[1]), way
            left -= length
        return self.end, (1.0, 0.0)

    def stroke_across(self, along: float, length: float = 5.0) -> tuple[Point, Point]:
        """The ends of a short stroke across the way."""
        (x, y), (dx, dy) = self.at(along)
        return (x + length * dy, y - length * dx), (x - length * dy, y + length * dx)


def meets(p: Point, q: Point, box: NodeBox, room: float = 0.0) -> bool:
    """Whether a straight line comes into a box with some room around it (clipping of Liang and Barsky).

    >>> meets((0, 0), (10, 10), NodeBox(5, 5, 2, 2)), meets((0, 0), (10, 0), NodeBox(5, 5, 2, 2))
    (True, False)
    """
    low, high = 0.0, 1.0
    for start, way, least, most in (
        (p[0], q[0] - p[0], box.left - room, box.right + room),
        (p[1], q[1] - p[1], box.top - room, box.bottom + room),
    ):
        if not way:
            if not least < start < most:
                return False
            continue
        first, last = sorted(((least - start) / way, (most - start) / way))
        low, high = max(low, first), min(high, last)
    return low < high


def hull(points: Iterable[Point]) -> list[Point]:
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


def _written(point: Point) -> str:
    return f"{number(point[0])} {number(point[1])}"


def _cubic(start: Point, piece: tuple[Point, ...], along: float) -> Point:
    """A point of a cubic Bezier curve."""
    rest = 1 - along
    weights = (rest**3, 3 * rest**2 * along, 3 * rest * along**2, along**3)
    x = sum(weight * point[0] for weight, point in zip(weights, (start, *piece), strict=True))
    y = sum(weight * point[1] for weight, point in zip(weights, (start, *piece), strict=True))
    return x, y


def _rounded(before: Point, corner: Point, after: Point) -> list[str]:
    """Up to a corner, and around it."""
    ends = []
    for other in (before, after):
        length = hypot(other[0] - corner[0], other[1] - corner[1])
        cut = min(_CORNER, length / 2)
        share = cut / length if length else 0.0
        ends.append((corner[0] + share * (other[0] - corner[0]), corner[1] + share * (other[1] - corner[1])))
    return [f"L{_written(ends[0])}", f"Q{_written(corner)} {_written(ends[1])}"]
