"""Diagnosis of slow parts from simulated rates: how often the first answer is right, and how long it takes.

    python benchmarks/diagnosis.py                  # all
    python benchmarks/diagnosis.py --faults 100     # fewer faults
    python benchmarks/diagnosis.py --only 'dgx-h100 x 128*'
    python benchmarks/diagnosis.py --seed 1000000   # other faults and noise, which nothing was tuned on
    python benchmarks/diagnosis.py --write          # rewrites the rows of diagnosis.md, each as it is done

Rates are those of max-min fairness on the links as they are, with a noise of 3% (a logarithm's standard deviation); the
part is drawn from all that probes can see, and keeps 30% to 80% of its rate. Right is the part itself, or one that no
probe tells apart from it. Without a fault nothing may be named.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

import coppice
from coppice.diagnosis.design import design_probes
from coppice.diagnosis.inference import infer
from coppice.diagnosis.simulated import measure
from coppice.topology.model import Topology
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent


def rails(boxes: int) -> Topology:
    """DGX H100 boxes on eight rails of leaves with 16 boxes each, over eight spines."""
    return coppice.compose([f"{boxes}xdgx-h100"], fabric="rail", spines=8, hosts_per_leaf=16)


CLUSTERS: dict[str, Callable[[], Topology]] = {
    "dgx-a100 x 2": lambda: coppice.load("dgx-a100", boxes=2),
    "mi250 x 2": lambda: coppice.load("mi250", boxes=2),
    "torus 4x4x4": lambda: coppice.load("torus", dims="4x4x4"),
    "fat-tree of 16": lambda: coppice.load("fat-tree"),
    "dgx-h100 x 128, rails": lambda: rails(128),
    "dgx-h100 x 1,250, rails": lambda: rails(1250),
}
LARGEST = "dgx-h100 x 1,250, rails"
HEALTHY = 20


def row(name: str, made: Callable[[], Topology], faults: int, seed: int) -> tuple[str, ...]:
    """Figures of a cluster."""
    whole = made()
    start = time.process_time()
    design = design_probes(whole)
    designing = time.process_time() - start
    draw = np.random.default_rng(seed)
    names = design.parts.names
    alike = {part: set(each) for each in design.undistinguished for part in each}
    seen = [part for part in range(len(names)) if part not in set(design.unseen)]
    right = sure = alarms = 0
    spent = 0.0
    for trial in range(faults):
        part = seen[int(draw.integers(len(seen)))]
        rates = measure(design, {names[part]: float(draw.uniform(0.3, 0.8))}, seed=seed + trial)
        start = time.process_time()
        found = infer(design, rates)
        spent += time.process_time() - start
        good = {names[each] for each in alike.get(part, {part})}
        if len(found.culprits) == 1 and found.culprits[0].name in good:
            right += 1
        elif found.culprits and found.confidence > 0.9:
            sure += 1
    for trial in range(HEALTHY):
        alarms += bool(infer(design, measure(design, seed=seed + faults + trial)).culprits)
    return (
        name,
        f"{whole.num_ranks:,}",
        str(len(design.rounds)),
        "proved" if design.fewest == len(design.rounds) else f"{design.fewest} at least",
        f"{len(names):,}",
        str(sum(len(each) for each in design.undistinguished)),
        str(len(design.unseen)),
        f"{number(designing)} s",
        f"{right} of {faults}",
        str(sure),
        f"{alarms} of {HEALTHY}",
        f"{number(1e3 * spent / faults)} ms",
    )


HEADER = (
    *("cluster", "ranks", "rounds", "fewest", "parts", "alike", "not seen", "to design"),
    *("right", "wrong above 90%", "alarms in health", "to infer"),
)


def write(table: Table) -> None:
    """Put the rows of the table on the page, in the place of those of the same clusters; the others stay."""
    page = HERE / "diagnosis.md"
    _, _, section = page.read_text().partition(f"### {table.title}\n")
    lines = itertools.takewhile(lambda line: not line.startswith("<!--"), section.splitlines())
    cells = [tuple(line[2:-2].split(" | ")) for line in lines if line.startswith("| ")]
    rows = {each[0]: each for each in [*cells[2:], *table.rows]}
    known = Table(title=table.title, header=HEADER, rows=[rows[name] for name in CLUSTERS if name in rows])
    replace_generated(page, "diagnosis.py", known.markdown())


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="clusters, as a shell pattern")
    parser.add_argument(
        "--write", action="store_true", help="rewrite the rows of diagnosis.md, each as it is done"
    )
    asked = parser.parse_args()
    table = Table(title="Simulated faults", header=HEADER)
    for name, made in CLUSTERS.items():
        if fnmatch.fnmatch(name, asked.only):
            faults = max(1, asked.faults // 50) if name == LARGEST else asked.faults
            table.rows.append(row(name, made, faults, asked.seed))
            if asked.write:
                write(table)
    table.show(Console())


if __name__ == "__main__":
    main()
