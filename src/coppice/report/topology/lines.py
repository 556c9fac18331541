"""Route the links of a drawing: upright past rows, straight between them, arcs within a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from coppice.report.topology.geometry import LinkRoute, Point
from coppice.report.topology.sheet import WIDE, Sheet, arc_depth

_INSET = 5.0
_APART = 9.0
"""Room between the corner of a node and its lines, and between two lines at a node, at most."""

_UPRIGHT = 3.0
"""How far lines are upright beyond a row, so that slanting ones do not graze its nodes."""

_ARC_CONTROL = 0.75
"""Depth of a cubic curve whose inner points lie at depth 1."""


def routes(sheet: Sheet) -> dict[tuple[int, int], LinkRoute]:
    """The way of every line of a drawing whose vertices have their places."""
    ways = {pair: _way(sheet, *pair) for pair in sheet.graph.links}
    ends = _ends(sheet, {pair: way for pair, way in ways.items() if way is not None})
    found = {}
    for pair, way in ways.items():
        found[pair] = _beside(sheet, *pair) if way is None else _drawn(sheet, pair, way, ends)
    return found


def _way(sheet: Sheet, a: int, b: int) -> list[int] | None:
    """The vertices of a line from end to end; None where the ends are next to each other in a row."""
    if (a, b) in sheet.chains:
        chain = sheet.chains[a, b]
        start = _inner(sheet, a, chain[0])
        return [*start, *chain, *reversed(_inner(sheet, b, chain[-1]))]
    if (b, a) in sheet.chains:
        way = _way(sheet, b, a)
        return None if way is None else way[::-1]
    if sheet.graph.nodes[a].group != sheet.graph.nodes[b].group:
        p, q = sheet.port[a], sheet.port[b]
        return [*_inner(sheet, a, p), p, q, *reversed(_inner(sheet, b, q))]
    row = sorted((v for v in sheet.size if sheet.band[v] is sheet.band[a]), key=sheet.x.__getitem__)
    return None if abs(row.index(a) - row.index(b)) == 1 else [a, b]


def _inner(sheet: Sheet, v: int, port: int) -> list[int]:
    """The vertices from a node up to its port."""
    return [] if v == port else sheet.chains[v, port][:-1]


def _is_arc(sheet: Sheet, v: int, w: int) -> bool:
    return sheet.band[v] is sheet.band[w]


_Ends = dict[tuple[tuple[int, int], int], Point]
"""Where each line meets each of its two ends."""


def _ends(sheet: Sheet, ways: dict[tuple[int, int], list[int]]) -> _Ends:
    """Lines spread over the sides of nodes, in the order in which they leave."""
    sides: dict[tuple[int, bool], list[tuple[tuple[int, float], tuple[int, int]]]] = defaultdict(list)
    for pair, way in ways.items():
        for v, w in ((way[0], way[1]), (way[-1], way[-2])):
            x = sheet.x[w]
            if _is_arc(sheet, v, w):
                down = not sheet.band[v].arcs_up
                # Of arcs to one side the far ones begin further in: arcs from one node never cross.
                order = (0 if x < sheet.x[v] else 2, -x)
            else:
                down = sheet.band[w].top > sheet.band[v].top
                order = (1, x)
            sides[v, down].append((order, pair))
    found: _Ends = {}
    for (v, down), lines in sides.items():
        lines.sort()
        middle, wide = sheet.x[v], sheet.size[v]
        y = _edge(sheet, v, down=down)
        step = (wide - 2 * _INSET) / max(len(lines) - 1, 1)
        over = all(abs(x - middle) <= wide / 2 - _INSET for (kind, x), _ in lines if kind == 1)
        upright = wide > WIDE and over
        if not (wide > WIDE and len(lines) > 2):
            step = min(step, _APART)
        for at, ((kind, x), pair) in enumerate(lines):
            place = x if upright and kind == 1 else middle + (at - (len(lines) - 1) / 2) * step
            found[pair, v] = (place, y)
    return found


def _edge(sheet: Sheet, v: int, *, down: bool) -> float:
    band = sheet.band[v]
    middle = (band.top + band.bottom) / 2
    return middle + (1 if down else -1) * sheet.height(v) / 2


def _drawn(sheet: Sheet, pair: tuple[int, int], way: Sequence[int], ends: _Ends) -> LinkRoute:
    """A line along its vertices."""
    route: LinkRoute | None = None
    points: list[Point] = [ends[pair, way[0]]]
    for v, w in pairwise(way):
        start = points[-1]
        target = ends.get((pair, w), (sheet.x[w], 0.0))
        if _is_arc(sheet, v, w):
            up = sheet.band[v].arcs_up
            y = sheet.band[w].top if up else sheet.band[w].bottom
            target = ends.get((pair, w), (sheet.x[w], y))
            depth = (-1 if up else 1) * arc_depth(start[0], target[0]) / _ARC_CONTROL
            arc = LinkRoute(start, (((start[0], start[1] + depth), (target[0], target[1] + depth), target),))
            before = LinkRoute.through(points)
            route = (
                arc if route is None and not before.pieces else (before.then(arc) if route is None else route)
            )
            points = [target]
            continue
        down = sheet.band[w].top > sheet.band[v].top
        leave = sheet.band[v].bottom + _UPRIGHT if down else sheet.band[v].top - _UPRIGHT
        enter = sheet.band[w].top - _UPRIGHT if down else sheet.band[w].bottom + _UPRIGHT
        points += [(start[0], leave), (target[0], enter)]
        if (pair, w) in ends:
            points.append(target)
    rest = LinkRoute.through(points)
    if route is None:
        return rest
    return route.then(rest) if rest.pieces else route


def _beside(sheet: Sheet, a: int, b: int) -> LinkRoute:
    """The line between two nodes that are next to each other in a row."""
    left, right = sorted((a, b), key=sheet.x.__getitem__)
    y = (sheet.band[a].top + sheet.band[a].bottom) / 2
    start = (sheet.x[left] + sheet.size[left] / 2, y)
    end = (sheet.x[right] - sheet.size[right] / 2, y)
    return LinkRoute.through([start, end] if left == a else [end, start])
