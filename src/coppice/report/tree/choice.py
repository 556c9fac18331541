"""Which trees of a plan are worth a drawing: the tallest, the heaviest, and some from all over the plan.

A forest has its trees. The transfers of one chunk of a schedule form one where every rank receives (or adds away) the
chunk once; where they do not, as in recursive doubling, there is nothing to draw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from coppice.report.tree.picture import Sketch
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.paths import routed
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Op, Schedule
from coppice.schedule.shape import tree_heights
from coppice.text import plural

__all__ = ["sketches"]

MOST_TREES = 8

_Edge = tuple[int, int, tuple[int, ...]]


def sketches(plan: Plan, *, most: int = MOST_TREES) -> list[Sketch]:
    """Representative trees of a verified plan.

    Args:
        plan: Where to look.
        most: How many at most.

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
