"""Tuning of Open MPI and MPICH in a lab: sweep, fit, export, and again with the rules in use.

    sudo python benchmarks/tuning.py [--sizes 1K:1M:4] [--rounds 15] [--library open-mpi,mpich] [--write]

The lab is two boxes of three ranks whose switches are joined by one slower cable, in network namespaces of this host.
The libraries are those that `make setup` puts beside the environment (or COPPICE_MPI). The second measurement runs with
the exported rules file (Open MPI) or variables (MPICH), every call beside one by the library's own choice.
Exit code 1 if any collective and size is slower than by default beyond noise.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from coppice.text import parse_sizes, short_size
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import scale
from coppice.tuning.exports import deployed_environment
from coppice.tuning.fit import Fit, fit_runs
from coppice.tuning.records import read_runs
from coppice.tuning.report import bounds_us
from coppice.tuning.sweep import COLLECTIVES, Checked, check_runs, sweep_mpi
from coppice.tuning.table import RuleTable
from coppice.tuning.worker import Spec
from lab import mpi_launcher, mpi_variables, standing
from tables import replace_generated

HERE = Path(__file__).resolve().parent
PAGE = HERE / "tuning.md"
LAB = "benchtuning"
RANKS_PER_BOX, BOX_GB_PER_S, CABLE_GB_PER_S, SCALE = 3, 80, 40, Fraction(1, 1000)


def two_boxes() -> Topology:
    """Two boxes on one slower cable."""
    nodes = [Node(id=f"g{rank}", host=f"box{rank // RANKS_PER_BOX}") for rank in range(2 * RANKS_PER_BOX)]
    nodes += [Node(id=f"s{box}", kind=NodeKind.SWITCH) for box in range(2)]
    ends = [(f"g{rank}", f"s{rank // RANKS_PER_BOX}", BOX_GB_PER_S) for rank in range(2 * RANKS_PER_BOX)]
    ends.append(("s0", "s1", CABLE_GB_PER_S))
    links = [Link(src=src, dst=dst, gb_per_s=Fraction(rate)) for src, dst, rate in ends]
    return Topology.of("two boxes of three", nodes, links)


def measure(
    library: str, sizes: Sequence[int], rounds: int, lab: str, topology: Topology
) -> tuple[Fit, list[Checked]]:
    """The fit, and every size again with its rules."""
    launcher, variables = mpi_launcher(library), mpi_variables(library)
    with tempfile.TemporaryDirectory() as directory:
        first, second = Path(directory) / "runs.jsonl", Path(directory) / "again.jsonl"
        spec = Spec(
            library=library,
            collectives=list(COLLECTIVES),
            sizes=list(sizes),
            rounds=rounds,
            output=str(first),
            segments=[65536],
        )
        sweep_mpi(spec, lab=lab, launcher=launcher, environment=variables)
        runs = read_runs([first])
        fit = fit_runs(runs, bounds_us=bounds_us(runs, topology))
        table = RuleTable.of(fit)
        if not table.changed:
            return fit, []
        again = Spec(
            library=library,
            collectives=list(COLLECTIVES),
            sizes=list(sizes),
            rounds=rounds,
            output=str(second),
            deployed=True,
        )
        variables |= deployed_environment(table, Path(directory))
        sweep_mpi(again, lab=lab, launcher=launcher, environment=variables)
        return fit, list(check_runs(table, read_runs([second])))


def lines(library: str, fit: Fit, checked: Sequence[Checked]) -> list[str]:
    """The section of a library."""
    found = {(each.shape, each.size_bytes): each for each in checked}
    text = [f"## {library} {fit.version}", ""]
    changed = [size for sizes in fit.sizes.values() for size in sizes if size.taken is not None]
    total = sum(len(sizes) for sizes in fit.sizes.values())
    slower = [each for each in checked if each.slower]
    text.append(
        f"{total} collectives and sizes; another choice than the default at {len(changed)}; with the rules in use "
        f"{len(slower)} are slower than by default beyond noise."
    )
    gains = [
        found[shape, size.size_bytes].verdict.gain
        for shape, sizes in fit.sizes.items()
        for size in sizes
        if size.taken is not None and (shape, size.size_bytes) in found and size.taken.sure
    ]
    if gains:
        text.append(
            f"Where the default picks wrong ({len(gains)} sizes) the rules are {statistics.median(gains):.2f} times as "
            f"fast in the median, {min(gains):.2f} to {max(gains):.2f} times."
        )
    text += [
        "",
        "| collective | size | default ms | rule | gain in the sweep | gain in use | 95 % interval | of the bound |",
    ]
    text.append("|---|---|---|---|---|---|---|---|")
    for shape, sizes in fit.sizes.items():
        for size in sizes:
            again = found.get((shape, size.size_bytes))
            share = size.reached(size.time_us)
            cells = (
                str(shape.collective),
                short_size(size.size_bytes),
                f"{size.default_us / 1e3:.3g}",
                str(size.taken.choice) if size.taken else "default",
                f"{size.taken.verdict.gain:.2f}" if size.taken else "",
                f"{again.verdict.gain:.2f}{' **slower**' if again.slower else ''}" if again else "",
                f"{again.verdict.low:.2f} .. {again.verdict.high:.2f}" if again else "",
                "" if share is None else f"{100 * share:.0f} %",
            )
            text.append(f"| {' | '.join(cells)} |")
    return [*text, ""]


def main() -> int:
    """Measure, print, and write the page if asked."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", default="1K:1M:4")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--library", default="open-mpi,mpich")
    options.add_argument("--write", action="store_true")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the lab is taken down then, too
    topology = two_boxes()
    text: list[str] = []
    failed = 0
    scaled = scale(topology, SCALE)
    with standing(LAB, topology, SCALE):
        for library in given.library.split(","):
            fit, checked = measure(library, parse_sizes(given.sizes), given.rounds, LAB, scaled)
            text += lines(library, fit, checked)
            failed += sum(each.slower for each in checked)
    print("\n".join(text))
    if given.write:
        replace_generated(PAGE, "tuning.py", "\n".join(["", *text]))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
