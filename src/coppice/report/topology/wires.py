"""How the line of a link runs between two places: straight, bowed around what is in the way, or as an S to a bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, hypot

from coppice.report.svg import number
from coppice.report.topology.direct import Place

__all__ = ["Point", "Wire", "hull", "wire", "within"]

Point = tuple[float, float]

_BAR = 70.0
"""A node wider than that is a bar: lines meet it where it is nearest to them."""

_S_HEIGHT = 130.0
"""Lines to a bar run as an S up to this height: sideways in the gap between two rows, not across the nodes in them."""


@dataclass(frozen=True, slots=True)
class Wire:
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
        """Share of the way at which the curve leaves or enters a convex outline; the middle if it does neither."""
        steps = [step / 100 for step in range(101)]
        inside = [within(outline, self.at(step)) for step in steps]
        for before, after, step in zip(inside, inside[1:], steps, strict=False):
            if before != after:
                return step
        return 0.5


def wire(place: Mapping[int, Place], a: int, b: int) -> Wire:
    """The line between two nodes."""
    p, q = place[a], place[b]
    px = _along(p, q.x) if p.width > _BAR else p.x
    qx = _along(q, px) if q.width > _BAR else q.x
    apart = abs(p.y - q.y)
    if max(p.width, q.width) > _BAR and p.height / 2 + q.height / 2 < apart < _S_HEIGHT and px != qx:
        down = 1 if q.y > p.y else -1
        py, qy = p.y + down * p.height / 2, q.y - down * q.height / 2
        middle = (py + qy) / 2
        return Wire(((px, py), (px, middle), (qx, middle), (qx, qy)))
    if not _blocked(place, (a, b), (px, p.y), (qx, q.y)):
        return Wire(((px, p.y), (qx, q.y)))
    return Wire(((px, p.y), _bow(px, p.y, qx, q.y), (qx, q.y)))


def _along(bar: Place, x: float) -> float:
    """The place on a bar that is nearest to ``x``."""
    return min(max(x, bar.x - bar.width / 2 + 8), bar.x + bar.width / 2 - 8)


def _bow(px: float, py: float, qx: float, qy: float) -> Point:
    """Where the bow between two points is drawn to: to the left of the way from the left or upper one."""
    if (qx, qy) < (px, py):
        px, py, qx, qy = qx, qy, px, py
    length = hypot(qx - px, qy - py) or 1.0
    out = min(0.28 * length, 60.0)
    return (px + qx) / 2 + out * (qy - py) / length, (py + qy) / 2 - out * (qx - px) / length


def _blocked(place: Mapping[int, Place], ends: tuple[int, int], p: Point, q: Point) -> bool:
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
