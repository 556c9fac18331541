"""Layered drawings of a plan's trees: a column per step from the root, an arrow per transfer.

Drawn are the tallest tree, the heaviest, and some from all over the plan. A forest has its trees. The transfers of one
chunk of a schedule form one where every rank receives (or adds away) the chunk once; where they do not, as in recursive
doubling, there is nothing to draw. Of a large tree the nodes next to the root are drawn; those that hide others say how
many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from coppice.report.svg import Markup, drawing, element, escape, fitted, join, text_width
from coppice.report.topology.geometry import LinkRoute
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Op, Schedule, routed
from coppice.schedule.shape import tree_heights
from coppice.text import plural, rate_text
from coppice.topology.model import NodeKind, Topology

MOST_SKETCHES = 8
"""Trees of a plan that are drawn."""

MOST_NODES = 90
MOST_CHILDREN = 16
"""Nodes that a drawing shows, in all and below each of them."""

MOST_ABOVE = 8
"""Lines from a node up to its first child, so that the root of a large tree is seen without scrolling."""

WIDTH = 1100.0
TALL = 860.0
LINE, LEAST_LINE = 26.0, 14.0
"""Width of a drawing; its height where lines can be closer for it; distance of two lines at most and at least."""

LETTERS = 11
_SIDE, _WIDER_SIDE = 8.0, 26.0
_LEAST_ROOM = 26.0
_LANE = 5.0
"""Size of the text of nodes; room beside a drawing, and beside bands; least room between two columns; distance of ways
between bands."""

_Edge = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """A tree to draw."""

    title: str  # What it is
    root: int  # Its root
    # (child, path of the transfer between them in the direction of the data) of each node
    children: Mapping[int, tuple[tuple[int, tuple[int, ...]], ...]]
    upward: bool  # Data flow to the root

    def links(self) -> list[tuple[int, int]]:
        """Ends of the links that the tree uses."""
        pairs: list[tuple[int, int]] = []
        for below in self.children.values():
            for _, path in below:
                pairs += pairwise(path)
        return pairs


def sketches(plan: Plan, *, most: int = MOST_SKETCHES) -> list[Sketch]:
    """Select representative trees of a verified plan.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_GATHER)
        >>> sketches(plan(problem).plan, most=2)[0].title
        'tree 0: broadcast from gpu0, 1/4 of the data, height 1'
    """
    if plan.forest is not None:
        return _of_forest(plan.forest, most)
    if plan.schedule is not None:
        return _of_schedule(routed(plan.schedule), most)
    return []


def _of_forest(forest: Forest, most: int) -> list[Sketch]:
    """Of each phase the tallest tree, the heaviest, and others evenly over the list."""
    heights = tree_heights(forest)
    phases = [phase for phase in Phase if (forest.tree_phase == phase).any()]
    found = []
    for phase in phases:
        rows = np.flatnonzero(forest.tree_phase == phase)
        room = max(most // len(phases), 1)
        marked = [int(rows[np.argmax(heights[rows])]), int(rows[np.argmax(forest.tree_weight[rows])])]
        spread = rows[np.linspace(0, len(rows) - 1, min(room, len(rows))).round().astype(int)].tolist()
        kept = list(dict.fromkeys([spread[0], *marked, *spread]))[:room]
        found += [_sketch_of_tree(forest, tree, int(heights[tree])) for tree in sorted(kept)]
    return found


def _sketch_of_tree(forest: Forest, tree: int, height: int) -> Sketch:
    phase = Phase(int(forest.tree_phase[tree]))
    root = int(forest.tree_root[tree])
    name = forest.topology.node_ids[root]
    way = f"broadcast from {name}" if phase is Phase.BROADCAST else f"reduce to {name}"
    share = f"{int(forest.tree_weight[tree])}/{forest.phase_weight(phase)} of the data"
    images = f", {forest.num_images} images" if forest.num_images > 1 else ""
    title = f"tree {tree}: {way}, {share}, height {height}{images}"
    upward = phase is Phase.REDUCE
    return Sketch(
        title=title, root=root, children=_children(forest.edges(tree), upward=upward), upward=upward
    )


def _children(edges: Iterable[_Edge], *, upward: bool) -> dict[int, tuple[tuple[int, tuple[int, ...]], ...]]:
    """Children of each node, with the path in the direction of the data."""
    found: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for sender, receiver, path in edges:
        parent, child = (receiver, sender) if upward else (sender, receiver)
        found[parent].append((child, path))
    return {node: tuple(below) for node, below in found.items()}


def _of_schedule(schedule: Schedule, most: int) -> list[Sketch]:
    """Trees of chunks evenly over all chunks."""
    ops = [op for op in Op if (schedule.op == op).any()]
    if not ops or not schedule.num_chunks:
        return []
    moved = np.unique(schedule.chunk)
    room = max(most // len(ops), 1)
    chosen = moved[np.linspace(0, len(moved) - 1, min(room, len(moved))).round().astype(int)].tolist()
    found = []
    for op in (Op.REDUCE, Op.COPY):
        for chunk in dict.fromkeys(chosen):
            rows = np.flatnonzero((schedule.chunk == chunk) & (schedule.op == op))
            sketch = _sketch_of_chunk(schedule, chunk, op, rows.tolist())
            if sketch is not None:
                found.append(sketch)
    return found


def _sketch_of_chunk(schedule: Schedule, chunk: int, op: Op, rows: list[int]) -> Sketch | None:
    """The transfers of a chunk as a tree, None where they are none."""
    if not rows:
        return None
    nodes = schedule.topology.rank_nodes.tolist()
    upward = op is Op.REDUCE
    edges: list[_Edge] = []
    parent: dict[int, int] = {}
    for row in rows:
        sender, receiver = nodes[schedule.src[row]], nodes[schedule.dst[row]]
        path = int(schedule.path[row])
        start, end = schedule.path_start[path], schedule.path_start[path + 1]
        edges.append((sender, receiver, tuple(schedule.path_nodes[start:end].tolist())))
        above, below = (receiver, sender) if upward else (sender, receiver)
        if below in parent:
            return None
        parent[below] = above
    roots = {node for node in parent.values() if node not in parent}
    if len(roots) != 1:
        return None
    root = roots.pop()
    children = _children(edges, upward=upward)
    reached = [root]
    for node in reached:
        reached += [child for child, _ in children.get(node, ())]
    if len(reached) != len(parent) + 1:
        return None
    names = schedule.topology.node_ids
    way = f"added up to {names[root]}" if upward else f"copied from {names[root]}"
    title = f"chunk {chunk}: {way}, {plural(len(rows), 'transfer')}"
    return Sketch(title=title, root=root, children=children, upward=upward)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The part of a tree that is drawn: nodes in order, each with its parent, depth and what it hides."""

    order: list[int]
    parent: dict[int, int]
    depth: dict[int, int]
    below: dict[int, list[int]]
    hidden: dict[int, int]


def tree_picture(topology: Topology, sketch: Sketch, *, name: str) -> Markup:
    """Draw a tree.

    Args:
        name: Unique name of the picture on its page: its arrow heads are called after it.
    """
    drawn = _drawn(sketch)
    plan = _laid_out(topology, drawn)
    edges = [_edge(topology, sketch, drawn, v, plan, name=name) for v in drawn.order[1:]]
    nodes = [_node(topology, v, drawn, plan) for v in drawn.order]
    marker = element(
        "defs",
        element(
            "marker",
            element("path", d="M0 0L7 3.5L0 7z", fill="context-stroke"),
            id=f"{name}-arrow",
            viewBox="0 0 7 7",
            refX="6.5",
            refY="3.5",
            markerWidth="7",
            markerHeight="7",
            markerUnits="userSpaceOnUse",
            orient="auto",
        ),
    )
    return drawing(
        max(plan.width, 320), plan.height, marker, join(edges), join(nodes), name="tree", label=sketch.title
    )


def _drawn(sketch: Sketch) -> _Drawn:
    """Nodes level by level until there are enough."""
    order, parent, depth = [sketch.root], {}, {sketch.root: 0}
    below: dict[int, list[int]] = defaultdict(list)
    for v in order:
        for child, _ in sketch.children.get(v, ())[:MOST_CHILDREN]:
            if len(order) < MOST_NODES:
                order.append(child)
                parent[child], depth[child] = v, depth[v] + 1
                below[v].append(child)
    size: dict[int, int] = {}
    whole = [sketch.root]
    for v in whole:
        whole += [child for child, _ in sketch.children.get(v, ())]
    for v in reversed(whole):
        size[v] = 1 + sum(size[child] for child, _ in sketch.children.get(v, ()))
    shown = set(order)
    hidden = {
        v: sum(size[child] for child, _ in sketch.children.get(v, ()) if child not in shown) for v in order
    }
    return _Drawn(order, parent, depth, below, hidden)


@dataclass(frozen=True, kw_only=True, slots=True)
class _TreeLayout:
    """Where the nodes of a tree stand: a column for each step from the root, columns in bands where they are many."""

    place: dict[int, tuple[float, float]]  # Centre of each node
    more: dict[int, tuple[float, float]]  # Where it is said what a node hides
    band: dict[int, int]  # Band of each node
    lane: dict[
        int, tuple[float, float]
    ]  # Height of the way from band to band to a node, and how far right it turns
    box: float  # Width of a node
    tall: float  # Its height
    size: int  # Size of its name
    width: float
    height: float


def _laid_out(topology: Topology, drawn: _Drawn) -> _TreeLayout:
    """Lay a tree on its side; one of many steps is cut into bands one below the other."""
    names = [topology.node_ids[v] for v in drawn.order]
    box = min(max(max(text_width(each, LETTERS) for each in names) + 10, 40.0), 150.0)
    columns = 1 + max(drawn.depth[v] + (drawn.hidden[v] > 0) for v in drawn.order)
    most = int((WIDTH - 2 * _SIDE + _LEAST_ROOM) / (box + _LEAST_ROOM))
    side, each = (_SIDE, columns) if columns <= most else (_WIDER_SIDE, most - 1)
    # In bands, what the nodes of the last column hide is said beside them.
    more_room = 70.0 if each < columns and any(drawn.hidden.values()) else 0.0
    step = min(box + 90, (WIDTH - 2 * side - box - more_room) / max(each - 1, 1))
    band = {v: drawn.depth[v] // each for v in drawn.order}
    lines: list[dict[int, float]] = []
    for number in range(max(band.values()) + 1):
        roots = [v for v in drawn.order if band[v] == number and drawn.depth[v] % each == 0]
        lines.append(_positions(drawn, roots, band))
    total = sum(max(each_of.values()) + 1 for each_of in lines)
    line = min(max(TALL / total, LEAST_LINE), LINE)
    tall = min(line - 4, 18.0)
    place, more, lane = {}, {}, {}
    top = _SIDE
    for number, found in enumerate(lines):
        entering = [
            v
            for v in drawn.order
            if band[v] == number and v in drawn.parent and band[drawn.parent[v]] < number
        ]
        for at, v in enumerate(entering):
            lane[v] = (
                top + at * _LANE,
                WIDTH - 4 - (len(entering) - 1 - at) * min(_LANE, 16.0 / len(entering)),
            )
        top += len(entering) * _LANE + (8 if entering else 0)
        for v, row in found.items():
            node = v if v >= 0 else -1 - v
            depth = drawn.depth[node] + (v < 0)
            x = side + box / 2 + (depth - number * each) * step
            y = top + line / 2 + row * line
            if v >= 0:
                place[v] = (x, y)
            else:
                more[node] = (x - box / 2, y)
        top += (max(found.values()) + 1) * line + 6
    width = 2 * side + box + (each - 1) * step
    return _TreeLayout(
        place=place,
        more=more,
        band=band,
        lane=lane,
        box=box,
        tall=tall,
        size=10 if line > 20 else 9,
        width=WIDTH if lane else width,
        height=top + _SIDE - 6,
    )


def _positions(drawn: _Drawn, roots: list[int], band: Mapping[int, int]) -> dict[int, float]:
    """Lines of the nodes of a band: leaves one after the other, parents at the middle of their children.

    What a node hides has a line among its children, under the number -1 - v.
    """
    place: dict[int, float] = {}
    leaves = 0
    stack = [(v, False) for v in reversed(roots)]
    while stack:
        v, again = stack.pop()
        children = [child for child in drawn.below.get(v, ()) if band[child] == band[v]] if v >= 0 else []
        if v >= 0 and drawn.hidden[v]:
            children.append(-1 - v)
        if not children:
            place[v] = leaves
            leaves += 1
        elif again:
            middle = (place[children[0]] + place[children[-1]]) / 2
            place[v] = min(middle, place[children[0]] + MOST_ABOVE)
        else:
            stack.append((v, True))
            stack += [(child, False) for child in reversed(children)]
    return place


def _edge(
    topology: Topology, sketch: Sketch, drawn: _Drawn, v: int, plan: _TreeLayout, *, name: str
) -> Markup:
    """An arrow in the direction of the data; hovering tells its path and the slowest link on it."""
    parent = drawn.parent[v]
    (px, py), (x, y) = plan.place[parent], plan.place[v]
    start, end = (px + plan.box / 2, py), (x - plan.box / 2, y)
    if v in plan.lane:
        # From the right end of a band to the left end of another.
        lane, turn = plan.lane[v]
        way = LinkRoute.through([start, (turn, py), (turn, lane), (3.0, lane), (3.0, y), end])
    else:
        bend = (end[0] - start[0]) / 2
        way = LinkRoute(start, (((start[0] + bend, py), (end[0] - bend, y), end),))
    path = next(path for child, path in sketch.children[parent] if child == v)
    names = topology.node_ids
    slowest = min(
        (topology.gb_per_s(topology.link_index[pair]) for pair in pairwise(path)),
        default=Fraction(0),
    )
    words = f"{names[path[0]]} → {names[path[-1]]}"
    if len(path) > 2:
        words += f" via {', '.join(names[w] for w in path[1:-1])}"
    words += f"; {rate_text(slowest)} GB/s at its slowest link"
    same = topology.host[parent] == topology.host[v]
    line = element(
        "path",
        d=(way.backwards() if sketch.upward else way).path,
        class_=f"edge {'inside' if same else 'across'}",
        marker_end=f"url(#{name}-arrow)",
    )
    return element("g", element("title", escape(words)), line)


def _node(topology: Topology, v: int, drawn: _Drawn, plan: _TreeLayout) -> Markup:
    """A node with its name; to its right how many below it are not drawn."""
    x, y = plan.place[v]
    kind = "gpu" if topology.kind[v] == NodeKind.GPU else "switch"
    rank = f", rank {int(topology.rank[v])}" if topology.rank[v] >= 0 else ""
    full = topology.node_ids[v]
    small = "" if plan.size > 9 else " small"
    label = element(
        "text",
        escape(fitted(full, plan.box - 4, plan.size)),
        x=x,
        y=y + plan.size * 0.36,
        class_=f"middle{small}",
    )
    parts = [
        element("title", escape(f"{full}{rank}, {drawn.depth[v]} steps from the root")),
        element(
            "rect",
            x=x - plan.box / 2,
            y=y - plan.tall / 2,
            width=plan.box,
            height=plan.tall,
            rx=5,
            class_=kind,
        ),
        label,
    ]
    if v in plan.more:
        at, line = plan.more[v]
        words = escape(f"+{drawn.hidden[v]} more")
        parts.append(element("text", words, x=at, y=line + plan.size * 0.36, class_=f"quiet{small}"))
    return element("g", *parts)
