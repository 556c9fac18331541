"""How well the model of time predicts: NCCL's own model, published tables of nccl-tests, and runs on this machine.

    python benchmarks/time_model.py --nccl-tests DIR --write

``DIR`` holds ``nccl_allreduce.csv`` (gpu, ranks, bytes, time_out_of_place_us): all-reduces of an A100 and a V100 box.
Every other row in order of size is for fitting (some, evenly over the logarithm of the size), the rest is predicted.
Without it that part is left out. What ran on this machine is kept in time_model.csv (see time_model_runs.py);
``--measure`` measures it anew, which takes the lab (Linux, root), Open MPI, and an idle machine for about an hour.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.fitting.time_model import MeasuredTime, bodies_of, fit, predicted_us
from coppice.planners.choice import from_catalogue
from coppice.selection import select
from coppice.simulation import DEFAULT_MODEL, fastest
from coppice.topology import preset
from coppice.topology.model import Topology
from coppice.topology.operations import subset
from tables import Table, replace_generated
from time_model_runs import measure, measured_tables

HERE = Path(__file__).resolve().parent
SIZES = tuple(2**k for k in range(10, 29, 6))
CLUSTERS = (("dgx-a100", 1), ("dgx-h100", 1), ("dgx-a100", 2), ("dgx-h100", 4))
# The V100 box numbers its GPUs so that 0 and 1 share one NVLink; the preset numbers them along the cube.
V100_RANKS = (0, 2, 3, 1, 4, 6, 7, 5)
FITTED_SIZES = 8
PREDICTED_SIZES = 24


def nccl_table() -> Table:
    """Simulated rings and trees beside what NCCL's own model says."""
    table = Table(
        title="All-reduce: the simulator beside NCCL's own model",
        header=("cluster", "size", "algorithm", "NCCL's model (us)", "simulated (us)", "ratio"),
    )
    for name, boxes in CLUSTERS:
        topology = preset(name, boxes=boxes)
        problem = Problem(topology=topology, collective=Collective.ALL_REDUCE)
        bodies = {"Ring": "nccl-ring", "Tree": "nccl-tree"}
        made = {theirs: from_catalogue(problem, ours).body for theirs, ours in bodies.items()}
        for size in SIZES:
            cells = select("nccl", "all_reduce", size, topology=topology).cells
            for cell in cells:
                if cell.algorithm not in made or cell.time_us is None:
                    continue
                model = replace(DEFAULT_MODEL, protocols=(cell.protocol.lower(),))
                time = fastest(made[cell.algorithm], size, model=model, keep_hops=False).time_us
                words = f"{cell.algorithm}/{cell.protocol}"
                row = (f"{boxes} x {name}", f"{size:,}", words, f"{cell.time_us:.1f}", f"{time:.1f}")
                table.rows.append((*row, f"{time / cell.time_us:.2f}"))
    return table


def published_table(folder: Path) -> Table:
    """Fitted on half of the rows of each box, and tried on the other half."""
    rows: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    with (folder / "nccl_allreduce.csv").open() as file:
        for row in csv.DictReader(file):
            rows[row["gpu"], int(row["ranks"])].append(
                (int(row["bytes"]), float(row["time_out_of_place_us"]))
            )
    clusters = {"A100": preset("dgx-a100"), "V100": subset(preset("dgx-1v"), V100_RANKS)}
    table = Table(
        title="All-reduces of nccl-tests on one box, predicted with a model fitted to the other half",
        header=("box", "ranks", "predicted times", "mean error", "within 15%", "largest", "model"),
    )
    for gpu, topology in clusters.items():
        own = {ranks: sorted(found) for (name, ranks), found in rows.items() if name == gpu}
        table.rows += map(tuple, _published(gpu, topology, own))
    return table


def _published(gpu: str, topology: Topology, rows: dict[int, list[tuple[int, float]]]) -> list[list[str]]:
    """The lines of one box."""
    bodies, given, kept = {}, [], {}
    refused: list[list[str]] = []
    for ranks, found in sorted(rows.items()):
        try:
            made = bodies_of(subset(topology, range(ranks)), Collective.ALL_REDUCE, ["library"])
        except InputError:
            refused.append([gpu, str(ranks), "0", "-", "-", "-", "no ring of NVLinks joins these GPUs"])
            continue
        name = str(ranks)
        bodies[name] = made["library"]
        given += [
            MeasuredTime(algorithm=name, size_bytes=s, time_us=t)
            for s, t in spread(found[0::2], FITTED_SIZES)
        ]
        kept[name] = [
            MeasuredTime(algorithm=name, size_bytes=s, time_us=t)
            for s, t in spread(found[1::2], PREDICTED_SIZES)
        ]
    fitted = fit(given, bodies, DEFAULT_MODEL, name=f"{gpu.lower()}-fitted")
    lines = []
    every: list[float] = []
    for name, times in kept.items():
        errors = [
            predicted_us(bodies, row.algorithm, row.size_bytes, fitted.model) / row.time_us - 1
            for row in times
        ]
        every += errors
        lines.append([gpu, name, *figures(errors), ""])
    return [*lines, *refused, [gpu, "all", *figures(every), fitted.model.text]]


def spread(rows: Sequence[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    """So many rows evenly over the logarithm of the size."""
    factor = len(rows) ** (1 / (count - 1))
    return [rows[place] for place in sorted({min(len(rows), round(factor**k)) - 1 for k in range(count)})]


def figures(errors: Sequence[float]) -> list[str]:
    """Number, mean, share within 15%, and largest of some errors."""
    sizes = [abs(error) for error in errors]
    within = sum(size <= 0.15 for size in sizes) / len(sizes)
    return [str(len(sizes)), f"{100 * mean(sizes):.1f}%", f"{100 * within:.0f}%", f"{100 * max(sizes):.1f}%"]


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--nccl-tests", type=Path, metavar="DIR", help="folder with nccl_allreduce.csv")
    parser.add_argument("--measure", action="store_true", help="measure on this machine, over time_model.csv")
    parser.add_argument("--write", action="store_true", help="into time_model.md")
    options = parser.parse_args()
    if options.measure:
        measure()
    parts = {"runs": measured_tables(), "nccl": [nccl_table()]}
    if options.nccl_tests is not None:
        parts["published"] = [published_table(options.nccl_tests)]
    for name, tables in parts.items():
        print("\n".join(table.text() for table in tables))
        if options.write:
            replace_generated(HERE / "time_model.md", name, "\n".join(table.markdown() for table in tables))


if __name__ == "__main__":
    main()
