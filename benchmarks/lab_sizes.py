"""The plan of a size against every algorithm of the catalogue and the library's own, on rate-limited networks here.

    python benchmarks/lab_sizes.py --write            # the tables of benchmarks/lab_sizes.md (Linux, root)
    python benchmarks/lab_sizes.py --only ring --rounds 5

A collective on a network is measured in two runs of `coppice bench`, eight ranks over gloo. The first one times a few
algorithms at sizes in between, from which a time model is fitted. With that model a set of plans is made for the sizes
of the table, as `coppice plan --sizes` does. The second run times, round by round, the set, every algorithm of the
catalogue that has routes, and gloo's own collective. So a time is predicted before it is measured, and from other
sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.plan_sets import plan_set
from coppice.errors import CheckError, InputError
from coppice.fitting.time_model import Bodies, MeasuredTime, fit
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.choice import FOREST, from_catalogue
from coppice.planners.planning import plan
from coppice.run.communicator.in_network import is_protocol
from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_ranks
from coppice.run.lab.namespaces import Lab
from coppice.schedule.files.set_file import write_plan_set
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.simulation.models import Model
from coppice.text import short_size, sizes_of
from coppice.topology.model import Topology
from coppice.topology.operations import scale as scaled
from lab import COLLECTIVES, SLOW_BURST_BYTES, chosen_scale, machine, say, standing, topologies
from tables import Table, number
from time_model_runs import STARTS

PAGE = Path(__file__).with_name("lab_sizes.md")
KEPT = PAGE.with_suffix(".json")
NETWORKS = ("two-boxes", "ring")
SIZES = sizes_of("16K,256K,4M")
FITTED = sizes_of("8K,32K,128K,512K,2M")
SLOWER = 2
"""Links have this part of the usual rates, so that they take the time, not the two cores."""
FITTED_WITH = {
    Collective.ALL_GATHER: ("ring", "bruck", "neighbor-exchange", FOREST),
    Collective.ALL_REDUCE: ("ring", "recursive-doubling", "rabenseifner", FOREST),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One network, collective and size."""

    network: str
    collective: Collective
    size_bytes: int
    plan_us: float
    predicted_us: float
    rival: str
    rival_us: float
    native_us: float
    spread: float  # of the plan's rounds: the slowest over the fastest, less 1
    wrong: int


def bench(
    lab: Lab, collective: Collective, sizes: Sequence[int], names: Sequence[str], rounds: int
) -> list[dict[str, Any]]:
    """The rows of `coppice bench`, each rank a process of the lab."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "rows"
        command = [sys.executable, "-m", "coppice", "bench", collective.value]
        command += ["-s", ",".join(map(str, sizes)), "-n", str(rounds), "-w", "2", "-a", ",".join(names)]
        command += ["--engine", "torch", "--output", str(output), "--json", "--timeout", "120"]
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                launch_ranks(lab, command, timeout_s=3600, out=io.StringIO(), err=said)
        except CheckError:
            say(said.getvalue()[-2000:])
            raise
        return [json.loads(line) for line in output.read_text().splitlines()]


def body_of(problem: Problem, name: str) -> Schedule | Forest:
    """What ranks run, as they plan it."""
    if name == FOREST:
        return plan(problem, ring=False).plan.body
    return from_catalogue(problem, name, relay_gpus=True).body


def with_routes(problem: Problem) -> list[str]:
    """Names of the catalogue's algorithms that serve the problem, without a switch that adds."""
    found = []
    for name, collective in algorithms():
        if collective is problem.collective and not is_protocol(name):
            with contextlib.suppress(InputError):
                body_of(problem, name)
                found.append(name)
    return found


def fitted(rows: Sequence[dict[str, Any]], bodies: Bodies) -> Model:
    """The time model that suits measured rows best; two cores carry all ranks."""
    times = [
        MeasuredTime(
            algorithm=f"{row['collective']} {row['algorithm']}",
            size_bytes=row["size_bytes"],
            time_us=row["time_us"],
            pieces=row["pieces"] or None,
        )
        for row in rows
        if not row["refusal"]
    ]
    start = replace(STARTS["lab"], burst_bytes=SLOW_BURST_BYTES)
    found = fit(times, bodies, start, name="lab")
    say(f"fitted to {len(times)} times, mean error {found.mean_error:.1%}: {found.model.text}")
    return found.model


def measured(name: str, topology: Topology, collective: Collective, rounds: int) -> tuple[Model, list[Cell]]:
    """Fit, plan, measure."""
    scale = chosen_scale(topology) / SLOWER
    network = scaled(topology, scale)
    problem = Problem(topology=network, collective=collective)
    with (
        standing("sizes", topology, scale, burst_bytes=SLOW_BURST_BYTES, acknowledgements_first=True) as lab,
        tempfile.TemporaryDirectory() as directory,
    ):
        routed = draw(topology, scale).routed
        names = FITTED_WITH[collective]
        say(f"{name}: {collective} by {', '.join(names)}, to fit a model")
        rows = bench(lab, collective, FITTED, names, rounds)
        bodies: dict[str, Sequence[Schedule | Forest]] = {
            f"{collective} {each}": (routed(body_of(problem, each)),) for each in names
        }
        model = fitted(rows, bodies)
        folder = Path(directory) / f"{collective}"
        made = plan_set(problem, SIZES, model=model, effort="high").plans
        write_plan_set(made, folder)
        served = with_routes(problem)
        say(f"{name}: {collective} by {len(made.plans)} plans, {len(served)} algorithms and gloo")
        rows = bench(lab, collective, SIZES, [str(folder), *served, "native"], rounds)
    predicted = {each.size_bytes: each.simulated_seconds * 1e6 for each in made.sizes}
    cells = []
    for size in SIZES:
        found = {row["algorithm"]: row for row in rows if row["size_bytes"] == size and not row["refusal"]}
        cells.append(cell(name, collective, size, found, predicted[size]))
    return model, cells


def cell(
    network: str, collective: Collective, size: int, rows: dict[str, dict[str, Any]], predicted_us: float
) -> Cell:
    """One size: the plan beside the fastest of all others."""
    (ours,) = [name for name in rows if "/" in name]
    rival = min((name for name in rows if name != ours), key=lambda name: rows[name]["time_us"])
    return Cell(
        network=network,
        collective=collective,
        size_bytes=size,
        plan_us=rows[ours]["time_us"],
        predicted_us=predicted_us,
        rival=rival,
        rival_us=rows[rival]["time_us"],
        native_us=rows["native"]["time_us"],
        spread=rows[ours]["slowest_us"] / rows[ours]["fastest_us"] - 1,
        wrong=sum(row["wrong"] for row in rows.values()),
    )


def table(cells: Sequence[Cell], models: Sequence[str]) -> Table:
    """All cells, and in how many the goals hold."""
    ahead = sum(each.plan_us <= each.rival_us * 1.05 for each in cells)
    right = sum(abs(each.predicted_us / each.plan_us - 1) <= 0.15 for each in cells)
    return Table(
        title="Plans of sizes, measured",
        header=(
            "network",
            "collective",
            "size",
            "plan",
            "predicted",
            "error",
            "rounds",
            "gloo",
            "best other",
            "",
        ),
        rows=[
            (
                each.network,
                each.collective.value,
                short_size(each.size_bytes),
                number(each.plan_us / 1e6, unit="s"),
                number(each.predicted_us / 1e6, unit="s"),
                f"{100 * (each.predicted_us / each.plan_us - 1):+.0f}%",
                f"{100 * each.spread:.0f}%",
                number(each.native_us / 1e6, unit="s"),
                f"{number(each.rival_us / 1e6, unit='s')} ({100 * (each.rival_us / each.plan_us - 1):+.0f}%)",
                each.rival,
            )
            for each in cells
        ],
        notes=[
            f"* At least as fast as the best of all others, within 5%: {ahead} of {len(cells)}.",
            f"* Predicted within 15%: {right} of {len(cells)}.",
            f"* Wrong elements: {sum(each.wrong for each in cells)}.",
            *(f"* {model}." for model in models),
        ],
    )


HEAD = """# Plans of sizes on real sockets

`python benchmarks/lab_sizes.py --write` regenerates this page (Linux, root), `--only` and `--collective` a part of it.
{machine}, 8 ranks over gloo.

For each network and collective a time model is fitted to a few algorithms at 8, 32, 128 and 512 KiB and 2 MiB; with it
plans are made for the sizes of the table, and these, every algorithm of the catalogue that has routes, and gloo's own
collective are timed in one run, round by round. A time is the median over the rounds of the slowest rank; "rounds" is
by how much the slowest round of the plan was above its fastest one, "best other" how much more than the plan the
fastest of all others took. Links have half the rates of those of lab.md and let {burst:,} bytes through at once after a
rest; acknowledgements wait for no data.

"""


def kept_rows(names: Sequence[str], collectives: Sequence[Collective], rounds: int) -> list[dict[str, Any]]:
    """Rows of networks and collectives, those asked for measured anew and kept for another run."""
    networks = topologies()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else []
    for name in names:
        for collective in collectives:
            model, found = measured(name, networks[name], collective, rounds)
            row: dict[str, Any] = {
                "network": name,
                "collective": collective.value,
                "rounds": rounds,
                "model": model.text,
            }
            row["cells"] = [asdict(each) for each in found]
            others = [
                each for each in kept if (each["network"], each["collective"]) != (name, collective.value)
            ]
            kept = sorted(
                [*others, row], key=lambda each: (NETWORKS.index(each["network"]), each["collective"])
            )
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", choices=NETWORKS, help="may be repeated")
    parser.add_argument("--collective", action="append", choices=[each.value for each in COLLECTIVES])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args(arguments)
    collectives = [Collective(each) for each in options.collective or COLLECTIVES]
    rows = kept_rows(options.only or NETWORKS, collectives, options.rounds)
    cells = [
        Cell(**{**each, "collective": Collective(each["collective"])})
        for row in rows
        for each in row["cells"]
    ]
    models = [
        f"{row['network']}, {row['collective']}, {row['rounds']} rounds: {row['model']}" for row in rows
    ]
    page = HEAD.format(machine=machine(), burst=SLOW_BURST_BYTES) + table(cells, models).markdown()
    print(page)
    if options.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
