"""TACCL and TE-CCL: what their programs find with HiGHS on two boxes, beside what was published.

    python benchmarks/synthesis_milp.py [--only PATTERN] [--limit SECONDS] [--write]

The graphs ``NDv2 x 2`` and ``DGX-2 x 2`` are those of TE-CCL's experiments: GPUs with direct links between the boxes.
The others are presets. Every schedule is verified, and measured by the exact bound, which is not the methods' own.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import platform
import time
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from rich.console import Console

from coppice.planners.synthesis.synthesizing import synthesize
from coppice.topology import preset
from coppice.topology.model import Link, Node, NodeKind, Topology
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
SOLVED = 1e-4
"""The gap within which HiGHS is asked to stop."""


def direct_boxes(name: str, inside: Topology, senders: dict[int, int], gb_per_s: Fraction) -> Topology:
    """Two boxes whose GPUs have links to each other: GPU ``s`` of one to GPU ``senders[s]`` of the other."""
    nodes = [
        Node(id=f"box{box}/{node.id}", kind=node.kind, host=f"box{box}")
        for box in range(2)
        for node in inside.nodes()
    ]
    links = [
        Link(src=f"box{box}/{e.src}", dst=f"box{box}/{e.dst}", gb_per_s=e.gb_per_s, duplex=False)
        for box in range(2)
        for e in inside.links()
    ]
    links += [
        Link(src=f"box{box}/gpu{s}", dst=f"box{1 - box}/gpu{r}", gb_per_s=gb_per_s, duplex=False)
        for box in range(2)
        for s, r in senders.items()
    ]
    return Topology.of(name, nodes, links)


def ndv2() -> Topology:
    """TE-CCL's NDv2: the hybrid cube mesh, and 12.5 GB/s from GPU 0 of a box to GPU 1 of the other."""
    return direct_boxes("NDv2 x 2", preset("dgx-1v"), {0: 1}, Fraction(25, 2))


def dgx2() -> Topology:
    """TE-CCL's DGX-2: 16 GPUs of 125 GB/s on a switch, and 12.5 GB/s from each odd GPU to the even one before it."""
    nodes = [Node(id=f"gpu{i}") for i in range(16)] + [Node(id="nvswitch", kind=NodeKind.SWITCH)]
    links = [Link(src=f"gpu{i}", dst="nvswitch", gb_per_s=Fraction(125)) for i in range(16)]
    senders = {i: i - 1 for i in range(1, 16, 2)}
    return direct_boxes("DGX-2 x 2", Topology.of("dgx-2", nodes, links), senders, Fraction(25, 2))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row.

    Attributes:
        topology: Where.
        collective: What.
        method: How.
        options: Options of the method.
        published: algbw in GB/s that its authors state for the same graph, or None.
    """

    topology: Topology
    collective: str
    method: str
    options: dict[str, str | int] = field(default_factory=dict)
    published: float | None = None

    @property
    def label(self) -> str:
        """For ``--only`` and the table."""
        options = "".join(f" {key}={value}" for key, value in self.options.items())
        return f"{self.topology.name} {self.collective} {self.method}{options}"


def cases() -> list[Case]:
    """All rows."""
    ndv2_x2, dgx2_x2 = ndv2(), dgx2()
    found = [
        Case(topology=ndv2_x2, collective="all_gather", method="te-ccl", published=22.86),
        Case(
            topology=ndv2_x2,
            collective="all_gather",
            method="te-ccl",
            options={"epoch": "slowest"},
            published=20.0,
        ),
        Case(
            topology=ndv2_x2,
            collective="all_gather",
            method="te-ccl",
            options={"solver": "milp"},
            published=22.86,
        ),
        Case(
            topology=ndv2_x2,
            collective="all_gather",
            method="te-ccl",
            options={"epoch": "slowest", "solver": "milp"},
            published=20.0,
        ),
        Case(topology=ndv2_x2, collective="all_gather", method="taccl", published=20.5),
        Case(topology=ndv2_x2, collective="all_to_all", method="te-ccl"),
        Case(topology=ndv2_x2, collective="all_to_all", method="te-ccl", options={"epoch": "slowest"}),
        Case(topology=ndv2_x2, collective="all_to_all", method="taccl", published=3.1),
        Case(topology=dgx2_x2, collective="all_gather", method="te-ccl", published=129.03),
        Case(
            topology=dgx2_x2,
            collective="all_gather",
            method="te-ccl",
            options={"epoch": "slowest"},
            published=100.0,
        ),
        Case(
            topology=dgx2_x2,
            collective="all_to_all",
            method="te-ccl",
            published=12.42,
        ),
        Case(
            topology=dgx2_x2,
            collective="all_to_all",
            method="te-ccl",
            options={"epoch": "slowest"},
            published=11.76,
        ),
    ]
    for name in ("ndv2", "dgx-a100"):
        topology = preset(name, boxes=2)
        wanted: list[tuple[str, dict[str, str | int]]] = [
            ("all_gather", {}),
            ("all_reduce", {}),
            ("all_to_all", {}),
            ("all_gather", {"chunks": 4}),
        ]
        found += [
            Case(topology=topology, collective=collective, method=method, options=options)
            for (collective, options), method in itertools.product(wanted, ("te-ccl", "taccl"))
        ]
    return found


def row(case: Case, limit: float) -> tuple[str, ...]:
    """What a case finds."""
    cpu = time.process_time()
    found = synthesize(
        case.topology, case.collective, method=case.method, options=case.options, time_limit_s=limit
    )
    cpu = time.process_time() - cpu
    details, planned = found.synthesis.details, found.planned
    assert planned is not None
    assert planned.loss >= 0
    if case.method == "te-ccl":
        finish = details["finish_algbw_gb_per_s"]
        proof = f"{details['epochs']} epochs, {details['least_epochs']} needed ({details['found_by']})"
    else:
        blocks = case.topology.num_ranks
        chunks = found.plan.parameters["chunks"]
        finish = blocks * chunks * found.plan.parameters["chunk_bytes"] / details["predicted_us"] / 1000
        gap = details["routing_gap"]
        left = "unsolved" if gap is None else f"within {100 * gap:.3g}%" if gap > SOLVED else "optimal"
        proof = f"routing {left} ({details['routes_by']})"
    beside = (
        "-" if case.published is None else f"{case.published:g} ({100 * (finish / case.published - 1):+.1f}%)"
    )
    return (
        case.topology.name,
        case.collective,
        case.method + "".join(f", {key} {value}" for key, value in case.options.items()),
        f"{finish:.4g}",
        beside,
        f"{float(planned.algbw_gb_per_s):.4g}",
        f"{float(found.bound.algbw_gb_per_s):.4g}",
        f"{100 * float(planned.loss):.3g}%",
        number(cpu, unit="s"),
        proof,
    )


def main() -> None:
    """Run the cases and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="cases whose label fits this pattern")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of each search")
    parser.add_argument("--write", action="store_true", help="rewrite the table in synthesis_milp.md")
    arguments = parser.parse_args()
    header = (
        "topology",
        "collective",
        "method",
        "once",
        "published",
        "plan",
        "bound",
        "gap",
        "processor",
        "search",
    )
    table = Table(title="algbw in GB/s on two boxes", header=header)
    for case in cases():
        if fnmatch.fnmatch(case.label, arguments.only):
            table.rows.append(row(case, arguments.limit))
    table.notes.append(
        "`once`: one chunk after the other from the first send to the last arrival, as the methods count; `published` "
        "is counted so as well. `plan`: the rate of the schedule for very large messages, which the verifier counts; "
        "`gap`: what it lacks of the exact `bound`."
    )
    table.show(Console())
    if arguments.write:
        machine = (
            f"`python benchmarks/synthesis_milp.py --limit {arguments.limit:g}` on {platform.system()} "
            f"{platform.machine()}, 2 cores that other work shared: processor time counts.\n\n"
        )
        replace_generated(HERE / "synthesis_milp.md", "synthesis_milp.py", machine + table.markdown())


if __name__ == "__main__":
    main()
