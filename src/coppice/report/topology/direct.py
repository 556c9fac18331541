"""Positions of directly linked GPUs: a grid where they form one, otherwise a circle.

On a grid, links to a neighbour are straight; those that close a ring, or lead to another slice of a third dimension,
are arcs beside their row or column. On a circle no line comes near a label: the nodes that a line passes lie beside it,
or, where they are too many for that, their labels lie outside the circle.
"""

from __future__ import annotations

from itertools import combinations
from math import cos, pi, sin

import numpy as np

from coppice.report.svg import text_width
from coppice.report.topology.block import LARGE, ways_to_write
from coppice.report.topology.folding import DrawnGraph
from coppice.report.topology.geometry import LinkRoute, NodeBox, Point
from coppice.report.topology.sheet import HEIGHT, DrawingLayout, Frame, NodeLabel
from coppice.topology.model import NodeKind, Topology

MOST_COLUMNS = 32
MOST_ROWS = 12
"""Columns of a grid, those of all slices together, and rows, of which a larger one shows a corner."""

MOST_ROUND = 72
"""Nodes of a circle, where they are too many to be drawn whole."""

_WIDTH = 1060.0
_PAD = 18.0
_MOST_STEP = 96.0
_SLICES = 26.0
"""Width and padding of a grid; distance of two columns at most; additional room between two slices."""

_ARC, _MOST_ARC = 13.0, 34.0
_LANE = 4.0
_BESIDE = 7.0
"""Depth of arcs, and at most; distance of arcs side by side; how far beside the middle of a node they begin."""

_HEAD = 24.0
"""Height of the name of a frame."""

_DOT = 11.0
_LEAST_RADIUS, _LEAST_DOTTED, _MOST_RADIUS = 76.0, 150.0, 470.0
"""Size of a node whose label is beside it; radius of a circle, and of one of such nodes."""


def is_direct(topology: Topology) -> bool:
    """Nothing but GPUs of at most one box."""
    return bool((topology.kind == NodeKind.GPU).all()) and len(set(topology.host.tolist())) < 2


def drawn_part(topology: Topology) -> list[int]:
    """Nodes of a large one that are drawn: the corner of a grid, or the first ones."""
    nodes = list(range(topology.num_nodes))
    grid = grid_shape(topology, nodes)
    if grid is None:
        return nodes[:MOST_ROUND]
    depth, rows, columns = grid
    columns_kept, rows_kept = min(columns, MOST_COLUMNS // 2), min(rows, MOST_ROWS)
    slices = max(1, min(depth, MOST_COLUMNS // 2 // columns_kept))
    return [
        nodes[(z * rows + y) * columns + x]
        for z in range(slices)
        for y in range(rows_kept)
        for x in range(columns_kept)
    ]


def direct(topology: Topology, graph: DrawnGraph) -> DrawingLayout:
    """Lay out GPUs that are linked with each other.

    Examples:
        >>> from coppice.report.topology.folding import fold
        >>> from coppice.report.topology.folding import structure_of
        >>> from coppice.topology.presets import preset
        >>> torus = preset("torus", dims=(3, 4))
        >>> layout = direct(torus, fold(torus, structure_of(torus), [0] * 12))
        >>> len({at.x for at in layout.place.values()}), len({at.y for at in layout.place.values()})
        (4, 3)
    """
    nodes = [node.members[0] for node in graph.nodes]
    grid = grid_shape(topology, nodes)
    found = None if grid is None else _on_grid(graph, grid)
    return _framed(graph, found or _on_circle(graph))


def _framed(graph: DrawnGraph, layout: DrawingLayout) -> DrawingLayout:
    """The drawing inside the frame of its box, if it has one."""
    name = next(iter(graph.frames.values()), None)
    if name is None:
        return layout
    width, height = layout.width, layout.height + _HEAD
    frame = Frame(1, 1, width - 2, height - 2, name, (10, 17))
    return DrawingLayout(width, height, *layout.moved(0, _HEAD), (frame,))


def _on_grid(graph: DrawnGraph, grid: tuple[int, int, int]) -> DrawingLayout | None:
    """Slices side by side, each a grid; None where there is no room for so many columns."""
    depth, rows, columns = grid
    if depth * columns > MOST_COLUMNS:
        return None
    step = min((_WIDTH - (depth - 1) * _SLICES) / (depth * columns), _MOST_STEP)
    for _, labels, size in ways_to_write([node.label for node in graph.nodes]):
        wide = max(max(text_width(label, size) for label in labels) + 8, 20.0)
        if wide <= step - 16:
            break
    else:
        return None
    place: dict[int, NodeBox] = {}
    spot: dict[int, tuple[int, int, int]] = {}
    for v in range(len(graph.nodes)):
        z, rest = divmod(v, rows * columns)
        y, x = divmod(rest, columns)
        spot[v] = (z, y, x)
    arcs = {pair: _depth(spot, pair, columns, step) for pair in graph.links}
    above = max((deep for pair, deep in arcs.items() if _above(spot, pair)), default=0.0)
    below = max((deep for pair, deep in arcs.items() if _below(spot, pair)), default=0.0)
    down = HEIGHT + max(above + below + 14, 40.0)
    for v, (z, y, x) in spot.items():
        across = _PAD + z * (step * columns + _SLICES) + (x + 0.5) * step
        place[v] = NodeBox(across, _PAD + above + y * down + HEIGHT / 2, wide, HEIGHT)
    routes = {pair: _on_grid_route(place, spot, pair, arcs[pair], step) for pair in graph.links}
    width = 2 * _PAD + depth * step * columns + (depth - 1) * _SLICES
    height = 2 * _PAD + above + below + (rows - 1) * down + HEIGHT
    texts = {v: NodeLabel.centred(label, size, place[v].x, place[v].y) for v, label in enumerate(labels)}
    return DrawingLayout(max(width, 320.0), height, place, texts, routes)


def _above(spot: dict[int, tuple[int, int, int]], pair: tuple[int, int]) -> bool:
    """A link that closes a ring of a row."""
    (z, y, x), (to_z, to_y, to_x) = spot[pair[0]], spot[pair[1]]
    return z == to_z and y == to_y and abs(x - to_x) > 1


def _below(spot: dict[int, tuple[int, int, int]], pair: tuple[int, int]) -> bool:
    """A link from slice to slice."""
    return spot[pair[0]][0] != spot[pair[1]][0]


def _depth(spot: dict[int, tuple[int, int, int]], pair: tuple[int, int], columns: int, step: float) -> float:
    """Depth of an arc; from slice to slice every column has its own, so that they do not lie over each other."""
    (z, _, x), (to_z, _, to_x) = spot[pair[0]], spot[pair[1]]
    if z == to_z:
        return min(_ARC + 0.05 * step * abs(x - to_x), _MOST_ARC)
    return _ARC + _LANE * (x + (columns if abs(z - to_z) > 1 else 0))


def _on_grid_route(
    place: dict[int, NodeBox],
    spot: dict[int, tuple[int, int, int]],
    pair: tuple[int, int],
    depth: float,
    step: float,
) -> LinkRoute:
    """A straight line to a neighbour, or an arc."""
    v, w = sorted(pair, key=lambda each: (place[each].y, place[each].x))
    p, q = place[v], place[w]
    if _above(spot, pair) or _below(spot, pair):
        up = _above(spot, pair)
        start = (p.x + _BESIDE, p.top if up else p.bottom)
        end = (q.x - _BESIDE, q.top if up else q.bottom)
        deep = (-1 if up else 1) * depth / 0.75
        way = LinkRoute(start, (((start[0], start[1] + deep), (end[0], end[1] + deep), end),))
    elif p.y == q.y:
        way = LinkRoute.through([(p.right, p.y), (q.left, q.y)])
    elif abs(spot[v][1] - spot[w][1]) == 1:
        way = LinkRoute.through([(p.x, p.bottom), (q.x, q.top)])
    else:
        out = min(step - p.width - 6, 18.0) / 0.75
        start, end = (p.right, p.y + 5), (q.right, q.y - 5)
        way = LinkRoute(start, (((start[0] + out, start[1]), (end[0] + out, end[1]), end),))
    return way if v == pair[0] else way.backwards()


def _on_circle(graph: DrawnGraph) -> DrawingLayout:
    """Nodes around a circle with their labels inside them, or beside them where a line would come near a label."""
    names = [node.label for node in graph.nodes]
    count = len(names)
    wide = max(max(text_width(name, LARGE) for name in names) + 10, 26.0)
    radius = max(count * (wide + 16) / (2 * pi), _LEAST_RADIUS)
    if radius <= 220:
        ring = [NodeBox(*_around(at, count, radius), wide, HEIGHT) for at in range(count)]
        labels = [NodeLabel.centred(name, LARGE, at.x, at.y) for name, at in zip(names, ring, strict=True)]
        found = _straight(graph, ring)
        if not _crowded(ring) and not _struck(found, ring):
            return _fitted_around(ring, labels, found)
    radius = min(max(count * 12 / (2 * pi), _LEAST_DOTTED, _clear_radius(graph, count)), _MOST_RADIUS)
    for _, written, size in ways_to_write(names):
        around = radius
        while around <= _MOST_RADIUS:
            labels = [_outside(name, size, at, count, around) for at, name in enumerate(written)]
            if not _crowded([each.at for each in labels]):
                break
            around *= 1.12
        else:
            continue
        break
    around = min(around, _MOST_RADIUS)
    ring = [NodeBox(*_around(at, count, around), _DOT, _DOT) for at in range(count)]
    return _fitted_around(ring, labels, _straight(graph, ring))


def _clear_radius(graph: DrawnGraph, count: int) -> float:
    """The radius from which on no line comes near a node that it does not end at."""
    at = np.array([_around(v, count, 1.0) for v in range(count)])
    least = 2.0
    for a, b in graph.links:
        way = at[b] - at[a]
        off = np.abs(way[0] * (at[:, 1] - at[a, 1]) - way[1] * (at[:, 0] - at[a, 0])) / np.hypot(*way)
        least = min(least, float(np.delete(off, [a, b]).min(initial=2.0)))
    return _DOT / max(least, 0.001)


def _around(at: int, count: int, radius: float) -> Point:
    angle = 2 * pi * (at + 0.5) / count
    return radius * sin(angle), -radius * cos(angle)


def _outside(name: str, size: int, at: int, count: int, radius: float) -> NodeLabel:
    """A label next to a node, away from the middle of the circle."""
    x, y = _around(at, count, radius)
    wide, high = text_width(name, size), size * 1.1
    return NodeLabel.centred(
        name, size, x + x / radius * (_DOT + wide / 2), y + y / radius * (_DOT + high / 2)
    )


def _straight(graph: DrawnGraph, ring: list[NodeBox]) -> dict[tuple[int, int], LinkRoute]:
    """Straight lines from edge to edge."""
    return {
        (a, b): LinkRoute.through([_edge(ring[a], ring[b]), _edge(ring[b], ring[a])]) for a, b in graph.links
    }


def _edge(box: NodeBox, other: NodeBox) -> Point:
    """Where the line between the middles of two boxes leaves the first."""
    dx, dy = other.x - box.x, other.y - box.y
    share = min(
        box.width / 2 / abs(dx) if dx else 1.0,
        box.height / 2 / abs(dy) if dy else 1.0,
        0.5,
    )
    return box.x + share * dx, box.y + share * dy


def _crowded(boxes: list[NodeBox]) -> bool:
    return any(p.overlaps(q, 2.0) for p, q in combinations(boxes, 2))


def _struck(routes: dict[tuple[int, int], LinkRoute], ring: list[NodeBox]) -> bool:
    """Some line passes a node that it does not end at."""
    return any(
        way.crosses(box, 2.0) for pair, way in routes.items() for v, box in enumerate(ring) if v not in pair
    )


def _fitted_around(
    ring: list[NodeBox], labels: list[NodeLabel], found: dict[tuple[int, int], LinkRoute]
) -> DrawingLayout:
    """The circle in the middle of a drawing."""
    boxes = [*ring, *(each.at for each in labels)]
    wide = max(max(abs(box.left), abs(box.right)) for box in boxes) * 2 + 2 * _PAD
    wide = max(wide, 320.0)
    dx, dy = wide / 2, _PAD - min(box.top for box in boxes)
    height = max(box.bottom for box in boxes) + dy + _PAD

    around = DrawingLayout(wide, height, dict(enumerate(ring)), dict(enumerate(labels)), found)
    return DrawingLayout(wide, height, *around.moved(dx, dy))


def grid_shape(topology: Topology, nodes: list[int]) -> tuple[int, int, int] | None:
    """(slices, rows, columns) of a row-major grid or torus, or None.

    Among several the one with the fewest slices and the most even sides.
    """
    count = len(nodes)
    index = np.full(topology.num_nodes, -1)
    index[nodes] = np.arange(count)
    a, b = index[topology.src], index[topology.dst]
    a, b = a[(a >= 0) & (b >= 0)], b[(a >= 0) & (b >= 0)]
    if len(a) < 2 * (count - 1):
        return None
    found = []
    for depth in range(1, min(count, 16) + 1):
        for rows in range(2, count // depth + 1):
            columns = count // depth // rows
            if (
                columns > 1
                and depth * rows * columns == count
                and _joins_neighbours(a, b, (depth, rows, columns))
            ):
                found.append((depth, abs(rows - columns), rows, columns))
    if not found:
        return None
    depth, _, rows, columns = min(found)
    return depth, rows, columns


def _joins_neighbours(a: np.ndarray, b: np.ndarray, shape: tuple[int, int, int]) -> bool:
    """Every link changes one coordinate, by one or from end to end, and every two neighbours are linked."""
    at, to = np.unravel_index(a, shape), np.unravel_index(b, shape)
    change = np.zeros(len(a), dtype=np.int64)
    steps = 0
    for axis, size in enumerate(shape):
        apart = np.abs(at[axis] - to[axis])
        change += np.where((apart == 0) | (apart == 1) | (apart == size - 1), (apart > 0).astype(np.int64), 9)
        steps += (size - 1) * (shape[0] * shape[1] * shape[2] // size)
    straight = np.abs(a - b)
    strides = {shape[1] * shape[2], shape[2], 1}
    return bool((change == 1).all()) and int(np.isin(straight, list(strides)).sum()) >= 2 * steps
