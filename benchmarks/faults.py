"""Plans after faults: every single fault of four clusters, and sampled pairs of faults.

    python benchmarks/faults.py                        # all
    python benchmarks/faults.py --pairs 100 --seed 1   # fewer pairs
    python benchmarks/faults.py --only 'dgx*' --collective all_gather
    python benchmarks/faults.py --write                # rewrites the rows of faults.md, each as it is done
    python benchmarks/faults.py --large                # instead: faults of 1,024 GPUs
    python benchmarks/faults.py --sizes 1M,8M,64M      # instead: times at sizes, beside algorithms of the catalogue

A fault is a link lost or at half rate, in both directions or in one, or a node lost or at half rate. Faults that a
symmetry of the cluster turns into each other are looked at once, and counted as many times as there are.

With `--sizes`, what `coppice degrade --size` offers after some faults stands beside the fastest algorithm of the
catalogue on what is left, in all its parameters and orders of ranks; GPUs pass on what is not theirs where it does not
work otherwise. An algorithm that is faster by more than 0.2% is a MISS: a plan that near to the least time is taken
without a look at what is left.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

import coppice
from coppice import UnreachableError
from coppice.collectives import Collective
from coppice.planners.replanning import Replanned, replan_after_faults
from coppice.simulation.models import model_of
from coppice.text import short_size, sizes_of
from coppice.topology.model import Topology
from coppice.topology.operations import remove_links, remove_nodes, scale_nodes, set_link_rate
from coppice.topology.symmetry import find_symmetry
from coppice.verbs.replanning import FaultOptions, TimesAfterFaults, replanned
from every_size_rivals import SAME, of_the_catalogue
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
CLUSTERS: dict[str, Callable[[], Topology]] = {
    "dgx-a100 x 2": lambda: coppice.load("dgx-a100", boxes=2),
    "dgx-h100 x 4": lambda: coppice.load("dgx-h100", boxes=4),
    "mi250 x 2": lambda: coppice.load("mi250", boxes=2),
    "torus 4x4": lambda: coppice.load("torus", dims="4x4"),
}
COLLECTIVES = ("all_gather", "all_reduce")


NVLINK = ("box0/gpu0", "box0/nvswitch")


class Fault(NamedTuple):
    """A fault: what is struck, how, and in how many places of the cluster it is the same."""

    names: tuple[str, ...]  # A node, or the two ends of a link
    kind: str  # lost, slow, lost one way, slow one way
    alike: int = 1

    def on(self, whole: Topology) -> Topology:
        """The cluster with it."""
        if len(self.names) == 1:
            return (
                remove_nodes(whole, self.names)
                if self.kind == "lost"
                else scale_nodes(whole, {self.names[0]: "50%"})
            )
        one_way = self.kind.endswith("one way")
        if self.kind.startswith("lost"):
            return remove_links(whole, [(self.names[0], self.names[1])], one_way=one_way)
        return set_link_rate(whole, self.names[0], self.names[1], "50%", one_way=one_way)


STRUCK: dict[str, tuple[Fault, ...]] = {
    "dgx-a100 x 2": (
        Fault(NVLINK, "slow"),
        Fault(("box0/nic0",), "lost"),
        Fault(("box0/nic0",), "slow"),
        Fault(("box0/gpu0",), "lost"),
    ),
    "dgx-h100 x 4": (
        Fault(NVLINK, "slow"),
        Fault(("box0/gpu0", "rail0"), "lost"),
        Fault(("box0/gpu0", "rail0"), "slow"),
        Fault(("box0/gpu0",), "lost"),
    ),
    "mi250 x 2": (
        Fault(("box0/gpu0", "box0/gpu1"), "lost"),
        Fault(("box0/gpu0", "network"), "lost"),
        Fault(("box0/gpu0", "network"), "slow"),
        Fault(("box0/gpu0",), "lost"),
    ),
    "torus 4x4": (
        Fault(("gpu0", "gpu1"), "lost"),
        Fault(("gpu0", "gpu1"), "slow"),
        Fault(("gpu0", "gpu1"), "lost one way"),
        Fault(("gpu0",), "lost"),
    ),
}
"""Faults whose plans are compared at sizes: a link, a NIC that is lost, one that is slow, and a GPU with its NIC."""


def singles(whole: Topology) -> Iterator[Fault]:
    """Every single fault, one of each orbit of the symmetry of the cluster."""
    symmetry = find_symmetry(whole)
    of_link, of_node = symmetry.link_orbit.tolist(), symmetry.node_orbit.tolist()
    links, nodes = Counter(of_link), Counter(of_node)
    seen: set[frozenset[int]] = set()
    for link, (a, b) in enumerate(zip(whole.src.tolist(), whole.dst.tolist(), strict=True)):
        ends = whole.node_ids[a], whole.node_ids[b]
        if of_link.index(of_link[link]) == link:
            for kind in ("lost one way", "slow one way"):
                yield Fault(ends, kind, links[of_link[link]])
        back = whole.link_index.get((b, a))
        both = frozenset((of_link[link], of_link[link if back is None else back]))
        if both not in seen:
            seen.add(both)
            alike = sum(links[orbit] for orbit in both) // 2
            for kind in ("lost", "slow"):
                yield Fault(ends, kind, alike)
    for node, name in enumerate(whole.node_ids):
        if of_node.index(of_node[node]) == node:
            for kind in ("lost", "slow"):
                yield Fault((name,), kind, nodes[of_node[node]])


@dataclass
class Tally:
    """What became of plans."""

    faults: int = 0
    cut_off: int = 0
    results: list[tuple[int, Replanned]] = field(default_factory=list)

    def add(self, plan: coppice.PlannedResult, now: Topology, alike: int) -> None:
        """Plan after faults."""
        self.faults += alike
        try:
            self.results.append((alike, replan_after_faults(plan, now)))
        except UnreachableError:
            self.cut_off += alike

    def row(self, name: str, collective: str) -> tuple[str, ...]:
        """Cells of a table."""
        done = sum(alike for alike, _ in self.results)

        def count(wanted: list[bool]) -> str:
            return str(sum(alike for (alike, _), true in zip(self.results, wanted, strict=True) if true))

        exact = [each.loss == 0 and each.report.ok for _, each in self.results]
        how = Counter(each.how for _, each in self.results)
        seconds = [1e3 * each.seconds for _, each in self.results]
        tallest = max((each.max_height or 0) / (each.before_height or 1) for _, each in self.results)
        return (
            name,
            collective,
            str(self.faults),
            str(self.cut_off),
            f"{count(exact)} of {done}",
            f"{count([each.is_low for _, each in self.results])} of {done}",
            number(tallest),
            f"{number(statistics.median(seconds))} ms",
            f"{number(max(seconds))} ms",
            ", ".join(f"{words} {times}" for words, times in sorted(how.items())),
        )


def large(collectives: Sequence[str], finished: Callable[[Table], None]) -> Table:
    """Faults of 128 DGX H100 on rails, without and with spines: the time from the old plan to a verified new one."""
    table = Table(title="1,024 GPUs", header=LARGE_HEADER)
    fabrics = {
        "a switch for each rail": (coppice.load("dgx-h100", boxes=128), "rail0"),
        "leaves of 16 boxes, 8 spines": (
            coppice.compose(["128xdgx-h100"], fabric="rail", spines=8, hosts_per_leaf=16),
            "rail0/leaf0",
        ),
    }
    for collective, (fabric, (whole, leaf)) in itertools.product(collectives, fabrics.items()):
        plan = coppice.plan(whole, collective, ring=False)
        faults = [
            Fault(("box0/gpu0", leaf), "lost"),
            Fault(("box0/gpu0", leaf), "slow"),
            Fault(("box0/gpu0", leaf), "slow one way"),
            Fault(("box0/gpu0", "box0/nvswitch"), "lost"),
            Fault(("box0/gpu0", "box0/nvswitch"), "slow"),
            Fault(("box0/gpu0",), "lost"),
        ]
        if "spine0" in whole.node_index:
            faults += [
                Fault((leaf, "spine0"), "lost"),
                Fault((leaf, "spine0"), "slow"),
                Fault(("spine0",), "lost"),
            ]
        for fault in faults:
            found = replan_after_faults(plan, fault.on(whole))
            table.rows.append(
                (
                    fabric,
                    collective,
                    f"{' - '.join(fault.names)} {fault.kind}",
                    f"{number(1e3 * found.seconds)} ms",
                    f"{number(1e3 * found.verify_seconds)} ms",
                    str(found.loss),
                    str(found.before_height),
                    str(found.max_height),
                    found.how,
                )
            )
            finished(table)
    return table


def beside_others(
    only: str, collectives: Sequence[str], sizes: Sequence[int], finished: Callable[[Table], None]
) -> Table:
    """At each size what is offered after a fault, and by how much the fastest algorithm of the catalogue is slower."""
    table = Table(title="At sizes, beside the fastest algorithm of the catalogue", header=SIZES_HEADER)
    for (name, struck), collective in itertools.product(STRUCK.items(), collectives):
        if not fnmatch.fnmatch(name, only):
            continue
        whole = CLUSTERS[name]()
        plan = coppice.plan(whole, collective, ring=False).plan
        for fault in struck:
            now = fault.on(whole)
            costs = replanned(FaultOptions(sizes=sizes), whole, now, Collective.named(collective), plan)
            best = dict.fromkeys(sizes, (float("inf"), "none"))
            for other, times_us in of_the_catalogue(
                costs.replanned.problem, model_of(None), sizes, relaying=True
            ):
                best = {size: min(best[size], (times_us[size], other)) for size in sizes}
            for offered in costs.times:
                table.rows.append(
                    (
                        *(name, collective, f"{' - '.join(fault.names)} {fault.kind}"),
                        *_sized_cells(offered, *best[offered.size_bytes]),
                    )
                )
            finished(table)
    return table


def _sized_cells(offered: TimesAfterFaults, other_us: float, other: str) -> tuple[str, ...]:
    """Cells of a size: the new plan, what is offered, the fastest of the catalogue, and what it loses."""
    loss = other_us / offered.fastest_us - 1
    return (
        short_size(offered.size_bytes),
        f"{number(offered.now_us)} us",
        f"{number(offered.fastest_us)} us",
        offered.fastest,
        f"{number(other_us)} us",
        other,
        f"{'MISS ' if loss < -SAME else ''}{loss:+.1%}",
    )


HEADER = (
    *("cluster", "collective", "faults", "cut off", "at the optimum", "at most twice as high"),
    *("highest", "median", "longest", "looked at"),
)
LARGE_HEADER = (
    *("fabric", "collective", "fault", "plan", "verify", "below the optimum", "highest before"),
    *("highest now", "how"),
)
SIZES_HEADER = (
    *("cluster", "collective", "fault", "size", "new plan", "offered", "which is"),
    *("fastest of the catalogue", "which is", "slower by"),
)
PAGE = HERE / "faults.md"
HEADERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "Every single fault": (2, HEADER),
    "Pairs of faults": (2, HEADER),
    "1,024 GPUs": (3, LARGE_HEADER),
    "At sizes, beside the fastest algorithm of the catalogue": (4, SIZES_HEADER),
}
"""Tables of the page, with the number of columns that name a row, and all columns."""


def write(table: Table) -> None:
    """Put the rows of a table on the page, in the place of those of the same names; the others stay."""
    pages = []
    old = PAGE.read_text()
    for title, (named_by, header) in HEADERS.items():
        _, _, section = old.partition(f"### {title}\n")
        lines = itertools.takewhile(lambda line: not line.startswith(("###", "<!--")), section.splitlines())
        cells = [tuple(line[2:-2].split(" | ")) for line in lines if line.startswith("| ")]
        named = {row[:named_by]: row for row in cells[2:] if len(row) == len(header)}
        if title == table.title:
            named |= {row[:named_by]: row for row in table.rows}
        place = {name: i for i, name in enumerate(CLUSTERS)}
        rows = sorted(
            named.values(), key=lambda row: (place.get(row[0], 0), row[1] if row[0] in place else "")
        )
        if rows:
            pages.append(Table(title=title, header=header, rows=rows).markdown())
    replace_generated(PAGE, "faults.py", "\n".join(pages))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs", type=int, default=1000, help="pairs of faults over all clusters and collectives"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="clusters, as a shell pattern")
    parser.add_argument("--collective", choices=COLLECTIVES, action="append", help="may be repeated [all]")
    parser.add_argument(
        "--write", action="store_true", help="rewrite the rows of faults.md, each as it is done"
    )
    parser.add_argument("--large", action="store_true", help="instead: faults of 1,024 GPUs")
    parser.add_argument("--sizes", help="instead: times at these sizes beside algorithms of the catalogue")
    asked = parser.parse_args()
    if asked.sizes:
        finished = write if asked.write else lambda _: None
        sizes = sizes_of(asked.sizes)
        beside_others(asked.only, asked.collective or COLLECTIVES, sizes, finished).show(Console(width=240))
        return
    if asked.large:
        large(asked.collective or COLLECTIVES, write if asked.write else lambda _: None).show(
            Console(width=240)
        )
        return
    draw = random.Random(asked.seed)
    one = Table(title="Every single fault", header=HEADER)
    two = Table(title="Pairs of faults", header=HEADER)
    each_way = asked.pairs // (len(CLUSTERS) * len(COLLECTIVES))
    for name, made in CLUSTERS.items():
        if not fnmatch.fnmatch(name, asked.only):
            continue
        whole = made()
        faults = list(singles(whole))
        for collective in asked.collective or COLLECTIVES:
            plan = coppice.plan(whole, collective, ring=False)
            tally = Tally()
            for fault in faults:
                tally.add(plan, fault.on(whole), fault.alike)
            one.rows.append(tally.row(name, collective))
            if asked.write:
                write(one)
            tally = Tally()
            while tally.faults < each_way:
                ends = list(zip(whole.src.tolist(), whole.dst.tolist(), strict=True))
                struck = []
                for _ in range(2):
                    a, b = draw.choice(ends)
                    names = (
                        (whole.node_ids[a],)
                        if draw.random() < 0.25
                        else (whole.node_ids[a], whole.node_ids[b])
                    )
                    kinds = (
                        ("lost", "slow")
                        if len(names) == 1
                        else ("lost", "slow", "lost one way", "slow one way")
                    )
                    struck.append(Fault(names, draw.choice(kinds)))
                try:
                    now = struck[1].on(struck[0].on(whole))
                except coppice.InputError:  # the second is of what the first took away
                    continue
                tally.add(plan, now, 1)
            two.rows.append(tally.row(name, collective))
            if asked.write:
                write(two)
    for table in (one, two):
        table.show(Console(width=240))


if __name__ == "__main__":
    main()
