"""SCCL: the instances of the paper's machine and others, with the public solver on the same ones where it is given.

    python benchmarks/sccl.py [--only PATTERN] [--reference DIR] [--write]

Every case is decided in this process; seconds are of the wall. ``--reference`` names a checkout of
https://github.com/microsoft/msccl-tools, which is imported from there and runs with the same Z3. Both answers are
compared. The goal, ten times as fast over all instances that both decide, is stated in the table.
"""

from __future__ import annotations

import argparse
import fnmatch
import platform
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import coppice
from coppice.topology import preset
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
GOAL = 10.0
"""Times as fast as the public solver, in sum."""


@dataclass(frozen=True)
class Case:
    """An instance.

    Attributes:
        name: Of the network.
        collective: What it does.
        steps: S.
        rounds: R.
        chunks: C.
        boxes: Number of boxes.
    """

    name: str
    collective: str
    steps: int
    rounds: int
    chunks: int
    boxes: int = 1

    @property
    def title(self) -> str:
        """How the table names it."""
        boxes = "" if self.boxes == 1 else f" x {self.boxes}"
        return f"{self.collective}, {self.name}{boxes} ({self.steps}, {self.rounds}, {self.chunks})"


DGX_1 = [
    Case("dgx-1v", "all_gather", *figures)
    for figures in ((2, 2, 1), (2, 3, 2), (2, 4, 3), (3, 4, 3), (3, 5, 4), (3, 6, 5), (3, 7, 6))
]
"""What the public solver decides as well; its DGX1 is the same network."""
OTHERS = [
    Case("dgx-1v", "all_to_all", 2, 8, 3),
    Case("dgx-1v", "all_reduce", 6, 14, 6),
    Case("torus", "all_gather", 4, 15, 4),
    Case("hypercube", "all_gather", 4, 15, 4),
    Case("dgx-a100", "all_gather", 1, 7, 1),
    Case("dgx-a100", "all_gather", 4, 5, 4, boxes=2),
    Case("dgx-1v", "all_gather", 3, 8, 1, boxes=2),
    Case("dgx-1v", "all_gather", 3, 4, 1, boxes=2),
]


def ours(case: Case) -> tuple[str, float]:
    """What we find out, and in how many seconds, the bound and the verification counted in."""
    parameters: dict[str, Any] = {"boxes": case.boxes} if case.boxes > 1 else {}
    topology = preset(case.name, **parameters)
    options = {"steps": case.steps, "rounds": case.rounds, "chunks": case.chunks}
    start = time.perf_counter()
    result = coppice.synthesize(topology, case.collective, method="sccl", options=options, time_limit_s=600.0)
    return result.status.value, time.perf_counter() - start


def reference(directory: Path) -> Callable[[Case], tuple[str, float]]:
    """The public solver, without what its package imports beyond it."""
    package = types.ModuleType("msccl")
    package.__path__ = [str(directory / "msccl")]
    sys.modules["msccl"] = package
    from msccl import collectives, topologies  # type: ignore[import-not-found]
    from msccl.instance import Instance  # type: ignore[import-not-found]
    from msccl.path_encoding import PathEncoding  # type: ignore[import-not-found]

    def solve(case: Case) -> tuple[str, float]:
        start = time.perf_counter()
        encoding = PathEncoding(topologies.dgx1(), collectives.allgather(8))
        figures = Instance(steps=case.steps, extra_rounds=case.rounds - case.steps, chunks=case.chunks)
        found = encoding.solve(figures)
        return "unsat" if found is None else "sat", time.perf_counter() - start

    return solve


def main() -> int:
    """Run the cases and print or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="cases whose name matches")
    parser.add_argument("--reference", type=Path, help="a checkout of msccl-tools")
    parser.add_argument("--write", action="store_true", help="rewrite the table of sccl.md")
    arguments = parser.parse_args()
    public = None if arguments.reference is None else reference(arguments.reference)
    table = Table(title="Instances (S, R, C)", header=("case", "seconds", "public solver", "ratio", "answer"))
    sums = [0.0, 0.0]
    failed = False
    for case in [*DGX_1, *OTHERS]:
        if not fnmatch.fnmatch(case.title, arguments.only):
            continue
        answer, seconds = ours(case)
        theirs, ratio = "-", "-"
        if public is not None and case in DGX_1:
            other, spent = public(case)
            failed |= other != answer
            sums = [sums[0] + seconds, sums[1] + spent]
            theirs, ratio = f"{spent:.1f}", f"{spent / seconds:.0f}"
        table.rows.append((case.title, f"{seconds:.2f}", theirs, ratio, answer))
        Console(stderr=True).print(*table.rows[-1], highlight=False)
    if sums[0]:
        ratio = f"{sums[1] / sums[0]:.0f}"
        reached = "ok" if sums[1] >= GOAL * sums[0] else "MISS"
        table.rows.append(("sum of what both decide", f"{sums[0]:.2f}", f"{sums[1]:.1f}", ratio, reached))
    table.notes.append(
        "Ours are from the topology to the verified plan, theirs from the topology to the algorithm; the same Z3. "
        f"Goal: {GOAL:g} times as fast in sum."
    )
    table.show(Console())
    if arguments.write:
        machine = f"{platform.system()} {platform.machine()}, 2 cores that other work shared"
        head = f"`python benchmarks/sccl.py --reference msccl-tools` on {machine}.\n\n"
        replace_generated(HERE / "sccl.md", "sccl.py", head + table.markdown())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
