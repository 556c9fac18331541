"""Positions of the nodes of a topology in its drawing.

Boxes are groups: in each the NICs and switches that lead outside stand towards the fabric, then the GPUs, then what
stays inside. Fabric switches are bars in levels by their distance from the boxes. GPUs that are linked with each other
stand on a grid where they are one (row-major tori and meshes), otherwise on a circle.

Of a large topology only a part gets a place: some boxes, nodes and fabric switches, those at the cut first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from coppice.report.topology.direct import NODE, ROW, NodeBox, direct_places, grid_shape
from coppice.text import plural
from coppice.topology.model import NodeKind, Topology

WIDTH = 1100.0
"""Width that a drawing may take."""

MOST_BOXES = 8
MOST_BARS = 24
MOST_NODES = 144
MOST_IN_BOX = 40
MOST_OF_KIND = 8
"""Boxes of a drawing, bars of a level, nodes without a box, nodes of a box, and nodes of each kind of a larger one."""

PAD = 12.0
LEVEL = 74.0
"""Padding of a frame; height of a level of the fabric."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame of a box: its corner, size and name."""

    x: float
    y: float
    width: float
    height: float
    name: str


@dataclass(frozen=True, slots=True)
class DrawingLayout:
    """Positions and frames of a drawing."""

    width: float  # Width of the drawing
    height: float  # Its height
    place: dict[int, NodeBox]  # Place of each node that is drawn
    frames: tuple[Frame, ...]  # Boxes
    # What is left out, in words, one entry for each kind; empty where everything is drawn
    omitted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """A group laid out by itself: places from its upper left corner."""

    name: str
    width: float
    height: float
    place: dict[int, NodeBox]


def lay_out(topology: Topology, first: Collection[int] = ()) -> DrawingLayout:
    """Position every node, or those of a part of a large topology.

    Args:
        first: Nodes whose boxes are drawn before others where not all are.
    """
    near = _neighbours(topology)
    names, members, fabric = _groups(topology)
    framed = any(names)
    wanted = set(first)
    order = sorted(range(len(members)), key=lambda g: not wanted.intersection(members[g]))
    # Where only some boxes fit, both sides of a cut are seen: half of them from each.
    ahead = [g for g in order if wanted.intersection(members[g])]
    others = [g for g in order if g not in set(ahead)]
    room = WIDTH if framed else WIDTH - 2 * PAD
    most = MOST_BOXES if framed else len(members)
    taken = ahead[: max(most - len(others), most // 2)]
    chosen = sorted([*taken, *others[: most - len(taken)]])
    omitted: list[str] = []
    if len(chosen) < len(members):
        omitted.append(f"{len(chosen)} of {plural(len(members), 'box')}")
    columns = len(chosen) if len(chosen) <= 4 else -(-len(chosen) // 2)
    levels = _fabric_levels(near, fabric)
    # Boxes in two rows have the fabric between them, if it is a single row of bars.
    if len(levels) > 1:
        columns = len(chosen)
    width_each = room / max(columns, 1) - (2 * PAD if framed else 0)
    groups = []
    parts: dict[str, list[str]] = defaultdict(list)
    for g in chosen:
        shown = _part(topology, members[g], wanted, framed=framed)
        if len(shown) < len(members[g]):
            parts[f"{len(shown)} of {len(members[g])} nodes"].append(names[g])
        groups.append(_inner(topology, names[g], shown, members[g], near, set(fabric), width_each))
    for words, boxes in parts.items():
        where = f" of {boxes[0]}" if len(boxes) == 1 else f" in each of {len(boxes)} boxes"
        omitted.append(words if boxes == [""] else words + where)
    drawn, hidden = [], 0
    for level in levels:
        kept = sorted(level, key=lambda v: v not in wanted)[:MOST_BARS] if len(level) > MOST_BARS else level
        drawn.append(sorted(kept))
        hidden += len(level) - len(kept)
    if hidden:
        total = sum(map(len, levels))
        omitted.append(f"{total - hidden} of {total} switches of the fabric")
    return _composed(groups, drawn, columns, near, tuple(omitted), framed=framed)


def _groups(topology: Topology) -> tuple[list[str], list[list[int]], list[int]]:
    """Names and nodes of the boxes, and the nodes of the fabric; one group without a name where no host is a box."""
    hosts = topology.host.tolist()
    by_host: dict[int, list[int]] = defaultdict(list)
    for node, host in enumerate(hosts):
        by_host[host].append(node)
    boxes = {host: nodes for host, nodes in by_host.items() if host >= 0 and len(nodes) > 1}
    inside = {node for nodes in boxes.values() for node in nodes}
    gpu = (topology.kind == NodeKind.GPU).tolist()
    loose = [node for node in range(topology.num_nodes) if node not in inside and gpu[node]]
    fabric = [node for node in range(topology.num_nodes) if node not in inside and not gpu[node]]
    names = [topology.hosts[host] for host in boxes]
    members = list(boxes.values())
    if loose:
        names.append("" if not boxes else "without a box")
        members.append(loose)
    return names, members, fabric


def _neighbours(topology: Topology) -> list[list[int]]:
    """Nodes linked with each node, in either direction."""
    near: list[set[int]] = [set() for _ in range(topology.num_nodes)]
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        near[a].add(b)
        near[b].add(a)
    return [sorted(each) for each in near]


def _part(topology: Topology, nodes: list[int], first: Collection[int], *, framed: bool) -> list[int]:
    """The nodes of a group that are drawn: of a box some of each kind, of a grid a corner, otherwise the first ones."""
    if framed:
        return _some_of_each_kind(topology, nodes, first) if len(nodes) > MOST_IN_BOX else nodes
    if len(nodes) <= MOST_NODES:
        return nodes
    grid = grid_shape(topology, nodes)
    if grid is None:
        return nodes[: MOST_NODES // 2]
    if len(nodes) <= 2 * MOST_NODES:
        return nodes
    depth, rows, columns = grid
    rows_kept, columns_kept = min(rows, 16), min(columns, 16)
    slices = max(1, min(depth, 2 * MOST_NODES // (rows_kept * columns_kept)))
    return [
        nodes[(z * rows + y) * columns + x]
        for z in range(slices)
        for y in range(rows_kept)
        for x in range(columns_kept)
    ]


def _some_of_each_kind(topology: Topology, nodes: list[int], first: Collection[int]) -> list[int]:
    """A few nodes of each kind, those of ``first`` before others unless all of them are."""
    found = []
    wanted = set(first).intersection(nodes)
    for kind in NodeKind:
        members = [v for v in nodes if topology.kind[v] == kind]
        found += sorted(members, key=lambda v: v not in wanted)[:MOST_OF_KIND]
    return sorted(found)


def _fabric_levels(near: list[list[int]], fabric: list[int]) -> list[list[int]]:
    """Fabric nodes by distance from what is not fabric, the nearest level first."""
    outside = set(fabric)
    level = {v: 1 for v in fabric if any(w not in outside for w in near[v])}
    queue = list(level)
    for v in queue:
        for w in near[v]:
            if w in outside and w not in level:
                level[w] = level[v] + 1
                queue.append(w)
    top = max(level.values(), default=0) + 1
    found: dict[int, list[int]] = defaultdict(list)
    for v in fabric:
        found[level.get(v, top)].append(v)
    return [found[each] for each in sorted(found)]


def _inner(
    topology: Topology,
    name: str,
    nodes: list[int],
    members: list[int],
    near: list[list[int]],
    fabric: set[int],
    width: float,
) -> _Group:
    """A group by itself, of which ``nodes`` are drawn: first what leads outside, then the GPUs, then the rest."""
    inside, whole = set(nodes), set(members)
    gpus = [v for v in nodes if topology.kind[v] == NodeKind.GPU]
    relays = inside.difference(gpus)
    from_gpu = _distances(near, gpus, relays)
    from_out = _distances(near, [v for v in range(len(near)) if v not in whole], relays)
    through = {v: from_gpu[v] + from_out[v] for v in relays if v in from_gpu and v in from_out}
    least = min(through.values(), default=0)
    up: dict[int, list[int]] = defaultdict(list)
    down: dict[int, list[int]] = defaultdict(list)
    for v in sorted(relays):
        outward = through.get(v) == least and from_out.get(v) is not None
        (up if outward else down)[from_gpu.get(v, 9)].append(v)
    place: dict[int, NodeBox] = {}
    y = PAD + (14 if name else 0)
    rows = [up[level] for level in sorted(up, reverse=True)]
    for row in rows:
        y = _fill_row(topology, place, row, y, width, near)
    linked = any(w in inside and topology.kind[w] == NodeKind.GPU for v in gpus for w in near[v])
    if linked and len(gpus) > 2:
        found = direct_places(topology, gpus, y, width, alone=not name and not fabric)
        if found is None:
            y = _fill_row(topology, place, gpus, y, width, near)
        else:
            place.update(found[0])
            y = found[1]
    else:
        y = _fill_row(topology, place, gpus, y, width, near)
    for level in sorted(down):
        y = _fill_row(topology, place, down[level], y, width, near)
    return _Group(name, width, y - ROW + NODE + PAD, place)


def _distances(near: list[list[int]], start: Sequence[int], through: Collection[int]) -> dict[int, int]:
    """Hops from any of ``start`` to each of ``through``, over nothing else."""
    found = dict.fromkeys(start, 0)
    queue = list(start)
    for v in queue:
        for w in near[v]:
            if w in through and w not in found:
                found[w] = found[v] + 1
                queue.append(w)
    return {v: hops for v, hops in found.items() if v in through}


def _fill_row(
    topology: Topology,
    place: dict[int, NodeBox],
    row: list[int],
    y: float,
    width: float,
    near: list[list[int]],
) -> float:
    """Nodes side by side, in several lines where they are many; the next row's place."""
    if not row:
        return y
    if topology.kind[row[0]] == NodeKind.SWITCH:
        row = _above_their_neighbours(row, place, near)
    lines = -(-len(row) // max(1, int(width / 28)))
    per_line = -(-len(row) // lines)
    step = width / per_line
    for at, v in enumerate(row):
        line, column = divmod(at, per_line)
        wide = topology.kind[v] == NodeKind.SWITCH
        size = step - 8 if wide else min(step - 5, 58)
        place[v] = NodeBox(
            (column + 0.5) * step, y + NODE / 2 + line * ROW, size, NODE * (0.75 if wide else 1)
        )
    return y + lines * ROW


def _above_their_neighbours(row: list[int], place: dict[int, NodeBox], near: list[list[int]]) -> list[int]:
    """Nodes in the order of the middle of those placed neighbours that they have."""

    def middle(v: int) -> float:
        xs = [place[w].x for w in near[v] if w in place]
        return sum(xs) / len(xs) if xs else 0.0

    return sorted(row, key=lambda v: (round(middle(v), 3), v))


def _composed(
    groups: list[_Group],
    levels: list[list[int]],
    columns: int,
    near: list[list[int]],
    omitted: tuple[str, ...],
    *,
    framed: bool,
) -> DrawingLayout:
    """Groups in one row under the fabric, or in two with the fabric between them."""
    gap = 2 * PAD if framed else 0.0
    rows = [groups[i : i + columns] for i in range(0, len(groups), columns)] if columns else []
    heights = [max(group.height for group in row) for row in rows]
    fabric = len(levels) * LEVEL
    width = max((sum(g.width + gap for g in row) for row in rows), default=WIDTH)
    width = max(width, 320.0) + (2 if framed else 2 * PAD)
    two = len(rows) > 1
    top = PAD
    place: dict[int, NodeBox] = {}
    frames: list[Frame] = []
    upper = top + (heights[0] + 30 if two else 0)
    row_tops = [top, upper + fabric + 4] if two else [top + fabric]
    for number, row in enumerate(rows):
        flipped = two and number == 0
        for column, group in enumerate(row):
            x = (gap / 2 if framed else PAD) + column * (group.width + gap) + 1
            y = row_tops[number]
            _put(place, group, x, y, heights[number], flipped=flipped)
            if framed:
                frames.append(Frame(x - PAD / 2, y, group.width + PAD, heights[number], group.name))
    placer = _bars(near, place, width)
    for number, level in enumerate(levels):
        y = (upper if two else top) + fabric - (number + 1) * LEVEL + (NODE if not two else LEVEL / 2 - 2)
        placer(level, y)
    bottom = row_tops[-1] + heights[-1] if rows else top + fabric
    return DrawingLayout(width, bottom + PAD, place, tuple(frames), omitted)


def _put(
    place: dict[int, NodeBox], group: _Group, x: float, y: float, height: float, *, flipped: bool
) -> None:
    """Nodes of a group on the drawing; those of an upper row face down, towards the fabric below them."""
    for v, at in group.place.items():
        down = height - at.y + (14 if group.name else 0) if flipped else at.y
        place[v] = NodeBox(x + at.x, y + down, at.width, at.height)


def _bars(
    near: list[list[int]], place: dict[int, NodeBox], width: float
) -> Callable[[list[int], float], None]:
    """Places a level of switches as bars side by side, above the middle of what they join."""

    def put(level: list[int], y: float) -> None:
        step = width / max(len(level), 1)
        length = min(step - 14, 420.0) if len(level) > 1 else width * 0.6
        for at, v in enumerate(_above_their_neighbours(level, place, near)):
            place[v] = NodeBox((at + 0.5) * step, y, length, 18)

    return put
