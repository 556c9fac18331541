"""The plan of a size against every algorithm of the catalogue and the library's own, on rate-limited networks here.

    python benchmarks/lab_sizes.py --write            # the tables of benchmarks/lab_sizes.md (Linux, root)
    python benchmarks/lab_sizes.py --only ring --rounds 5

Eight ranks run over gloo (`lab_sizes_rank.py`). First a few algorithms of a collective are timed at sizes in between,
from which a time model is fitted. Plans that it makes for the short ones are timed and fitted to as well, twice: they
show what it did not know. With the last model a set of plans is made for the sizes of the table, as `coppice plan
--sizes` does. A second run times every algorithm of the catalogue that has routes, and gloo's own collective; then,
round by round, the set beside those that came near the fastest. So a time is predicted before it is measured, and from
other sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.plan_sets import plan_set
from coppice.errors import CheckError, InputError
from coppice.fitting.time_model import MeasuredTime, fit
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.choice import FOREST, from_catalogue
from coppice.planners.planning import plan
from coppice.run.bench.measuring import NATIVE
from coppice.run.communicator.in_network import is_protocol
from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_ranks
from coppice.run.lab.namespaces import Lab
from coppice.schedule.files.set_file import TimedSize, write_plan_set
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.simulation.models import Model
from coppice.text import short_size, sizes_of
from coppice.topology.model import Topology
from coppice.topology.operations import scale as scaled
from coppice.tuning.statistics import compare
from lab import SLOW_BURST_BYTES, chosen_scale, first_in_line, machine, say, standing, topologies
from lab_sizes_rank import Spec
from tables import Table, number
from time_model_runs import STARTS

PAGE = Path(__file__).with_name("lab_sizes.md")
RANK = Path(__file__).with_name("lab_sizes_rank.py")
KEPT = PAGE.with_suffix(".json")
NETWORKS = ("two-boxes", "ring")
SIZES = sizes_of("16K,256K,4M")
FITTED = sizes_of("8K,32K,128K,512K,2M")
LOOKS, LOOKED_AT = 2, sizes_of("8K,32K")
"""How often plans are timed that a model makes, to fit the next one, and at which sizes: those at which handling
messages takes the time. How flows that meet share a link shows at others, and is in no model."""
RIGHT = 0.15
"""Error of a time that is predicted well enough."""
RESTS = 1.5
"""Rests before runs, in the time in which the slowest link fills its bucket."""
SLOWER = 2
"""Links have this part of the usual rates, so that they take the time, not the two cores."""
FITTED_WITH = {
    Collective.ALL_GATHER: ("ring", "bruck", "neighbor-exchange", "hierarchical", "linear", FOREST),
    Collective.ALL_REDUCE: (
        *("ring", "recursive-doubling", "rabenseifner", "hierarchical", "k-reduce-scatter-allgather"),
        FOREST,
    ),
    Collective.BROADCAST: ("chain", "binomial", "scatter-allgather", "hierarchical", "linear", FOREST),
    Collective.REDUCE_SCATTER: ("ring", "recursive-halving", "pairwise", "two-level", "linear", FOREST),
}
"""A few of each make: long chains, doublings, few messages in all, many at once, all links at once."""
WORTH_KNOWING = 2.0
"""Times the least at a size that a time may be which a model is fitted to: nobody plans with what takes longer."""
LOSS, CHANCE = 0.03, 0.05
"""What a loss is: more than this share, and so clear a one by chance at most so often."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One network, collective and size."""

    network: str
    collective: Collective
    size_bytes: int
    plan: str  # what was the fastest when it was planned
    plan_us: float
    predicted_us: float
    rival: str
    rival_us: float
    native_us: float
    spread: float  # of the plan's rounds: the slowest over the fastest, less 1
    low: float  # 95% interval of the rival's time over the plan's, round by round
    high: float
    slower: bool  # than the rival, beyond noise
    others: dict[str, float]  # what was looked at, with its time in microseconds
    wrong: int


def timed(lab: Lab, spec: Spec) -> list[dict[str, Any]]:
    """The rows of a specification, each rank a process of the lab."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "rows"
        words = msgspec.json.encode(msgspec.structs.replace(spec, output=str(output))).decode()
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(io.StringIO()), first_in_line():
                command = [sys.executable, str(RANK), words]
                launch_ranks(lab, command, timeout_s=3600, out=io.StringIO(), err=said)
        except CheckError:
            say(said.getvalue()[-2000:])
            raise
        rows: list[dict[str, Any]] = json.loads(output.read_text())
        return rows


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


@dataclass(frozen=True)
class Place:
    """A network of the lab."""

    name: str
    topology: Topology

    @property
    def scale(self) -> Fraction:
        """Of the rates."""
        return chosen_scale(self.topology) / SLOWER

    def problem(self, collective: Collective) -> Problem:
        """What is planned."""
        network = scaled(self.topology, self.scale)
        return Problem(topology=network, collective=collective, root=0 if collective.rooted else None)

    @contextlib.contextmanager
    def lab(self) -> Iterator[Lab]:
        """The network while it stands."""
        with standing(
            "sizes",
            self.topology,
            self.scale,
            burst_bytes=SLOW_BURST_BYTES,
            acknowledgements_first=True,
        ) as lab:
            yield lab

    def spec(self, collective: Collective, names: Sequence[str], sizes: Sequence[int], rounds: int) -> Spec:
        """What is timed, without a plan."""
        network = scaled(self.topology, self.scale)
        slowest_gb_per_s = float(min(map(network.gb_per_s, range(network.num_links))))
        return Spec(
            collective=collective,
            names=list(names),
            sizes=list(sizes),
            rounds=rounds,
            rest_s=RESTS * SLOW_BURST_BYTES / slowest_gb_per_s / 1e9,
            output="",
        )


def fitted_times(place: Place, collective: Collective, rounds: int) -> list[dict[str, Any]]:
    """Times to fit a model to."""
    spec = place.spec(collective, FITTED_WITH[collective], FITTED, rounds)
    say(f"{place.name}: {collective} by {', '.join(spec.names)}, to fit a model")
    with place.lab() as lab:
        rows = timed(lab, spec)
    return [
        {key: row[key] for key in ("collective", "algorithm", "size_bytes", "time_us", "pieces")}
        for row in rows
    ]


@dataclass(frozen=True, kw_only=True)
class MeasuredBody:
    """A time to fit a model to, and what was timed."""

    body: Schedule | Forest
    algorithm: str
    size_bytes: int
    time_us: float
    pieces: int | None


def of_the_catalogue(place: Place, rows: Sequence[dict[str, Any]]) -> list[MeasuredBody]:
    """Measured rows of algorithms that are worth knowing."""
    least = {size: min(row["time_us"] for row in rows if row["size_bytes"] == size) for size in FITTED}
    return [
        MeasuredBody(
            body=body_of(place.problem(Collective(row["collective"])), row["algorithm"]),
            algorithm=row["algorithm"],
            size_bytes=row["size_bytes"],
            time_us=row["time_us"],
            pieces=row["pieces"] or None,
        )
        for row in rows
        if row["time_us"] <= WORTH_KNOWING * least[row["size_bytes"]]
    ]


def of_plans(place: Place, collective: Collective, model: Model, rounds: int) -> list[MeasuredBody]:
    """Times of what a model takes for the fastest at short sizes."""
    made = plan_set(place.problem(collective), LOOKED_AT, model=model, least_gain=0).plans
    with tempfile.TemporaryDirectory() as directory, place.lab() as lab:
        folder = Path(directory) / f"{collective}"
        write_plan_set(made, folder)
        rows = timed(lab, place.spec(collective, [str(folder)], LOOKED_AT, rounds))
    return [
        MeasuredBody(
            body=made.at(row["size_bytes"]).body,
            algorithm=f"plan {model.text} {row['size_bytes']}",
            size_bytes=row["size_bytes"],
            time_us=row["time_us"],
            pieces=row["pieces"] or None,
        )
        for row in rows
    ]


def fitted(place: Place, found: Sequence[MeasuredBody]) -> Model:
    """The time model that suits what was measured best; two cores carry all ranks."""
    times = [
        MeasuredTime(
            algorithm=each.algorithm, size_bytes=each.size_bytes, time_us=each.time_us, pieces=each.pieces
        )
        for each in found
    ]
    routed = draw(place.topology, place.scale).routed
    bodies: dict[str, Sequence[Schedule | Forest]] = {each.algorithm: (routed(each.body),) for each in found}
    start = replace(STARTS["lab"], burst_bytes=SLOW_BURST_BYTES, packed=False)
    best = fit(times, bodies, start, name="lab")
    say(f"fitted to {len(times)} times, mean error {best.mean_error:.1%}: {best.model.text}")
    return best.model


def learned(place: Place, collective: Collective, rows: Sequence[dict[str, Any]], rounds: int) -> Model:
    """A model that is fitted to algorithms of the catalogue, and to plans that models before it made."""
    found = of_the_catalogue(place, rows)
    for _ in range(LOOKS):
        found += of_plans(place, collective, fitted(place, found), rounds)
    return fitted(place, found)


def measured(place: Place, collective: Collective, model: Model, rounds: int) -> list[Cell]:
    """Plan, and measure beside all others."""
    problem = place.problem(collective)
    with tempfile.TemporaryDirectory() as directory, place.lab() as lab:
        folder = Path(directory) / f"{collective}"
        made = plan_set(problem, SIZES, model=model).plans
        write_plan_set(made, folder)
        served = with_routes(problem)
        say(f"{place.name}: {collective} by {len(made.plans)} plans, {len(served)} algorithms and gloo")
        spec = place.spec(collective, [*served, FOREST, NATIVE], SIZES, rounds)
        rows = timed(lab, msgspec.structs.replace(spec, plan=str(folder)))
    cells = []
    for each in made.sizes:
        found = {row["algorithm"]: row for row in rows if row["size_bytes"] == each.size_bytes}
        cells.append(cell(place.name, collective, each, found))
    return cells


def cell(network: str, collective: Collective, planned: TimedSize, rows: dict[str, dict[str, Any]]) -> Cell:
    """One size: the plan beside the fastest of all others."""
    (ours,) = [name for name in rows if "/" in name]
    beside = len(rows[ours]["rounds_us"])
    rival = min(
        (name for name, row in rows.items() if name != ours and len(row["rounds_us"]) == beside),
        key=lambda name: rows[name]["time_us"],
    )
    verdict = compare(rows[rival]["rounds_us"], rows[ours]["rounds_us"], paired=True)
    return Cell(
        network=network,
        collective=collective,
        size_bytes=planned.size_bytes,
        plan=planned.fastest_name,
        plan_us=rows[ours]["time_us"],
        predicted_us=planned.simulated_seconds * 1e6,
        rival=rival,
        rival_us=rows[rival]["time_us"],
        native_us=rows["native"]["time_us"],
        spread=rows[ours]["slowest_us"] / rows[ours]["fastest_us"] - 1,
        low=verdict.low,
        high=verdict.high,
        slower=verdict.p_slower <= CHANCE and verdict.gain < 1 - LOSS,
        others={name: row["time_us"] for name, row in rows.items() if name != ours},
        wrong=sum(row["wrong"] for row in rows.values()),
    )


def table(cells: Sequence[Cell], models: Sequence[str]) -> Table:
    """All cells, and in how many the goals hold."""
    ahead = sum(not each.slower for each in cells)
    right = sum(abs(each.predicted_us / each.plan_us - 1) <= RIGHT for each in cells)
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
            "others",
            "its time over the plan's",
        ),
        rows=[
            (
                each.network,
                each.collective.value,
                short_size(each.size_bytes),
                number(each.plan_us / 1e6, unit="s"),
                number(each.predicted_us / 1e6, unit="s"),
                f"{100 * (each.predicted_us / each.plan_us - 1):+.0f}%"
                + (" MISS" if abs(each.predicted_us / each.plan_us - 1) > RIGHT else ""),
                f"{100 * each.spread:.0f}%",
                number(each.native_us / 1e6, unit="s"),
                f"{number(each.rival_us / 1e6, unit='s')} ({100 * (each.rival_us / each.plan_us - 1):+.0f}%)",
                each.rival,
                str(len(each.others)),
                f"{each.low:.2f} .. {each.high:.2f}{' SLOWER' if each.slower else ''}",
            )
            for each in cells
        ],
        notes=[
            f"* At least as fast as the best of all others, within noise: {ahead} of {len(cells)}.",
            f"* Predicted within 15%: {right} of {len(cells)}.",
            f"* Wrong elements: {sum(each.wrong for each in cells)}.",
            *(f"* {model}." for model in models),
        ],
    )


HEAD = """# Plans of sizes on real sockets

`python benchmarks/lab_sizes.py --write` regenerates this page (Linux, root), `--only` and `--collective` a part of it.
{machine}, 8 ranks over gloo.

For each network and collective a time model is fitted to a few algorithms at 8, 32, 128 and 512 KiB and 2 MiB, where
they take no more than twice the fastest of them, and then, twice, to the plans as well that it makes for the first two;
with it plans are made for the sizes of the table. Every algorithm of the catalogue that has routes and gloo's own
collective ("others") are timed in three rounds (at 4 MiB in one, without those that took four times the fastest at
256 KiB). Those that come within 30% of the fastest of them, at most four, are timed again with the plan, round by
round, and these rounds alone count. A time is the median over the rounds of the slowest rank; "rounds" is by how much
the slowest round of the plan was above its fastest one, "best other" how much more than the plan the fastest of all
others took, and at the end stands the 95% interval of its time over the plan's in the same round. Slower beyond noise
is a loss of more than 3% that chance brings in less than 5%.

Links have half the rates of those of lab.md and let {burst:,} bytes through at once after a rest, which every run has
before it; acknowledgements wait for no data. Ranks get a core before all other programs of the machine: behind others,
even idle ones, every message waits for milliseconds, whatever the algorithm.

"""


class _Kept(msgspec.Struct):
    """What was measured so far."""

    times: dict[str, dict[str, list[dict[str, Any]]]] = {}  # By network and collective, to fit models to
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {}  # Likewise, of the table
    notes: dict[str, dict[str, str]] = {}  # Likewise: model and rounds

    def save(self) -> None:
        """Write it down."""
        data = msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1)
        KEPT.write_bytes(data + b"\n")


def measure(
    kept: _Kept, place: Place, collectives: Sequence[Collective], rounds: int, *, times_alone: bool
) -> None:
    """Measure times for a model anew if these alone are asked for or there are none, and then the table."""
    known = kept.times.setdefault(place.name, {})
    for collective in collectives:
        if times_alone or collective not in known:
            known[collective.value] = fitted_times(place, collective, rounds)
            kept.save()
    if times_alone:
        return
    for collective in collectives:
        model = learned(place, collective, known[collective], rounds)
        cells = measured(place, collective, model, rounds)
        kept.cells.setdefault(place.name, {})[collective.value] = [asdict(each) for each in cells]
        kept.notes.setdefault(place.name, {})[collective.value] = f"{rounds} rounds: {model.text}"
        kept.save()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="half as many from 1 MiB on")
    parser.add_argument("--only", action="append", choices=NETWORKS, help="may be repeated")
    parser.add_argument("--collective", action="append", choices=[each.value for each in FITTED_WITH])
    parser.add_argument("--times", action="store_true", help="measure what models are fitted to, and no more")
    parser.add_argument("--shown", action="store_true", help="measure nothing: the page of what was measured")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args(arguments)
    collectives = [Collective(each) for each in options.collective or FITTED_WITH]
    kept = msgspec.json.decode(KEPT.read_bytes(), type=_Kept) if KEPT.exists() else _Kept()
    for name in () if options.shown else options.only or NETWORKS:
        place = Place(name, topologies()[name])
        measure(kept, place, collectives, options.rounds, times_alone=options.times)
    rows = [
        (name, collective)
        for name in NETWORKS
        for collective in FITTED_WITH
        if collective in kept.cells.get(name, {})
    ]
    cells = [
        Cell(**{**each, "collective": collective})
        for name, collective in rows
        for each in kept.cells[name][collective.value]
    ]
    models = [f"{name}, {collective}, {kept.notes[name][collective.value]}" for name, collective in rows]
    page = HEAD.format(machine=machine(), burst=SLOW_BURST_BYTES) + table(cells, models).markdown()
    print(page)
    if options.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
