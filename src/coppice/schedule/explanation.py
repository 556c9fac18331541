"""What a plan looks like: its busiest links, and how high its trees are."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction

from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import LinkLoads, body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import tree_heights
from coppice.topology.model import NodeKind

__all__ = ["HeightCount", "LinkClass", "height_counts", "link_classes", "plan_loads"]


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
