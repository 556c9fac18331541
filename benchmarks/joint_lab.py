"""Plans of several groups at once, made together and one by one, on real sockets beside what the simulator says.

    python benchmarks/joint_lab.py --write            # the table of benchmarks/joint_lab.md (Linux, root; some minutes)
    python benchmarks/joint_lab.py --rounds 1 --only slow-rail --engine torch

Each network stands in the lab; `coppice bench --together` runs all groups at the same time, first with the plans of
`coppice plan --groups`, then with plans made for each group by itself, round by round in turn. "Measured" is the median
over the rounds of the time in which the last group ends, its own median of some iterations.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np

from coppice.bounds.together.demands import GroupDemand
from coppice.planners.together.joint import JointPlan, plan_apart, plan_together
from coppice.run.lab.launch import launch_mpi, launch_ranks
from coppice.run.lab.namespaces import Lab
from coppice.run.planned import choose_pieces
from coppice.schedule.files.jobs_file import decode_jobs, write_jobs
from coppice.simulation.jobs import Job, simulate_together
from coppice.simulation.models import Model, Sharing
from coppice.topology import scale_nodes
from coppice.topology.model import Topology
from coppice.topology.operations import scale as scaled
from lab import chosen_scale, first_in_line, machine, mpi_launcher, mpi_variables, say, standing, two_boxes
from tables import rows_by_network

TABLE = Path(__file__).with_name("joint_lab.md")
ENGINES = ("torch", "open-mpi", "mpich")
MIB = 1 << 20
SLOWER = 3
"""Links have this part of the usual rates: ranks do two things at once, and all plans share the cores."""

OVERHEAD_US = 50.0
"""What a message costs in the simulation, as in the other tables of the lab."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Groups on a network."""

    topology: Topology
    demands: tuple[GroupDemand, ...]
    words: str


def demand(name: str, collective: str, groups: Sequence[Sequence[int]], mib: int) -> GroupDemand:
    return GroupDemand(name, collective, np.array(groups), [Fraction(mib * MIB)] * len(groups))


def cases() -> dict[str, Case]:
    """The networks of the table, with what their groups exchange."""
    pairs = [(rank, rank + 4) for rank in range(4)]
    rails = two_boxes(rails=True)
    return {
        "slow-rail": Case(
            topology=scale_nodes(rails, {"box1/nic2": "50%"}),
            demands=(
                demand("dp", "all_reduce", [range(8)], 9),
                demand("dp of experts", "all_reduce", pairs, 3),
            ),
            words="9 MiB of all replicas and 3 MiB of the experts' pairs, a NIC at half its rate",
        ),
        "two-jobs": Case(
            topology=rails,
            demands=(
                demand("first", "all_reduce", [(0, 1, 4, 5)], 6),
                demand("second", "all_reduce", [(0, 4)], 6),
            ),
            words="6 MiB of a job on two rails, and 6 MiB of another one on the first of them",
        ),
        "even": Case(
            topology=rails,
            demands=(
                demand("tp", "all_reduce", [range(4), range(4, 8)], 6),
                demand("dp", "all_reduce", pairs, 6),
            ),
            words="groups in boxes and across share nothing: no plan is better",
        ),
    }


def jobs_of(made: JointPlan) -> list[Job]:
    """The groups, with the pieces that are the best for each alone."""
    return [
        Job(
            name=f"{each.demand.name.replace(' ', '-')}-{number}",
            body=each.plan.body,
            size_bytes=int(each.size_bytes),
            pieces=choose_pieces(each.plan.body, int(each.size_bytes), OVERHEAD_US),
        )
        for number, each in enumerate(made.groups)
    ]


def write(made: JointPlan, jobs: Sequence[Job], folder: Path) -> Path:
    """The plans in a folder, and their jobs file with the pieces that are simulated."""
    file = made.save(folder)[0]
    rows = [
        msgspec.structs.replace(row, pieces=job.pieces)
        for row, job in zip(decode_jobs(file).jobs, jobs, strict=True)
    ]
    write_jobs(rows, file)
    return file


def measured_ms(lab: Lab, engine: str, jobs: Path, output: Path, iterations: int) -> float:
    """When the last group ends, by `coppice bench --together`; all ranks of the lab are processes."""
    command = [sys.executable, "-m", "coppice", "bench", "--together", str(jobs)]
    command += ["-n", str(iterations), "-w", "1", "--engine", "torch" if engine == "torch" else "mpi"]
    command += ["--output", str(output), "--json", "--timeout", "120"]
    with contextlib.redirect_stderr(io.StringIO()), first_in_line():
        if engine == "torch":
            launch_ranks(lab, command, timeout_s=400, out=io.StringIO(), err=io.StringIO())
        else:
            launch_mpi(
                lab,
                engine,
                command,
                launcher=mpi_launcher(engine),
                environment=mpi_variables(engine),
                timeout_s=400,
                quiet=True,
            )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    if any(row["wrong"] for row in rows):
        raise SystemExit(f"wrong results: {rows}")
    return float(max(row["time_us"] for row in rows)) / 1e3


def rows(name: str, case: Case, options: argparse.Namespace) -> Iterator[str]:
    """The rows of one network."""
    scale = chosen_scale(case.topology) / SLOWER
    network = scaled(case.topology, scale)
    made = {"together": plan_together(network, case.demands), "apart": plan_apart(network, case.demands)}
    jobs = {how: jobs_of(each) for how, each in made.items()}
    model = Model(overhead_us=OVERHEAD_US, sharing=Sharing.FAIR)
    simulated = {how: simulate_together(each, model=model).time_us / 1e3 for how, each in jobs.items()}
    times: dict[tuple[str, str], list[float]] = {}
    with standing("joint", case.topology, scale) as lab, tempfile.TemporaryDirectory() as directory:
        files = {how: write(each, jobs[how], Path(directory) / how) for how, each in made.items()}
        for turn in range(options.rounds):
            for engine in options.engine or ENGINES:
                for how, file in files.items():
                    say(f"{name} round {turn + 1}: planned {how}, {engine}")
                    time = measured_ms(lab, engine, file, Path(directory) / "rows", options.iterations)
                    times.setdefault((engine, how), []).append(time)
    for engine in options.engine or ENGINES:
        median = {how: statistics.median(times[engine, how]) for how in made}
        for how, each in made.items():
            cells = [
                f"{name}, {case.topology.name} at {float(scale):.0e}: {case.words}",
                engine,
                how,
                f"{100 * float(each.gap):.1f}%",
                f"{simulated[how]:.0f}",
                f"{median[how]:.0f}",
                f"{100 * (median[how] / simulated[how] - 1):+.1f}%",
                f"{simulated['apart'] / simulated[how]:.2f}",
                f"{median['apart'] / median[how]:.2f}",
            ]
            yield "| " + " | ".join(cells) + " |"


HEAD = """# Groups at once on real sockets

All-reduces of several groups at the same time on emulated networks (`coppice lab`), 8 ranks. Regenerate with
`python benchmarks/joint_lab.py --rounds {rounds} --iterations {iterations} --write` (Linux, root). Medians of {rounds}
rounds of {iterations}, both plans in turn in every round. {machine}

"Planned": together by `coppice plan --groups`, or apart, each group as if it had all links. "Over the bound": of the
busiest link over the bound of all groups. "Simulated": when the last group ends at 50 us a message and fair links;
"measured": the same by `coppice bench --together`, and how far it is from the simulation. "Gain": the time of plans
made apart over this one's, as simulated and as measured.

| network | engine | planned | over the bound | simulated, ms | measured, ms | off | simulated gain | measured gain |
|---|---|---|---|---|---|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--only", action="append", help="name of a network; may be repeated")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="may be repeated")
    parser.add_argument(
        "--write", action="store_true", help=f"write {TABLE.name}; networks left out keep their rows"
    )
    options = parser.parse_args(arguments)
    known = cases()
    head = HEAD.format(rounds=options.rounds, iterations=options.iterations, machine=f"{machine()}.")
    found = rows_by_network(TABLE) if options.write and options.only else {}
    for name in options.only or known:
        found[name] = "".join(f"{row}\n" for row in rows(name, known[name], options))
        if options.write:  # after every network: what was measured is not lost
            TABLE.write_text(head + "".join(found.get(each, "") for each in known))
    print(head + "".join(found.get(each, "") for each in known))


if __name__ == "__main__":
    main()
