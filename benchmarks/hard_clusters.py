"""Planning on clusters with little symmetry: time, heights beside the healthy cluster's, and whether optimal.

    python benchmarks/hard_clusters.py [--only PATTERN] [--write]

One plan of each with its bound, of an all-gather unless it is said; verification is not in the time. `wall` is what
passed and what the goals are for, `cpu` what one free core would take. Run it where nothing else runs.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

from rich.console import Console

from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from coppice.planners.forest.repairing import repaired_plan
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.schedule.verification.verify import verify
from coppice.topology import preset, resolve
from coppice.topology.composition.compose import Host, compose, gpu_ports, repeated
from coppice.topology.composition.fabric import RailFabric
from coppice.topology.model import Topology
from coppice.topology.operations import remove_links, remove_nodes, set_link_rate
from coppice.topology.presets.direct import network
from planner_cases import with_slow_nic
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent


def dragonfly(groups: int, routers: int, gpus: int) -> Topology:
    """A dragonfly of its preset's rates."""
    return preset("dragonfly", groups=groups, routers_per_group=routers, gpus_per_router=gpus)


def regular(gpus: int, degree: int, seed: int = 0) -> Topology:
    """A random graph in which every GPU has as many links: random pairs, swapped until no pair repeats."""
    draw = random.Random(seed)
    ends = [v for v in range(gpus) for _ in range(degree)]
    draw.shuffle(ends)
    pairs = [(ends[i], ends[i + 1]) for i in range(0, len(ends), 2)]
    while True:
        seen: set[tuple[int, int]] = set()
        bad = next((i for i, pair in enumerate(pairs) if pair[0] == pair[1] or _known(seen, pair)), None)
        if bad is None:
            break
        other = draw.randrange(len(pairs))
        (a, b), (c, d) = pairs[bad], pairs[other]
        pairs[bad], pairs[other] = (a, d), (c, b)
    links = [((min(pair), max(pair)), Fraction(1)) for pair in pairs]
    return network(f"random graph of {gpus}, degree {degree}", gpus, links, duplex=True)


def _known(seen: set[tuple[int, int]], pair: tuple[int, int]) -> bool:
    """Whether a pair was seen before, either way round; it is from now on."""
    key = (min(pair), max(pair))
    known = key in seen
    seen.add(key)
    return known


def mixed(boxes: int) -> Topology:
    """As many A100 boxes as H100 boxes on eight common rails."""
    hosts = []
    for name, rate in (("dgx-a100", 25), ("dgx-h100", 50)):
        box = preset(name)
        one = Host(name=name.removeprefix("dgx-") + "-", topology=box, ports=gpu_ports(box, Fraction(rate)))
        hosts += repeated(one, boxes // 2)
    return compose(hosts, RailFabric(rails=8), name=f"{boxes // 2} A100 and {boxes // 2} H100 boxes")


def lossy_torus(dims: str, seed: int = 0) -> Topology:
    """A torus without 1% of its links."""
    whole = resolve("torus", options={"dims": dims})
    ends = zip(whole.src.tolist(), whole.dst.tolist(), strict=True)
    pairs = [(whole.node_ids[a], whole.node_ids[b]) for a, b in ends if a < b]
    return remove_links(whole, random.Random(seed).sample(pairs, round(len(pairs) / 100)))


@dataclass(frozen=True, kw_only=True)
class Hard:
    """A case, the cluster without its fault where it has one, and the seconds that planning may take."""

    name: str
    made: Callable[[], Topology]
    healthy: Callable[[], Topology] | None = None
    goal_s: float | None = None
    collective: Collective = Collective.ALL_GATHER


def _slow(name: str, boxes: int, goal_s: float | None = None) -> Hard:
    return Hard(
        name=f"{name} x {boxes}, one NIC at half rate",
        made=lambda: with_slow_nic(resolve(name, boxes=boxes)),
        healthy=lambda: resolve(name, boxes=boxes),
        goal_s=goal_s,
    )


def rails() -> Topology:
    """128 H100 boxes on eight rails of eight leaves, over eight spines."""
    box = preset("dgx-h100")
    hosts = repeated(Host(name="box", topology=box, ports=gpu_ports(box, Fraction(50))), 128)
    return compose(hosts, RailFabric(rails=8, spines=8, hosts_per_leaf=16), name="128 H100 boxes on rails")


REPAIR_GOAL_S = 0.2

FAULTS: dict[str, Callable[[Topology], Topology]] = {
    "a NIC at half rate": lambda whole: set_link_rate(whole, "box5/gpu3", "rail3/leaf0", "50%"),
    "a dead NIC": lambda whole: remove_links(whole, [("box5/gpu3", "rail3/leaf0")]),
    "a NIC at half rate one way": lambda whole: set_link_rate(
        whole, "box5/gpu3", "rail3/leaf0", "50%", one_way=True
    ),
    "a GPU less": lambda whole: remove_nodes(whole, ["box5/gpu3"]),
    "a GPU without NVLink": lambda whole: remove_links(whole, [("box5/gpu3", "box5/nvswitch")]),
    "NVLink of a GPU at half rate": lambda whole: set_link_rate(whole, "box5/gpu3", "box5/nvswitch", "50%"),
    "no spine link": lambda whole: remove_links(whole, [("rail3/leaf0", "spine2")]),
    "no spine link one way": lambda whole: remove_links(whole, [("rail3/leaf0", "spine2")], one_way=True),
    "a spine less": lambda whole: remove_nodes(whole, ["spine2"]),
}


def _after(change: Callable[[Topology], Topology]) -> Topology:
    """The rails after a fault."""
    return change(rails())


def _faults(collective: Collective) -> tuple[Hard, ...]:
    return tuple(
        Hard(
            name=f"128 H100 boxes, {fault}, {collective}",
            made=partial(_after, change),
            healthy=rails,
            goal_s=3,
            collective=collective,
        )
        for fault, change in FAULTS.items()
    )


CASES = (
    Hard(name="dragonfly 9x4x2", made=lambda: dragonfly(9, 4, 2)),
    Hard(name="dragonfly 17x8x2", made=lambda: dragonfly(17, 8, 2), goal_s=1),
    Hard(name="dragonfly 33x8x4", made=lambda: dragonfly(33, 8, 4), goal_s=60),
    Hard(name="random regular 128, degree 4", made=lambda: regular(128, 4)),
    Hard(name="random regular 512, degree 4", made=lambda: regular(512, 4), goal_s=3),
    Hard(name="random regular 512, degree 8", made=lambda: regular(512, 8), goal_s=3),
    Hard(name="32 A100 and 32 H100 boxes", made=lambda: mixed(64), goal_s=3),
    Hard(
        name="torus 32x32 without 1% of links",
        made=lambda: lossy_torus("32x32"),
        healthy=lambda: resolve("torus", options={"dims": "32x32"}),
        goal_s=3,
    ),
    Hard(
        name="torus 8x8x16 without 1% of links",
        made=lambda: lossy_torus("8x8x16"),
        healthy=lambda: resolve("torus", options={"dims": "8x8x16"}),
        goal_s=3,
    ),
    _slow("dgx-a100", 16),
    _slow("dgx-a100", 32),
    _slow("dgx-a100", 64),
    _slow("dgx-a100", 128, 3),
    _slow("mi250", 4),
    _slow("mi250", 16),
    _slow("mi250", 64, 5),
    *_faults(Collective.ALL_GATHER),
    *_faults(Collective.ALL_REDUCE),
)


def row(case: Hard) -> tuple[str, ...]:
    """Figures of one case."""
    problem = Problem(topology=case.made(), collective=case.collective)
    wall, cpu = time.perf_counter(), time.process_time()
    optimum = bound(problem)
    forest = plan_forest(problem, optimum=optimum)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    report = verify(Plan(problem=problem, inv_rate=optimum.inv_rate, forest=forest, bound=optimum))
    found, healthy = shape(forest), None
    reached = optimum.inv_rate if optimum.attainable is None else optimum.attainable
    if case.healthy is not None:
        healthy = shape(plan_forest(replace_topology(problem, case.healthy()))).max_height
    verdicts = []
    if case.goal_s is not None:
        verdicts.append(f"{'ok' if wall <= case.goal_s else 'MISS'} wall <= {number(case.goal_s, unit='s')}")
    if healthy is not None:
        verdicts.append(f"{'ok' if found.max_height <= 2 * healthy else 'MISS'} height <= twice the healthy")
    return (
        case.name,
        number(problem.topology.num_ranks),
        number(found.trees_per_root),
        number(found.distinct_trees),
        number(wall, unit="s"),
        number(cpu, unit="s"),
        number(found.max_height),
        number(float(found.mean_height)),
        number(healthy),
        "optimal" if report.ok and report.inv_rate == reached else "MISS optimal",
        "; ".join(verdicts),
    )


def repaired_row(fault: str, collective: Collective, given: Plan) -> tuple[str, ...]:
    """Figures of the repair of a plan of the whole rails after a fault."""
    cpu = time.process_time()
    plan, figures = repaired_plan(given, _after(FAULTS[fault]))
    cpu = time.process_time() - cpu
    report = verify(plan)
    assert plan.forest is not None
    found, best = shape(plan.forest), bound(plan.problem)
    reached = best.inv_rate if best.attainable is None else best.attainable
    taken = plan.inv_rate
    loss = "optimal" if taken == reached else f"{100 * float(1 - reached / taken):.2f}% below"
    return (
        f"{fault}, {collective}",
        number(cpu, unit="s"),
        number(found.max_height),
        number(float(found.mean_height)),
        number(figures["kept"]),
        loss if report.ok else "MISS verified",
        f"{'ok' if cpu <= REPAIR_GOAL_S else 'MISS'} cpu <= {number(REPAIR_GOAL_S, unit='s')}",
    )


def repairs(only: str) -> Table:
    """Repairs of plans of the whole rails after each fault."""
    table = Table(
        title="Repair of a given plan: 128 H100 boxes",
        header=("fault and collective", "cpu", "height", "mean", "trees kept", "rate", "goal"),
        notes=["Without reading the plan and verifying the repair."],
    )
    for collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE):
        chosen = [fault for fault in FAULTS if fnmatch.fnmatch(f"repair, {fault}, {collective}", only)]
        if not chosen:
            continue
        problem = Problem(topology=rails(), collective=collective)
        optimum = bound(problem)
        forest = plan_forest(problem, optimum=optimum)
        given = Plan(problem=problem, inv_rate=optimum.inv_rate, forest=forest, bound=optimum)
        for fault in chosen:
            table.rows.append(repaired_row(fault, collective, given))
            print("repair: " + "; ".join(table.rows[-1]), flush=True)
    return table


def replace_topology(problem: Problem, topology: Topology) -> Problem:
    """The same collective on another topology."""
    return Problem(topology=topology, collective=problem.collective)


def main() -> None:
    """Print the table, or write it into hard_clusters.md as well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="cases that match this pattern")
    parser.add_argument("--write", action="store_true", help="rewrite the table in hard_clusters.md")
    options = parser.parse_args()
    table = Table(
        title="Clusters with little symmetry",
        header=(
            *("case", "GPUs", "trees/root", "distinct", "wall", "cpu", "height", "mean", "healthy"),
            *("rate", "goals"),
        ),
        notes=[
            "height: most GPU-to-GPU hops; healthy: of the cluster without the fault.",
            f"Mean load of the machine during the last minutes: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores.",
        ],
    )
    for case in CASES:
        if fnmatch.fnmatch(case.name, options.only):
            table.rows.append(row(case))
            print("; ".join(table.rows[-1]), flush=True)
    again = repairs(options.only)
    table.show(Console())
    again.show(Console())
    if options.write:
        machine = f"`python benchmarks/hard_clusters.py` on {platform.system()} {platform.machine()}.\n\n"
        replace_generated(
            HERE / "hard_clusters.md",
            "hard_clusters.py",
            machine + table.markdown() + "\n\n" + again.markdown(),
        )


if __name__ == "__main__":
    main()
