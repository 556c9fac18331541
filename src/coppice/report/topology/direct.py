"""Positions of directly linked GPUs: a grid where they form one, otherwise a circle."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi, sin

import numpy as np

from coppice.topology.model import Topology

ROW = 46.0
NODE = 24.0
"""Height of a row of nodes, and of a node."""


@dataclass(frozen=True, slots=True)
class NodeBox:
    """Centre and size of a node."""

    x: float
    y: float
    width: float
    height: float


def direct_places(
    topology: Topology, gpus: list[int], y: float, width: float, *, alone: bool
) -> tuple[dict[int, NodeBox], float] | None:
    """Positions of directly linked GPUs, and where the next row begins.

    Args:
        alone: There is nothing else in the drawing: they may form a grid, and a circle may be large.

    Returns:
        None where they are too many for the room.
    """
    grid = grid_shape(topology, gpus) if alone else None
    if grid is not None:
        return _grid_places(gpus, grid, y, width)
    for size in (46.0, 36.0, 28.0, 20.0):
        around = min(max(len(gpus) * (size + 10) / (2 * pi), 74.0), width / 2 - size / 2)
        flat = around if alone else min(around, 130.0)
        across = around if alone else min(width / 2 - size / 2, around * 1.5)
        found: dict[int, NodeBox] = {}
        for at, v in enumerate(gpus):
            angle = 2 * pi * (at + 0.5) / len(gpus)
            x, down = width / 2 + across * sin(angle), flat * (1 - cos(angle))
            found[v] = NodeBox(x, y + NODE / 2 + down, size, min(size, 20.0))
        ring = [found[v] for v in gpus]
        if all(_apart(p, q) for p, q in zip(ring, [*ring[1:], ring[0]], strict=True)):
            return found, y + 2 * flat + ROW
    return None


def _apart(p: NodeBox, q: NodeBox) -> bool:
    """Two nodes do not overlap."""
    return abs(p.x - q.x) >= (p.width + q.width) / 2 or abs(p.y - q.y) >= (p.height + q.height) / 2


def _grid_places(
    gpus: list[int], grid: tuple[int, int, int], y: float, width: float
) -> tuple[dict[int, NodeBox], float]:
    """Slices side by side, each a grid; the drawn part of the grid is row-major, too."""
    depth, rows, columns = grid
    room = width / depth
    step = min((room - 30) / columns, 92.0)
    size = min(step - 8, 46.0)
    place: dict[int, NodeBox] = {}
    start = (width - depth * (step * columns + 30) + 30) / 2
    for at, v in enumerate(gpus):
        z, rest = divmod(at, rows * columns)
        line, column = divmod(rest, columns)
        x = start + z * (step * columns + 30) + (column + 0.5) * step
        place[v] = NodeBox(x, y + 24 + line * min(step, 70) + z * 7, size, min(size, 20))
    return place, y + 24 + (rows - 1) * min(step, 70) + depth * 7 + 24 + ROW - NODE


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
