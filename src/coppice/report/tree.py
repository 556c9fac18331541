"""Layered drawings of a plan's trees: a level per step from the root, an arrow per transfer.

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

from coppice.report.svg import Markup, drawing, element, escape, fitted, join, number
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

LINE = 26.0
FLAT_DEPTH = 12
"""Trees up to this depth lie on their side, where their labels have room; deeper ones hang down."""

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
    deepest = max(drawn.depth.values())
    across = _positions(drawn, sketch.root)
    lines = max(across.values()) + 1
    flat = deepest <= FLAT_DEPTH
    longest = max(len(topology.node_ids[v]) for v in drawn.order)
    box = min(max(6.6 * longest + 14, 44.0), 150.0)
    more = 70.0 if any(drawn.hidden.values()) else 0.0
    if flat:
        room = min(box + 90, (1100 - box - more) / max(deepest, 1)) if deepest else 0.0
        box = min(box, max(room - 24, 40.0)) if deepest else box
        place = {v: (box / 2 + 6 + drawn.depth[v] * room, 18 + across[v] * LINE) for v in drawn.order}
        width, height = 12 + box + deepest * room + more, 36 + (lines - 1) * LINE
    else:
        place = {v: (box / 2 + 6 + across[v] * (box + 12), 18 + drawn.depth[v] * 40) for v in drawn.order}
        width, height = 12 + lines * (box + 12) + more, 40 + deepest * 40
    edges = [_edge(topology, sketch, drawn, v, place, box, name=name, flat=flat) for v in drawn.order[1:]]
    nodes = [_node(topology, v, drawn, place[v], box) for v in drawn.order]
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
    return drawing(max(width, 320), height, marker, join(edges), join(nodes), name="tree", label=sketch.title)


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


def _positions(drawn: _Drawn, root: int) -> dict[int, float]:
    """Place of each node across the levels: leaves one after the other, parents at the middle of their children."""
    place: dict[int, float] = {}
    leaves = 0
    stack = [(root, False)]
    while stack:
        v, again = stack.pop()
        children = drawn.below.get(v, [])
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
    topology: Topology,
    sketch: Sketch,
    drawn: _Drawn,
    v: int,
    place: Mapping[int, tuple[float, float]],
    box: float,
    *,
    name: str,
    flat: bool,
) -> Markup:
    """An arrow in the direction of the data; hovering tells its path and the slowest link on it."""
    parent = drawn.parent[v]
    (px, py), (x, y) = place[parent], place[v]
    if flat:
        start, end = (px + box / 2, py), (x - box / 2, y)
        bend = (end[0] - start[0]) / 2
        controls = ((start[0] + bend, start[1]), (end[0] - bend, end[1]))
    else:
        start, end = (px, py + 9), (x, y - 9)
        bend = (end[1] - start[1]) / 2
        controls = ((start[0], start[1] + bend), (end[0], end[1] - bend))
    points = [start, *controls, end]
    if sketch.upward:
        points.reverse()
    written = [f"{number(a)} {number(b)}" for a, b in points]
    path = next(path for child, path in sketch.children[parent] if child == v)
    names = topology.node_ids
    slowest = min(
        (topology.gb_per_s(topology.link_index[pair]) for pair in pairwise(path)), default=Fraction(0)
    )
    words = f"{names[path[0]]} → {names[path[-1]]}"
    if len(path) > 2:
        words += f" via {', '.join(names[w] for w in path[1:-1])}"
    words += f"; {rate_text(slowest)} GB/s at its slowest link"
    same = topology.host[parent] == topology.host[v]
    line = element(
        "path",
        d=f"M{written[0]}C{' '.join(written[1:])}",
        class_=f"edge {'inside' if same else 'across'}",
        marker_end=f"url(#{name}-arrow)",
    )
    return element("g", element("title", escape(words)), line)


def _node(topology: Topology, v: int, drawn: _Drawn, at: tuple[float, float], box: float) -> Markup:
    """A node with its name; beside it how many below it are not drawn."""
    x, y = at
    kind = "gpu" if topology.kind[v] == NodeKind.GPU else "switch"
    rank = f", rank {int(topology.rank[v])}" if topology.rank[v] >= 0 else ""
    full = topology.node_ids[v]
    parts = [
        element("title", escape(f"{full}{rank}, {drawn.depth[v]} steps from the root")),
        element("rect", x=x - box / 2, y=y - 9, width=box, height=18, rx=5, class_=kind),
        element("text", escape(fitted(full, box - 4, 10)), x=x, y=y + 3.6, class_="middle"),
    ]
    if drawn.hidden[v]:
        more = escape(f"+{drawn.hidden[v]} more")
        if drawn.below.get(v):  # edges leave to the right: the words stand below
            parts.append(element("text", more, x=x, y=y + 22, class_="quiet middle"))
        else:
            parts.append(element("text", more, x=x + box / 2 + 5, y=y + 3.6, class_="quiet"))
    return element("g", *parts)
