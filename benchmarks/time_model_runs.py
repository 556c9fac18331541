"""Collectives on real sockets and in shared memory beside what the model of time predicts, and how they are measured.

The times lie in ``time_model.csv``, whose head says where they come from. A *place* is a network of benchmarks/lab.py,
or ``shm-2`` and ``shm-4``: so many ranks of this machine.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.fitting.time_model import Bodies, FittedModel, MeasuredTime, bodies_of, fit, predicted_us
from coppice.planners.planning import plan
from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_mpi
from coppice.run.planned import choose_pieces
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.simulation import Model
from coppice.topology import preset
from coppice.topology.operations import scale as scaled
from lab import chosen_scale, mpi_launcher, mpi_variables, standing, topologies
from tables import Table

__all__ = ["measure", "measured_tables"]

DATA = Path(__file__).resolve().parent / "time_model.csv"
NETWORKS = ("two-boxes", "ring")
ALGORITHMS = ("ring", "recursive-doubling", "rabenseifner", "forest")
SIZES = tuple(2**k for k in range(10, 27, 2))
FITTED = SIZES[1::2]
MESSAGE_US = {"lab": 50.0, "shm": 0.5}
"""Cost of a message for which pieces are chosen where they were not recorded: about what ranks measure there."""

STARTS = {
    "lab": Model(
        name="lab",
        overhead_us=100.0,
        launch_us=1000.0,
        buffered=True,
        workers=2,
        shared_workers=True,
        send_us=10.0,
        receive_us=10.0,
        efficiency=0.95,
        burst_bytes=80_000,  # what the lab sets
    ),
    "shm": Model(
        name="shm",
        overhead_us=0.5,
        launch_us=10.0,
        buffered=True,
        workers=1,
        send_us=0.1,
        receive_us=0.1,
        copy_gb_per_s=20.0,
        cache_bytes=2**20,
        memory_gb_per_s=10.0,
    ),
}
"""Where fits begin; in the lab all ranks share the two cores of the machine."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A line of the data."""

    place: str
    algorithm: str
    size_bytes: int
    pieces: int | None
    time_us: float
    fastest_us: float
    slowest_us: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One algorithm at one size: what is predicted, and by how much it varies.

    Attributes:
        place: Where.
        time: What is predicted: in the lab the median of the last run, in shared memory the fastest round of all.
        spread: By how much the largest of all runs is above the least one; None where there is one run.
    """

    place: str
    time: MeasuredTime
    spread: float | None


def runs() -> Iterator[Run]:
    """All lines of the data."""
    lines = [line for line in DATA.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        yield Run(
            place=row["place"],
            algorithm=row["algorithm"],
            size_bytes=int(row["size_bytes"]),
            pieces=int(row["pieces"]) if row["pieces"] else None,
            time_us=float(row["time_us"]),
            fastest_us=float(row["fastest_us"]),
            slowest_us=float(row["slowest_us"]),
        )


def measured() -> list[Measured]:
    """What is predicted."""
    grouped: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for run in runs():
        grouped[run.place, run.algorithm, run.size_bytes].append(run)
    found = []
    for (place, algorithm, size), group in grouped.items():
        shared = kind_of(place) == "shm"
        times = [run.fastest_us if shared else run.time_us for run in group]
        time = MeasuredTime(
            algorithm=f"{place} {algorithm}",
            size_bytes=size,
            time_us=min(times) if shared else times[-1],
            pieces=group[-1].pieces or chosen_pieces(place, algorithm, size),
        )
        spread = max(times) / min(times) - 1 if len(times) > 1 else None
        found.append(Measured(place=place, time=time, spread=spread))
    return found


def kind_of(place: str) -> str:
    """``lab`` or ``shm``."""
    return "shm" if place.startswith("shm") else "lab"


@cache
def planned(place: str, algorithm: str) -> Schedule | Forest:
    """What ranks run, as they plan it."""
    if kind_of(place) == "shm":
        topology = preset("star", gpus=int(place.removeprefix("shm-")))
    else:
        topology = scaled(topologies()[place], chosen_scale(topologies()[place]))
    problem = Problem(topology=topology, collective=Collective.ALL_REDUCE)
    if algorithm == "forest":
        return plan(problem, ring=False).plan.body
    return plan(problem, algorithm=algorithm, relay_gpus=True, ring=False).plan.body


@cache
def chosen_pieces(place: str, algorithm: str, size_bytes: int) -> int:
    """Pieces into which ranks cut it, for an assumed cost of a message."""
    return choose_pieces(planned(place, algorithm), size_bytes, MESSAGE_US[kind_of(place)])


def bodies_at(place: str) -> Bodies:
    """What is simulated: in a lab on the lab's routes, in shared memory on links that are in nobody's way."""
    if kind_of(place) == "lab":
        lab = draw(topologies()[place], chosen_scale(topologies()[place]))
        return {f"{place} {name}": (lab.routed(planned(place, name)),) for name in ALGORITHMS}
    wide = preset("star", gpus=int(place.removeprefix("shm-")), gb_per_s=1000)
    found = bodies_of(wide, Collective.ALL_REDUCE, ALGORITHMS)
    return {f"{place} {name}": found[name] for name in ALGORITHMS}


def measured_tables() -> list[Table]:
    """A summary for each place, and every time beside what was predicted."""
    rows = measured()
    summary = Table(
        title="All-reduces of 1 KiB to 64 MiB beside their simulated times",
        header=(
            "place",
            "times",
            "mean error",
            "within 10%",
            "within 10% or the spread",
            "largest",
            "spread",
        ),
        notes=["Mean spread of the times that were measured twice. Fitted models:"],
    )
    every = Table(
        title="All-reduces in the lab and in shared memory, measured and simulated",
        header=("place", "algorithm", "size", "pieces", "measured (us)", "spread", "simulated (us)", "error"),
    )
    for places, name in ((NETWORKS, "lab"), (("shm-2",), "shm")):
        own = [row for row in rows if row.place in places]
        bodies = {key: body for place in places for key, body in bodies_at(place).items()}
        half = fitted_to([row for row in own if row.time.size_bytes in FITTED], bodies, STARTS[name])
        whole = fitted_to(own, bodies, STARTS[name])
        for place in places:
            parts = [
                (f"{place}, fitted to half: that half", half, (True,)),
                (f"{place}, fitted to half: the rest", half, (False,)),
                (f"{place}, fitted to all", whole, (True, False)),
            ]
            for words, found, halves in parts:
                chosen = [
                    row for row in own if row.place == place and (row.time.size_bytes in FITTED) in halves
                ]
                summary.rows.append((words, *figures(chosen, errors_of(chosen, bodies, found.model))))
        where = " and ".join(places)
        summary.notes.append(f"* {where}, fitted to half: {half.model.text}.")
        summary.notes.append(f"* {where}, fitted to all: {whole.model.text}.")
        for row, error in zip(own, errors_of(own, bodies, half.model), strict=True):
            every.rows.append(line_of(row, error))
    shared = [row for row in rows if row.place == "shm-4"]
    model = replace(whole.model, workers=2, shared_workers=True)
    errors = errors_of(shared, bodies_at("shm-4"), model)
    summary.rows.append(("shm-4, as fitted to shm-2, two cores for all", *figures(shared, errors)))
    every.rows += [line_of(row, error) for row, error in zip(shared, errors, strict=True)]
    return [summary, every]


def fitted_to(rows: Sequence[Measured], bodies: Bodies, start: Model) -> FittedModel:
    """The model that suits them best."""
    return fit([row.time for row in rows], bodies, start, name=start.name)


def errors_of(rows: Sequence[Measured], bodies: Bodies, model: Model) -> list[float]:
    """Predicted over measured, less 1."""
    return [
        predicted_us(bodies, row.time.algorithm, row.time.size_bytes, model, row.time.pieces)
        / row.time.time_us
        - 1
        for row in rows
    ]


def figures(rows: Sequence[Measured], errors: Sequence[float]) -> tuple[str, ...]:
    """Number, mean, shares within 10% and within the spread, the largest error, and the mean spread."""
    sizes = [abs(error) for error in errors]
    allowed = [max(0.1, row.spread or 0.0) for row in rows]
    spreads = [row.spread for row in rows if row.spread is not None]
    within = mean(size <= 0.1 for size in sizes)
    varied = mean(size <= most for size, most in zip(sizes, allowed, strict=True))
    return (
        str(len(sizes)),
        f"{100 * mean(sizes):.1f}%",
        f"{100 * within:.0f}%",
        f"{100 * varied:.0f}%",
        f"{100 * max(sizes):.0f}%",
        f"{100 * mean(spreads):.0f}%" if spreads else "-",
    )


def line_of(row: Measured, error: float) -> tuple[str, ...]:
    """A line of the table of all times."""
    time = row.time
    return (
        row.place + ("" if time.size_bytes in FITTED and row.place != "shm-4" else ", predicted"),
        time.algorithm.removeprefix(f"{row.place} "),
        f"{time.size_bytes:,}",
        str(time.pieces),
        f"{time.time_us:,.0f}" if time.time_us >= 100 else f"{time.time_us:.1f}",
        "-" if row.spread is None else f"{100 * row.spread:.0f}%",
        f"{time.time_us * (1 + error):,.0f}" if time.time_us >= 100 else f"{time.time_us * (1 + error):.1f}",
        f"{100 * error:+.0f}%",
    )


def measure(*, rounds: int = 41, most_bytes: int = SIZES[-1], places: Sequence[str] = ()) -> None:
    """Measure everything twice on this machine (Linux, root), and write it over the data.

    Args:
        rounds: Rounds up to 64 KiB; longer messages take fewer, the longest one.
        most_bytes: Sizes above are left out.
        places: Places to measure; all of them by default.
    """
    head = [line for line in DATA.read_text().splitlines() if line.startswith("#")]
    lines = ["place,algorithm,size_bytes,run,rounds,pieces,time_us,fastest_us,slowest_us"]
    for place in places or (*NETWORKS, "shm-2", "shm-4"):
        for number in (1, 2):
            for size in (size for size in SIZES if size <= most_bytes):
                count = max(1, rounds if kind_of(place) == "shm" else rounds * 2**16 // max(size, 2**16))
                print(f"{place}, run {number}: {size} bytes, {count} rounds", file=sys.stderr, flush=True)
                for row in bench_rows(place, size, count):
                    cells = [row[key] for key in ("pieces", "time_us", "fastest_us", "slowest_us")]
                    lines.append(",".join(map(str, (place, row["algorithm"], size, number, count, *cells))))
    DATA.write_text("".join(f"{line}\n" for line in [*head, *lines]))


def bench_rows(place: str, size: int, rounds: int) -> list[Mapping[str, str]]:
    """What `coppice bench` measures of all algorithms at one size."""
    command = ["-m", "coppice", "bench", "all_reduce", "-s", str(size), "-n", str(rounds)]
    command += ["-w", "3", "-a", ",".join(ALGORITHMS), "--json"]
    if kind_of(place) == "shm":
        ranks = place.removeprefix("shm-")
        command += ["--engine", "shm", "--topology", "star", "--set", f"gpus={ranks}"]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks]
        done = subprocess.run([*launcher, *command], check=True, capture_output=True, text=True)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    with (
        standing("model", topologies()[place], chosen_scale(topologies()[place])) as lab,
        tempfile.TemporaryDirectory() as directory,
    ):
        output = Path(directory) / "rows"
        launch_mpi(
            lab,
            "open-mpi",
            [sys.executable, *command, "--engine", "mpi", "--output", str(output), "--timeout", "120"],
            launcher=mpi_launcher("open-mpi"),
            environment=mpi_variables("open-mpi"),
            timeout_s=1200,
            quiet=True,
        )
        return [json.loads(line) for line in output.read_text().splitlines()]
