"""Lay out one box: rows of nodes from the network inwards, split where they are too wide, with horizontal positions.

Nodes that are linked outside have a port on the edge towards the network, straight above them where there is room.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coppice.report.svg import fitted, text_width
from coppice.report.topology.folding import DrawnGraph, Layer, NodeRow
from coppice.report.topology.layers import BEND, GAP, arrange, widened

RowKey = tuple[int, int, int]
"""Layer, level and part of a row; ascending from the network inwards."""

PORTS: RowKey = (-1, 0, 0)
"""The row of the ports."""

LARGE, SMALL = 11, 9
"""Sizes of labels."""

_UNWIDENED = (PORTS[0], Layer.GPU, Layer.NIC)
"""Layers whose nodes are never bars."""

_LEAST = 17.0
_MARGIN = 8.0
"""Least width of a node; room that a node has beside its label."""

_MOST_PARTS = 12
_PART = 10.0
"""Parts into which a row is split; what each of them weighs against smaller and shorter labels."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """How the nodes of a row are written: their labels, the size of these, and the width of the nodes."""

    labels: tuple[str, ...]
    size: int
    width: float
    parts: int  # Rows into which the nodes are split
    cost: int  # What is wrong with smaller and shorter labels


@dataclass(frozen=True, slots=True)
class BoxRows:
    """A box without its place on the drawing; vertices are drawn nodes, ports and bends."""

    width: float
    rows: dict[RowKey, list[int]]  # Vertices of each row from left to right
    x: dict[int, float]  # Centre of each vertex
    size: dict[int, float]  # Width of each node
    labels: dict[int, tuple[str, int]]  # Label of each node, and its size
    ports: dict[int, int]  # Port of each node that is linked outside
    chains: dict[
        tuple[int, int], list[int]
    ]  # Vertices of each line between rows, of a node and its port as well


def row_key(row: NodeRow) -> RowKey:
    """Where a layer and level stand."""
    outward = row.layer in (Layer.SWITCH, Layer.PCIE)
    return int(row.layer), -row.level if outward else row.level, 0


def block_of(graph: DrawnGraph, nodes: Sequence[int], room: float, fresh: int) -> BoxRows:
    """Lay out a box.

    Args:
        nodes: Its drawn nodes.
        room: Width that it may take.
        fresh: The first number that is free for ports and bends.
    """
    inside = set(nodes)
    links = [pair for pair in graph.links if inside.issuperset(pair)]
    leading = {v for pair in graph.links for v in pair if v in inside and not inside.issuperset(pair)}
    found: dict[RowKey, list[int]] = defaultdict(list)
    for v in nodes:
        row = graph.nodes[v].row
        found[row_key(NodeRow(Layer.GPU) if row is None else row)].append(v)
    ordered = _from_gpus(found, links)
    rows, labels, size = _fitted_rows(graph, ordered, links, leading, room)
    ports = {v: fresh + at for at, v in enumerate(sorted(leading))}
    if ports:
        share = {v: (at + 0.5) / len(row) for row in rows.values() for at, v in enumerate(row)}
        rows = {PORTS: [ports[v] for v in sorted(ports, key=share.__getitem__)], **rows}
    keys = {v: key for key, row in rows.items() for v in row}
    between = [pair for pair in links if keys[pair[0]] != keys[pair[1]]]
    between += ports.items()
    width = size | dict.fromkeys(ports.values(), 0.0)
    bends = _lines_past(rows, between)
    wide = max(sum(width[v] for v in row) + GAP * len(row) + BEND * bends[key] for key, row in rows.items())
    slots = width | _even_slots(rows, width, bends, wide)
    base = fresh + len(ports)
    # Vertices are numbered anew: drawn nodes and ports from 0 on, so that bends follow them.
    known = [v for row in rows.values() for v in row]
    number = {v: at for at, v in enumerate(known)}
    done = arrange(
        [[number[v] for v in row] for row in rows.values()],
        [(number[a], number[b]) for a, b in between],
        {number[v]: each for v, each in slots.items()},
        wide,
    )

    def back(at: int) -> int:
        return known[at] if at < len(known) else base + at - len(known)

    x = {back(at): each for at, each in done.x.items()}
    chains = {pair: [back(at) for at in chain] for pair, chain in zip(between, done.chains, strict=True)}
    drawn_rows = {key: [back(at) for at in row] for key, row in zip(rows, done.rows, strict=True)}
    switches = {v for key, row in drawn_rows.items() for v in row if key[0] not in _UNWIDENED and v in size}
    for v, (middle, across) in widened(
        list(drawn_rows.values()), list(chains.values()), x, size, switches, (0.0, wide)
    ).items():
        x[v], size[v] = middle, across
    return BoxRows(wide, drawn_rows, x, size, labels, ports, chains)


def _from_gpus(
    rows: Mapping[RowKey, list[int]], links: Collection[tuple[int, int]]
) -> dict[RowKey, list[int]]:
    """Rows in the order that they have if nothing else matters: GPUs as numbered, others by what they hang from."""
    near: dict[int, list[int]] = defaultdict(list)
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    share: dict[int, float] = {}
    inwards = sorted(rows)
    behind = [key for key in inwards if key[0] >= Layer.GPU]
    for key in (*behind, *(key for key in reversed(inwards) if key not in behind)):
        _sort_row(rows[key], near, share)
    return {key: rows[key] for key in inwards}


def _sort_row(row: list[int], near: Mapping[int, list[int]], share: dict[int, float]) -> None:
    """Sort a row by the middle of those neighbours that have a place, and give it places."""

    def middle(v: int) -> tuple[float, int]:
        found = [share[w] for w in near.get(v, ()) if w in share]
        return (round(sum(found) / len(found), 6) if found else 1.0), v

    row.sort(key=middle)
    for at, v in enumerate(row):
        share[v] = (at + 0.5) / len(row)


def _fitted_rows(
    graph: DrawnGraph,
    rows: Mapping[RowKey, list[int]],
    links: Sequence[tuple[int, int]],
    leading: Collection[int],
    room: float,
) -> tuple[dict[RowKey, list[int]], dict[int, tuple[str, int]], dict[int, float]]:
    """Rows split where they must be, the labels of their nodes, and the width of these."""
    past = _lines_past({PORTS: [-1], **rows}, [*links, *((v, -1) for v in leading)])
    row_of = {v: key for key, row in rows.items() for v in row}
    lines: dict[int, int] = defaultdict(int)
    for a, b in links:
        for v in (a, b) if row_of[a] != row_of[b] else ():
            lines[v] += 1
    for v in leading:
        lines[v] += 1
    found: dict[RowKey, list[int]] = {}
    labels: dict[int, tuple[str, int]] = {}
    size: dict[int, float] = {}
    least: dict[int, int] = defaultdict(int)
    # Twice, so that all levels of a layer are written as the one with the least room.
    for _ in range(2):
        for key, row in rows.items():
            names = [graph.nodes[v].label for v in row]
            fit = fit_row(names, room, past[key], sum(lines[v] for v in row), least[key[0]])
            least[key[0]] = max(least[key[0]], fit.cost)
            each = -(-len(row) // fit.parts)
            for part in range(0, len(row), each):
                found[(key[0], key[1], part)] = row[part : part + each]
            for v, label in zip(row, fit.labels, strict=True):
                labels[v] = (label, fit.size)
                size[v] = fit.width
    return found, labels, size


def fit_row(names: Sequence[str], room: float, past: int = 0, lines: int = 0, least: int = 0) -> Labelled:
    """How nodes are written side by side: whole names where they fit, else smaller or shorter ones, or several rows.

    Args:
        room: Width that they may take.
        past: Lines that pass between them.
        lines: Lines that end at them; where they stand in several rows, most of these pass the others.
        least: What smaller and shorter labels cost at least.

    Examples:
        >>> fit_row(["gpu0", "gpu1"], 200).labels, fit_row(["gpu10", "gpu11"], 70).labels
        (('gpu0', 'gpu1'), ('10', '11'))
    """
    best: tuple[float, Labelled] | None = None
    ways = [
        (cost, labels, size, max(max(text_width(label, size) for label in labels) + _MARGIN, _LEAST))
        for cost, labels, size in ways_to_write(names)
        if cost >= least
    ]
    for parts in range(1, _MOST_PARTS + 1):
        each = -(-len(names) // parts)
        passing = past + lines * (parts - 1) / parts
        free = room - passing * (BEND + 1) - GAP * each
        for cost, labels, size, width in ways:
            total = cost + parts * _PART
            if width * each <= free and (best is None or total < best[0]):
                best = (total, Labelled(tuple(labels), size, width, parts, cost))
    if best is not None:
        return best[1]
    width = max((room - past * BEND) / max(len(names), 1) - GAP, _LEAST)
    short = tuple(fitted(name, width - 4, SMALL) for name in shortened_names(names))
    return Labelled(short, SMALL, width, 1, 9)


def ways_to_write(names: Sequence[str]) -> list[tuple[int, Sequence[str], int]]:
    """Labels and sizes of them, the best first, each with what it costs."""
    short = shortened_names(names)
    return [(0, names, LARGE), (4, names, SMALL), (6, short, LARGE), (9, short, SMALL)]


def shortened_names(names: Sequence[str]) -> list[str]:
    """Names without what all of them share.

    >>> shortened_names(["pcie-0000:08:00.0", "pcie-0000:26:00.0"]), shortened_names(["mlx5_10", "mlx5_11"])
    (['08', '26'], ['10', '11'])
    """
    if len(set(names)) < 2:
        return list(names)
    start = re.sub(r"((?<=[:.])[0-9a-f]+|[0-9]+)$", "", _common_start(names))
    shared = _common_start([name[::-1] for name in names])[::-1]
    found = re.search(r"[^0-9A-Za-z].*$", shared)
    end = found[0] if found else ""
    short = [name[len(start) :].removesuffix(end) for name in names]
    return short if all(short) and len(set(short)) == len(set(names)) else list(names)


def _common_start(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:same]


def _even_slots(
    rows: Mapping[RowKey, Sequence[int]], width: Mapping[int, float], bends: Mapping[RowKey, int], room: float
) -> dict[int, float]:
    """Room of each node of a row that was split, so that its parts are equally wide and lines pass all over them."""
    split = {key[:2] for key in rows if key[2]}
    return {
        v: max(width[v], (room - BEND * bends[key]) / len(row) - GAP)
        for key, row in rows.items()
        if key[:2] in split
        for v in row
    }


def _lines_past(rows: Mapping[RowKey, Sequence[int]], links: Sequence[tuple[int, int]]) -> dict[RowKey, int]:
    """How many lines pass each row on their way between others."""
    order = {v: at for at, row in enumerate(rows.values()) for v in row}
    change = [0] * (len(rows) + 1)
    for a, b in links:
        low, high = sorted((order[a], order[b]))
        if high > low:
            change[low + 1] += 1
            change[high] -= 1
    found, lines = {}, 0
    for key, step in zip(rows, change, strict=False):
        lines += step
        found[key] = lines
    return found
