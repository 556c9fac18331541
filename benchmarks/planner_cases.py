"""What the forest benchmark measures, and what is asked of each case."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coppice.errors import InputError
from coppice.topology import resolve, scale_nodes, set_link_rate
from coppice.topology.model import NodeKind, Topology

__all__ = ["CASES", "Case", "Goal", "Work", "topology_of"]


class Work(StrEnum):
    """What is done with a case's topology."""

    PLAN = "plan"  # bound, forest, verification
    BOUND = "bound"  # bound only
    RANDOM = "random"  # bound, forest and verification of many random networks


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """A figure that must stay below (or at) a limit.

    Attributes:
        figure: Name of the measured figure.
        limit: Its limit.
        strict: The figure must be below the limit, not at it.
    """

    figure: str
    limit: float
    strict: bool = False

    def reached(self, value: float) -> bool:
        """Whether a measured value keeps the limit."""
        return value < self.limit if self.strict else value <= self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One row of the table.

    Attributes:
        name: Unique name.
        family: Cases of one family differ in size only: the growth with N is fitted over them.
        preset: Name of the preset.
        boxes: Its number of boxes, for presets that have boxes.
        options: Its parameters.
        slow_nic: One GPU's links to the network run at half rate.
        work: What to do.
        trees: Trees per root, None for as many as the optimum needs.
        goals: What is asked.
        quick: Small enough for a quick run.
        reference: The public implementation can be run on it: its builder and number of boxes.
    """

    name: str
    family: str
    preset: str
    boxes: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    slow_nic: bool = False
    work: Work = Work.PLAN
    trees: int | None = None
    goals: tuple[Goal, ...] = ()
    quick: bool = False
    reference: tuple[str, int] | None = None


def topology_of(case: Case, *, seed: int = 0) -> Topology:
    """The topology of a case (of number ``seed``, for random networks)."""
    if case.work is Work.RANDOM:
        sizes = random.Random(seed)
        options = {
            "gpus": str(sizes.randint(3, 16)),
            "switches": str(sizes.randint(0, 8)),
            "seed": str(seed),
        }
        return resolve(case.preset, options=options)
    topology = resolve(case.preset, boxes=case.boxes, options=case.options)
    return with_slow_nic(topology) if case.slow_nic else topology


def with_slow_nic(topology: Topology) -> Topology:
    """The topology with the network link of rank 0's GPU at half rate, both ways, NIC included."""
    first = int(topology.rank_nodes[0])
    for link in range(topology.num_links):
        a, b = int(topology.src[link]), int(topology.dst[link])
        if a == first and topology.kind[b] == NodeKind.NIC:
            return scale_nodes(topology, {topology.node_ids[b]: "1/2"})
        if a == first and topology.kind[b] == NodeKind.SWITCH and topology.host[b] < 0:
            return set_link_rate(topology, topology.node_ids[a], topology.node_ids[b], "50%")
    raise InputError(f"expected a network link at rank 0 of {topology.name}, found none: take several boxes.")


def _planned() -> list[Case]:
    seconds = {("dgx-a100", 128): 3.0, ("mi250", 64): 10.0}
    cases: list[Case] = []
    for preset, boxes_list in (
        ("dgx-a100", (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048)),
        ("mi250", (1, 2, 4, 8, 16, 32, 64, 256, 1024)),
        ("dgx-h100", (2, 4, 8, 16, 32, 64, 128, 512, 2048)),
    ):
        for boxes in boxes_list:
            goals: list[Goal] = []
            if (preset, boxes) in seconds:
                goals += [
                    Goal(figure="plan_s", limit=seconds[preset, boxes]),
                    Goal(figure="peak_gib", limit=2.0),
                ]
            if preset == "dgx-a100" and boxes >= 4:
                goals.append(Goal(figure="max_height", limit=2))
            if (preset, boxes) == ("dgx-a100", 2):
                goals.append(Goal(figure="mean_height", limit=3.5, strict=True))
            if (preset, boxes) == ("mi250", 2):
                goals.append(Goal(figure="mean_height", limit=8.3, strict=True))
                goals.append(Goal(figure="max_height", limit=22, strict=True))
            if preset != "dgx-h100" and boxes * (8 if preset == "dgx-a100" else 16) == 1024:
                goals.append(Goal(figure="bound_s", limit=0.020))
            if boxes * (16 if preset == "mi250" else 8) == 16384:
                goals.append(Goal(figure="plan_s", limit=60.0, strict=True))
            exact = (preset, boxes) in (("dgx-a100", 2), ("dgx-a100", 4), ("mi250", 2))
            cases.append(
                Case(
                    name=f"{preset} x {boxes}",
                    family=preset,
                    preset=preset,
                    boxes=boxes,
                    goals=tuple(goals),
                    quick=boxes <= 4,
                    reference=(preset, boxes) if exact else None,
                )
            )
    cases += [
        Case(
            name=f"{preset} x 2, k=1",
            family=f"{preset} k=1",
            preset=preset,
            boxes=2,
            trees=1,
            quick=True,
            reference=(preset, 2),
        )
        for preset in ("dgx-a100", "mi250")
    ]
    cases += [
        Case(
            name=f"{preset} x {boxes}, one NIC at half rate",
            family=f"{preset}, slow NIC",
            preset=preset,
            boxes=boxes,
            slow_nic=True,
            goals=(Goal(figure="plan_s", limit=30.0), Goal(figure="peak_gib", limit=2.0)) if last else (),
            quick=boxes <= 4,
        )
        for preset, boxes, last in (
            ("dgx-a100", 4, False),
            ("dgx-a100", 32, False),
            ("dgx-a100", 128, True),
            ("mi250", 4, False),
            ("mi250", 16, False),
            ("mi250", 64, True),
        )
    ]
    return cases


def _networks() -> list[Case]:
    cases = [
        Case(
            name=f"torus {dims}",
            family=f"torus {dims.count('x') + 1}D",
            preset="torus",
            options={"dims": dims},
            goals=(Goal(figure="plan_s", limit=60.0, strict=True),) if dims == "128x128" else (),
            quick=quick,
        )
        for dims, quick in (
            ("4x4", True),
            ("8x8", True),
            ("16x16", False),
            ("32x32", False),
            ("64x64", False),
            ("128x128", False),
            ("4x4x4", True),
            ("8x8x8", False),
            ("10x10x10", False),
            ("16x16x16", False),
        )
    ]
    cases += [
        Case(
            name=f"fat-tree {leaves}x{gpus}",
            family="fat-tree",
            preset="fat-tree",
            options={"leaves": str(leaves), "gpus_per_leaf": str(gpus), "spines": str(spines)},
            quick=leaves <= 8,
        )
        for leaves, gpus, spines in ((4, 4, 4), (8, 8, 8), (16, 16, 16), (32, 32, 32))
    ]
    cases += [
        Case(
            name=f"dragonfly {groups}x{routers}x{gpus}",
            family="dragonfly",
            preset="dragonfly",
            options={"groups": str(groups), "routers_per_group": str(routers), "gpus_per_router": str(gpus)},
            quick=groups <= 4,
        )
        for groups, routers, gpus in ((3, 2, 2), (9, 4, 2), (17, 8, 2), (33, 8, 4))
    ]
    return cases


def _others() -> list[Case]:
    cases = [
        Case(
            name=f"bound: {preset} x {boxes}",
            family=f"bound {preset}",
            preset=preset,
            boxes=boxes,
            work=Work.BOUND,
            goals=(Goal(figure="bound_s", limit=0.020 if ranks == 1024 else 2.0),) if ranks != 4096 else (),
            quick=ranks == 1024,
        )
        for preset, per_box in (("dgx-a100", 8), ("mi250", 16))
        for ranks in (1024, 4096, 16384)
        for boxes in (ranks // per_box,)
    ]
    cases.append(
        Case(
            name="500 random networks",
            family="random",
            preset="random-balanced",
            work=Work.RANDOM,
            quick=True,
        )
    )
    return cases


CASES: tuple[Case, ...] = (*_planned(), *_networks(), *_others())
