"""Explain a plan's speed: its bottleneck, its busiest links, and the heights of its trees."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.arguments import checked
from coppice.bounds.describe import describe_cut
from coppice.bounds.problem import Problem
from coppice.errors import InputError
from coppice.schedule.files.set_file import plan_at
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import LinkLoads, body_loads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import draw_tree, shape, tree_heights
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.verify import verify_plan
from coppice.text import bandwidth_text, bar, percent_text, plural, rate_text
from coppice.topology.model import NodeKind

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import ExplanationJson

DRAWN_RANKS = 32
"""Up to so many ranks the first tree is drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkClass:
    """Links with the same kinds of ends, rate and utilisation."""

    src_kind: NodeKind  # Kind of the sending ends
    dst_kind: NodeKind  # Kind of the receiving ends
    gb_per_s: Fraction  # Rate of each link
    load: Fraction  # Share of the plan's time for which each is busy, 1 at most
    count: int  # Number of links
    example: int  # Id of the first of them


@dataclass(frozen=True, kw_only=True, slots=True)
class HeightCount:
    """Number of trees of one phase with the same height."""

    phase: Phase  # Broadcast or reduce
    height: int  # Hops between the root and the farthest rank
    trees: int  # Number of trees
    share: Fraction  # Share of the data of the phase that they carry


def plan_loads(plan: Plan) -> LinkLoads:
    """Exact load of every link under ``plan``."""
    return body_loads(plan.body, plan.problem)


def link_classes(loads: LinkLoads) -> list[LinkClass]:
    """Classes of links, the busiest first."""
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
    """Number of trees by phase and height, lowest first."""
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


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Limits, link utilisation and tree shapes of a plan; printing it shows all of them."""

    plan: Plan  # The plan, which verifies
    report: Report  # What its verification says
    loads: LinkLoads  # What every link carries
    links: list[LinkClass]  # Links in classes, the busiest first
    heights: list[HeightCount] | None  # Trees by phase and height; None for a plan that is no forest

    @property
    def summary(self) -> list[tuple[str, str]]:
        """Named values: bound, bottleneck, rate of the plan, its trees or transfers.

        It is called the optimum where the plan reaches it and it is proved, and a claim where nothing proves it.
        """
        plan, found = self.plan, self.plan.bound
        fields = []
        if found is not None:
            least = bandwidth_text(found.algbw_gb_per_s, found.busbw_gb_per_s)
            if self.report.optimal and self.report.inv_rate == found.inv_rate:
                fields.append(("optimum", least))
            elif self.report.bound_proved:
                fields.append(("bound", f"{least}: proved, no {self.report.slower} is faster"))
            else:
                fields.append(("claimed bound", f"{least}: not proved, there is no witness"))
            if self.report.bound_proved:
                fields.append(("bottleneck", describe_cut(found)))
        if self.loads.inv_rate:
            rate = plan.problem.shards / self.loads.inv_rate
            factor = plan.problem.busbw_factor
            fields.append(("plan", f"{bandwidth_text(rate, rate * factor)} by its busiest link"))
        if plan.forest is not None:
            trees = shape(plan.forest)
            per_root = "differ" if trees.trees_per_root is None else str(trees.trees_per_root)
            fields.append(("trees", f"{per_root} per root, {trees.distinct_trees} distinct"))
        if plan.schedule is not None:
            chunks = plural(plan.schedule.num_chunks, "chunk")
            fields.append(("transfers", f"{plan.schedule.num_transfers} of {chunks}"))
        return fields

    def lines(self, *, top: int = 12, tree: int | None = None) -> list[str]:
        """Links by utilisation, trees by height, and one tree, as text.

        Args:
            top: How many classes of links to list.
            tree: Tree to draw; None draws the first of a plan for up to 32 ranks.

        Raises:
            InputError: If there is no such tree.
        """
        self.check_tree(tree)
        lines = ["", "Links, by how long they are busy", *self._link_lines(top)]
        forest = self.plan.forest
        if forest is not None and self.heights is not None:
            lines += ["", "Trees, by height", *map(_height_line, self.heights)]
            if tree is not None or self.plan.topology.num_ranks <= DRAWN_RANKS:
                lines += ["", *_drawing(forest, tree or 0)]
        return lines

    def check_tree(self, tree: int | None) -> None:
        """Refuse the number of a tree that the plan does not have.

        Raises:
            InputError: If there is no such tree.
        """
        trees = 0 if self.plan.forest is None else self.plan.forest.num_trees
        if tree is None or 0 <= tree < trees:
            return
        if trees:
            msg = f"expected a tree of 0 .. {trees - 1}, found {tree}: name one of these (`tree=0`)."
        else:
            msg = f"the plan is made of transfers and has no tree {tree} to draw: leave out `tree`."
        raise InputError(msg)

    def record(self) -> ExplanationJson:
        """The explanation as JSON values: fractions as text, nodes by name."""
        plan, topology = self.plan, self.plan.topology
        rate = plan.problem.shards / self.loads.inv_rate if self.loads.inv_rate else None
        return {
            "collective": plan.problem.collective.value,
            "topology": topology.name,
            "ranks": topology.num_ranks,
            "load_ns_per_byte": str(self.loads.inv_rate),
            "planned_inv_rate": str(self.loads.inv_rate),
            "load_algbw_exact_gb_per_s": None if rate is None else str(rate),
            "planned_algbw_exact": None if rate is None else str(rate),
            "optimal": self.report.optimal,
            "bound_proved": self.report.bound_proved,
            "cut": None if plan.bound is None else [topology.node_ids[node] for node in plan.bound.cut],
            "cut_in_words": describe_cut(plan.bound) if plan.bound and self.report.bound_proved else None,
            "links": [
                {
                    "from_kind": links.src_kind.name.lower(),
                    "to_kind": links.dst_kind.name.lower(),
                    "gb_per_s": str(links.gb_per_s),
                    "busy_share": str(links.load),
                    "load": str(links.load),
                    "count": links.count,
                    "example": topology.link_name(links.example).split(" -> "),
                }
                for links in self.links
            ],
            "heights": None
            if self.heights is None
            else [
                {
                    "phase": row.phase.name.lower(),
                    "height": row.height,
                    "trees": row.trees,
                    "data_share": str(row.share),
                    "share": str(row.share),
                }
                for row in self.heights
            ],
        }

    def _link_lines(self, top: int) -> list[str]:
        lines = []
        for links in self.links[:top]:
            ends = f"{links.src_kind.name.lower()} -> {links.dst_kind.name.lower()}"
            lines.append(
                f"  {bar(float(links.load), width=24)} {percent_text(links.load):>8}  "
                f"{plural(links.count, 'link'):>12}  {ends:<16}  {rate_text(links.gb_per_s):>8} GB/s  "
                f"such as {self.plan.topology.link_name(links.example)}"
            )
        rest = self.links[top:]
        if rest:
            count, share = sum(links.count for links in rest), percent_text(rest[0].load)
            lines.append(f"  and {plural(count, 'link')} that are busy for {share} of the time or less")
        return lines

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.summary)
        fields = [f"  {name:<{width}}  {value}" for name, value in self.summary]
        return "\n".join([title_of(self.plan.problem), *fields, *self.lines()])

    def __repr__(self) -> str:
        return f"<explanation of {self.plan!r}; print it>"


@checked
def explain(plan: object, *, size: int | str | None = None) -> Explanation:
    """Explain a plan: the cut that limits it, the utilisation of its links, the shape of its trees.

    Args:
        plan: A plan, what holds one, or the name of a plan file; it is verified first. Or a set of plans.
        size: Of a set of plans that one is explained which is for this size M; other plans are for any size.

    Raises:
        CheckError: If it does not verify.
        InputError: If there is no plan in ``plan``, or a set without a size.

    Examples:
        >>> import coppice
        >>> explain(coppice.plan(coppice.load("star", gpus=4), "all_gather")).links[0].count
        4
    """
    found = plan_at(plan, size)
    report = verify_plan(found)
    report.require_ok()
    loads = plan_loads(found)
    heights = None if found.forest is None else height_counts(found.forest)
    return Explanation(found, report, loads, link_classes(loads), heights)


def title_of(problem: Problem) -> str:
    """Title of output about a problem."""
    topology = problem.topology
    return f"{problem.collective} on {topology.name} ({plural(topology.num_ranks, 'rank')})"


def _height_line(row: HeightCount) -> str:
    name = "broadcast" if row.phase == Phase.BROADCAST else "reduce"
    share = f"{bar(float(row.share), width=24)} {percent_text(row.share):>8}"
    return f"  {share}  height {row.height:<3} {plural(row.trees, f'{name} tree')}"


def _drawing(forest: Forest, tree: int) -> list[str]:
    """A tree as text."""
    phase = Phase(int(forest.tree_phase[tree]))
    share = f"{int(forest.tree_weight[tree])}/{forest.phase_weight(phase)}"
    word = "from its root" if phase == Phase.BROADCAST else "to its root"
    return [f"Tree {tree}: {share} of the data, {word}", *(f"  {line}" for line in draw_tree(forest, tree))]
