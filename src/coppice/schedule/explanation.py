"""What a plan looks like: its busiest links, how high its trees are, and a tree drawn in text."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction

from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import LinkLoads, body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import tree_heights
from coppice.topology.model import NodeKind

__all__ = ["HeightCount", "LinkClass", "draw_tree", "height_counts", "link_classes", "plan_loads"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkClass:
    """Links between the same kinds of ends, of the same rate, that are busy for the same share of the time.

    Attributes:
        src_kind: Kind of the sending ends.
        dst_kind: Kind of the receiving ends.
        gb_per_s: Rate of each link.
        load: Share of the plan's time for which each is busy, 1 at most.
        count: Number of links.
        example: Id of the first of them.
    """

    src_kind: NodeKind
    dst_kind: NodeKind
    gb_per_s: Fraction
    load: Fraction
    count: int
    example: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeightCount:
    """Trees of one phase that have the same height.

    Attributes:
        phase: Broadcast or reduce.
        height: Hops between the root and the farthest rank.
        trees: Number of trees.
        share: Share of the data of the phase that they carry.
    """

    phase: Phase
    height: int
    trees: int
    share: Fraction


def plan_loads(plan: Plan) -> LinkLoads:
    """Exact load of every link under ``plan``.

    Raises:
        InputError: If its columns are malformed or a path uses a link that does not exist.
    """
    return body_loads(plan.body, plan.problem)


def link_classes(loads: LinkLoads) -> list[LinkClass]:
    """All links in classes, the busiest first."""
    topology, inv_rate = loads.topology, loads.inv_rate
    members: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    kind, src, dst = topology.kind.tolist(), topology.src.tolist(), topology.dst.tolist()
    for link, (units, capacity) in enumerate(zip(loads.load, topology.capacity.tolist(), strict=True)):
        members[kind[src[link]], kind[dst[link]], capacity, units].append(link)
    classes = [
        LinkClass(
            src_kind=NodeKind(src_kind),
            dst_kind=NodeKind(dst_kind),
            gb_per_s=Fraction(capacity, topology.denominator),
            load=loads.utilisation(links[0], inv_rate),
            count=len(links),
            example=links[0],
        )
        for (src_kind, dst_kind, capacity, _), links in members.items()
    ]
    return sorted(classes, key=lambda c: (-c.load, -c.count * c.gb_per_s, c.example))


def height_counts(forest: Forest) -> list[HeightCount]:
    """Trees by phase and height, lowest first.

    Raises:
        InputError: If the edges of the forest do not form trees.
    """
    trees: Counter[tuple[int, int]] = Counter()
    weight: Counter[tuple[int, int]] = Counter()
    columns = (forest.tree_phase.tolist(), tree_heights(forest).tolist(), forest.tree_weight.tolist())
    for phase, height, share in zip(*columns, strict=True):
        trees[phase, height] += forest.num_images
        weight[phase, height] += share * forest.num_images
    totals = {phase: forest.phase_weight(phase) for phase in Phase}
    return [
        HeightCount(
            phase=Phase(phase),
            height=height,
            trees=trees[phase, height],
            share=Fraction(weight[phase, height], totals[Phase(phase)]),
        )
        for phase, height in sorted(trees)
    ]


def draw_tree(forest: Forest, tree: int) -> list[str]:
    r"""Lines that show a tree from its root, with the switches that each edge passes.

    Args:
        forest: A verified forest.
        tree: Row of the tree.

    Examples:
        >>> import numpy as np
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.model import Link, Node, Topology
        >>> star = Topology.of(
        ...     "star",
        ...     [*(Node(id=name) for name in "abc"), Node(id="hub", kind=NodeKind.SWITCH)],
        ...     [Link(src=name, dst="hub", gb_per_s=Fraction(25)) for name in "abc"],
        ... )
        >>> forest = Forest(topology=star, collective=Collective.BROADCAST, tree_root=np.array([0]),
        ...                 tree_weight=np.array([1]), tree_phase=np.array([0]), tree_start=np.array([0, 2]),
        ...                 edge_src=np.array([0, 1]), edge_dst=np.array([1, 2]), edge_path=np.array([0, 1]),
        ...                 path_start=np.array([0, 3, 6]), path_nodes=np.array([0, 3, 1, 1, 3, 2]))
        >>> print(*draw_tree(forest, 0), sep="\n")
        a
        └─ b  via hub
           └─ c  via hub
    """
    names = forest.topology.node_ids
    upward = forest.tree_phase[tree] == Phase.REDUCE
    children: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for sender, receiver, path in forest.edges(tree):
        parent, child = (receiver, sender) if upward else (sender, receiver)
        children[parent].append((child, path[1:-1]))
    root = int(forest.tree_root[tree])
    lines = [names[root]]
    stack = [(child, via, "", place == 0) for place, (child, via) in enumerate(reversed(children[root]))]
    while stack:
        node, via, indent, last = stack.pop()
        passing = f"  via {', '.join(names[v] for v in via)}" if via else ""
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{names[node]}{passing}")
        deeper = indent + ("   " if last else "│  ")
        stack += [
            (child, passed, deeper, place == 0)
            for place, (child, passed) in enumerate(reversed(children[node]))
        ]
    return lines
