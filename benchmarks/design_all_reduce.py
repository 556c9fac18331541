"""All-reduce on 12 nodes with four 25 Gb/s ports: the graphs that the finder picks, rings and double binary trees.

    python benchmarks/design_all_reduce.py [--write]

Each has the same ports and a cabling of its own: the found graphs run breadth-first broadcast; the rings are the best
that a search finds on circulant(12, 1, 5), which is two full-duplex rings, so that all four links of a node carry one;
they stand as they are, a shard in a message, and cut into pieces that follow each other; the trees, pipelined, get a
cable for each edge. Simulated; the tables name the time of a message beyond its links.
"""

from __future__ import annotations

import argparse
import platform
from collections import Counter
from fractions import Fraction
from itertools import permutations
from pathlib import Path

from rich.console import Console

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.design.recipes.parser import parse
from coppice.design.schedules.collectives import breadth_first_schedule
from coppice.design.search.finder import find
from coppice.planners.algorithms.catalogue import case_of, make
from coppice.planners.algorithms.catalogue import find as algorithm
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import Model
from coppice.simulation.simulator import fastest
from coppice.topology.model import Link, Node, Topology
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
NODES, PORTS, LINK = 12, 4, Fraction(25, 8)
SIZES = {"1 KiB": 2**10, "1 MiB": 2**20, "1 GiB": 2**30}
OVERHEADS_US = (1.0, 10.0)
LATENCY_US = 0.5
# What a published testbed of this shape saves, in percent of time, over rings and over trees.
PUBLISHED = {"1 KiB": (75, 20), "1 MiB": (50, 45), "1 GiB": (0, 50)}


def tree_topology() -> Topology:
    """The links of two complementary binary trees, a cable for each edge of each tree."""
    everyone = [Node(id=f"gpu{v}", host=f"host{v}") for v in range(NODES)]

    def topology(name: str, rates: dict[tuple[int, int], Fraction]) -> Topology:
        links = [
            Link(src=f"gpu{a}", dst=f"gpu{b}", gb_per_s=rate, latency_us=LATENCY_US, duplex=False)
            for (a, b), rate in rates.items()
        ]
        return Topology.of(name, everyone, links)

    mesh = topology("mesh", dict.fromkeys(permutations(range(NODES), 2), LINK))
    body = trees(mesh, 1)
    used = Counter(zip(body.src.tolist(), body.dst.tolist(), strict=True))
    ports = max(sum(count for (src, _), count in used.items() if src == v) for v in range(NODES))
    if ports > PORTS:
        raise SystemExit(f"expected trees of {PORTS} ports, found {ports}")
    return topology("trees", {ends: LINK * count for ends, count in used.items()})


def trees(topology: Topology, segments: int) -> Schedule:
    """Double binary trees in so many segments; a rank serves all its neighbours at once."""
    entry = algorithm("nccl-tree", Collective.ALL_REDUCE)
    problem = Problem(topology=topology, collective=Collective.ALL_REDUCE)
    case = case_of(entry, problem, {"segments": segments, "group": 1})
    return transfers(make(entry, case, relay_gpus=True))


def transfers(body: Schedule | Forest) -> Schedule:
    """What an algorithm makes, as transfers."""
    return lower(body) if isinstance(body, Forest) else body


def tree_times(overhead_us: float) -> dict[str, float]:
    """Times of the trees with the best number of segments."""
    topology = tree_topology()
    found: dict[str, float] = {}
    for name, size in SIZES.items():
        counts = [2**power for power in range(11) if size >> power >= 64]
        found[name] = min(simulated(trees(topology, count), size, overhead_us, most=1) for count in counts)
    return found


def simulated(body: Schedule, size: int, overhead_us: float, *, most: int = 256) -> float:
    """Simulated time with the best number of pieces."""
    if not verify_schedule(body).ok:
        raise SystemExit(f"a schedule on {body.topology.name} does not verify")
    return fastest(body, size, model=Model(overhead_us=overhead_us), most=most, keep_hops=False).time_us


def times(overhead_us: float) -> dict[str, dict[str, float]]:
    """Times by network and size."""
    found: dict[str, dict[str, float]] = {}
    for entry in find([(NODES, PORTS)], jobs=1)[NODES, PORTS]:
        graph = entry.recipe.build()
        topology = graph.to_topology(gb_per_s=LINK, latency_us=LATENCY_US)
        body = breadth_first_schedule(graph, topology, Collective.ALL_REDUCE).schedule
        found[str(entry.recipe)] = {
            name: simulated(body, size, overhead_us, most=64) for name, size in SIZES.items()
        }
    topology = parse(f"circulant({NODES}, 1, 5)").build().to_topology(gb_per_s=LINK, latency_us=LATENCY_US)
    ring = algorithm("best-ring", Collective.ALL_REDUCE)
    rings = transfers(make(ring, case_of(ring, Problem(topology=topology, collective=Collective.ALL_REDUCE))))
    found["rings, uncut"] = {
        name: simulated(rings, size, overhead_us, most=1) for name, size in SIZES.items()
    }
    found["rings"] = {name: simulated(rings, size, overhead_us) for name, size in SIZES.items()}
    found["double binary trees"] = tree_times(overhead_us)
    return found


def table(overhead_us: float) -> Table:
    """One table of times and gains."""
    found = times(overhead_us)
    others = ("rings, uncut", "rings", "double binary trees")
    graphs = [name for name in found if name not in others]
    header = (
        "size",
        *(f"{name} us" for name in found),
        "gain over uncut rings",
        "over rings",
        "over trees",
        "published",
    )
    made = Table(title=f"All-reduce on 12 nodes, 4 x 25 Gb/s, {overhead_us:g} us per message", header=header)
    for size in SIZES:
        best = min(found[name][size] for name in graphs)
        gains = [1 - best / found[other][size] for other in others]
        wanted = PUBLISHED[size]
        made.rows.append(
            (
                size,
                *(f"{by_size[size]:,.1f}" for by_size in found.values()),
                *(f"{gain:.0%}" for gain in gains),
                f"~{wanted[0]}%, ~{wanted[1]}%",
            )
        )
    made.notes.append(
        "gain: time saved, in percent of the other's time; `published` is what a testbed is said to save."
    )
    return made


def main() -> None:
    """Print the tables, or write them into design.md as well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="rewrite the tables in design.md")
    options = parser.parse_args()
    tables = [table(overhead) for overhead in OVERHEADS_US]
    for made in tables:
        made.show(Console())
    if options.write:
        machine = f"`python benchmarks/design_all_reduce.py` on {platform.system()} {platform.machine()}.\n\n"
        body = "\n".join(made.markdown() for made in tables)
        replace_generated(HERE / "design.md", "design_all_reduce.py", machine + body)


if __name__ == "__main__":
    main()
