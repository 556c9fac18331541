"""Methods of synthesis on a common set: rate, gap to the exact bound, seconds, and the sizes where each wins.

    python benchmarks/synthesis.py [--only METHOD] [--case PATTERN] [--time-limit SECONDS] [--write]

Rows are kept in benchmarks/synthesis.json; --only METHOD measures one method anew and keeps the rows of all others, and
--write makes benchmarks/synthesis.md and docs/synthesizers.md from all rows. Every schedule is verified. Methods that
are not installed are left out.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison import compare
from coppice.errors import CoppiceError
from coppice.planners.choice import optimal_planner
from coppice.planners.synthesis.synthesizing import METHODS
from coppice.text import percent_text, short_size
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import subset
from coppice.topology.presets import preset
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
ROWS = HERE / "synthesis.json"
PAGE = HERE / "synthesis.md"
DOCS = HERE.parent / "docs" / "synthesizers.md"
SIZES = (2**16, 2**20, 2**24, 2**28)
COLLECTIVES = (Collective.ALL_GATHER, Collective.ALL_REDUCE)
PLANNED = "optimal plan"
TIE = 1.01


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of the common set.

    Attributes:
        name: Short name.
        about: What it is.
        topology: The network itself.
    """

    name: str
    about: str
    topology: Topology


def ndv2(boxes: int) -> Topology:
    """Boxes of 8 V100 as Azure's NDv2 has them: NVLink as in a DGX-1V, and one 12.5 GB/s card for the whole box."""
    one = preset("dgx-1v")
    inside = subset(one, range(8))
    names = [inside.node_ids[v] for v in inside.rank_nodes.tolist()]
    nodes, links = [Node(id="network", kind=NodeKind.SWITCH)], []
    for b in range(boxes):
        nodes.append(Node(id=f"box{b}/pcie", kind=NodeKind.SWITCH, host=f"box{b}"))
        links.append(Link(src=f"box{b}/pcie", dst="network", gb_per_s=Fraction(25, 2)))
        for name in names:
            nodes.append(Node(id=f"box{b}/{name}", host=f"box{b}"))
            links.append(Link(src=f"box{b}/{name}", dst=f"box{b}/pcie", gb_per_s=Fraction(12)))
        links += [
            Link(src=f"box{b}/{each.src}", dst=f"box{b}/{each.dst}", gb_per_s=each.gb_per_s, duplex=False)
            for each in inside.links()
            if {each.src, each.dst} <= set(names)
        ]
    return Topology.of(f"{boxes} x ndv2", nodes, links)


def networks() -> list[Network]:
    """The common set."""
    return [
        Network(name="dgx-1v", about="8 V100, hybrid cube mesh", topology=preset("dgx-1v")),
        Network(name="ndv2 x 2", about="two boxes of 8 V100, one card each", topology=ndv2(2)),
        Network(
            name="dgx-a100 x 2", about="two boxes of 8 A100 on switches", topology=preset("dgx-a100", boxes=2)
        ),
        Network(name="mi250 x 2", about="two boxes of 16 MI250 dies", topology=preset("mi250", boxes=2)),
        Network(name="torus 4x4", about="16 GPUs", topology=preset("torus", dims=(4, 4), gb_per_s=25)),
        Network(name="torus 3x3x3", about="27 GPUs", topology=preset("torus", dims=(3, 3, 3), gb_per_s=25)),
        Network(
            name="leaf-spine 2:1",
            about="16 GPUs, 4 on a leaf, two spines",
            topology=preset("fat-tree", leaves=4, gpus_per_leaf=4, spines=2, gb_per_s=25),
        ),
        Network(
            name="random 12",
            about="12 GPUs, one-way links at random",
            topology=preset("random-balanced", gpus=12, switches=0, seed=1),
        ),
    ]


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", metavar="METHOD", choices=[*METHODS, "none"], help="measure only this one anew"
    )
    parser.add_argument("--case", default="*", metavar="PATTERN", help="networks whose name fits")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS", help="for each schedule")
    parser.add_argument(
        "--write", action="store_true", help=f"write the tables to {PAGE.name} and {DOCS.name}"
    )
    options = parser.parse_args()
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else {}
    methods = [name for name in METHODS if options.only in (None, name) and installed(name)]
    console = Console()
    for network in networks():
        if not fnmatch.fnmatch(network.name, options.case):
            continue
        for collective in COLLECTIVES:
            own = rows.setdefault(network.name, {}).setdefault(collective.value, {})
            own |= measured(Problem(network.topology, collective), methods, options.time_limit)
            table_of(network, collective, own).show(console)
            if options.write:
                ROWS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    if options.write:
        write(rows, options.time_limit)


def installed(name: str) -> bool:
    """Whether a method can be loaded."""
    try:
        import_module(METHODS[name])
    except (ImportError, CoppiceError):
        return False
    return True


def measured(problem: Problem, methods: Iterable[str], time_limit_s: float) -> dict[str, Any]:
    """A row for each method, and one for the optimal plan, as JSON values."""
    optimal = optimal_planner(problem.collective)
    found = compare(
        problem,
        sizes=SIZES,
        algorithms=None if optimal is None else [optimal],
        synthesize=methods,
        synthesis_time_limit_s=time_limit_s,
        jobs=1,
    )
    rows: dict[str, Any] = {}
    best = {row.algorithm: row for row in found.synthesized}
    for name, by_size in found.times.items():
        gap = 0.0 if name == optimal else best[name].gap or 0.0
        rows[PLANNED if name == optimal else name] = {
            "gap": gap,
            "rate_gb_per_s": float(found.optimum.algbw_gb_per_s) * (1 - gap),
            "seconds": None if name == optimal else best[name].synthesis_seconds,
            "times_us": {str(size): row.time_us for size, row in by_size.items()},
        }
    for row in found.refused:
        rows[row.algorithm] = {"refusal": row.refusal}
    return rows


def table_of(network: Network, collective: Collective, rows: dict[str, Any]) -> Table:
    """The rows of one network and collective."""
    heads = [short_size(size) for size in SIZES]
    table = Table(
        title=f"{network.name}: {collective.value} ({network.about})",
        header=("method", "rate (GB/s)", "below bound", "found in", *heads, "fastest of the methods at"),
    )
    timed = {name: row for name, row in rows.items() if "refusal" not in row}
    others = {name: row for name, row in timed.items() if name != PLANNED}
    least = {
        str(size): min((row["times_us"][str(size)] for row in others.values()), default=float("inf"))
        for size in SIZES
    }
    for name in (PLANNED, *METHODS):
        if name not in timed:
            continue
        row = timed[name]
        wins = [
            size for size in SIZES if name != PLANNED and row["times_us"][str(size)] <= TIE * least[str(size)]
        ]
        table.rows.append(
            (
                name,
                f"{row['rate_gb_per_s']:.5g}",
                percent_text(Fraction(row["gap"]).limit_denominator(10**6)) if row["gap"] else "none",
                "-" if row["seconds"] is None else number(row["seconds"], unit="s"),
                *(f"{row['times_us'][str(size)]:.1f} us" for size in SIZES),
                ", ".join(short_size(size) for size in wins) or "-",
            )
        )
    for name, row in rows.items():
        if "refusal" in row:
            table.notes.append(f"{name}: {row['refusal']}")
    return table


def write(rows: dict[str, Any], time_limit_s: float) -> None:
    """The tables on both pages."""
    tables = [
        table_of(network, collective, rows[network.name][collective.value])
        for network in networks()
        for collective in COLLECTIVES
        if collective.value in rows.get(network.name, {})
    ]
    known = sorted({name for by in rows.values() for own in by.values() for name in own if name != PLANNED})
    head = (
        f"Methods: {', '.join(known)}. At most {time_limit_s:g} s for each schedule, on {platform.system()} "
        f"{platform.machine()} with {os.cpu_count()} cores; mean load when the last row was made: "
        f"{os.getloadavg()[1]:.1f}.\n"
    )
    body = "\n".join([head, *(table.markdown() for table in tables)])
    for page in (PAGE, DOCS):
        replace_generated(page, "synthesis.py", body)


if __name__ == "__main__":
    main()
