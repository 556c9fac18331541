"""Planned forests against gloo, Open MPI and MPICH on real sockets: rate-limited networks of this machine.

    python benchmarks/lab.py --write            # the table of benchmarks/lab.md (Linux, root; about an hour)
    python benchmarks/lab.py --rounds 1 --only ring --who "coppice, gloo"

Every contender runs in every round, one after the other; a figure is the median over the rounds of its own median of
the slowest rank's time. "Simulated" is what the simulator says of the same plan on the same network; "cores busy" is
the share of all cores while the contender ran: above about 40% they, not the links, may be measured.

Other benchmarks in the lab have from here how a lab is built and how `coppice bench` and the MPI libraries run in it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.planning import plan
from coppice.run.lab.blueprint import draw, load_of
from coppice.run.lab.launch import launch_mpi, launch_ranks
from coppice.run.lab.namespaces import BURST_BYTES, Lab, build, remove
from coppice.run.planned import choose_pieces
from coppice.simulation.models import Model
from coppice.simulation.simulator import simulate
from coppice.topology import scale_nodes, subset
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import scale as scaled
from coppice.topology.operations import set_link_rate
from coppice.topology.presets import preset
from tables import rows_by_network

TABLE = Path(__file__).with_name("lab.md")
MPI_HOME = Path(os.environ.get("COPPICE_MPI", Path(sys.prefix) / "mpi"))
COLLECTIVES = (Collective.ALL_GATHER, Collective.ALL_REDUCE)
SLOW_BURST_BYTES = 20_000
"""What links of 100 Mbit/s let through at once after a rest where messages rest between each other: 1.6 ms of them."""
LOAD = Fraction(3 * 10**9)
"""Bits per second that arrive at all ranks in an optimal all-gather: well below what two cores carry."""
FORCED = {
    Collective.ALL_GATHER: {1: "linear", 2: "bruck", 3: "recursive_doubling", 4: "ring", 5: "neighbor"},
    Collective.ALL_REDUCE: {3: "recursive_doubling", 4: "ring", 5: "segmented_ring", 6: "rabenseifner"},
}


def two_boxes(*, rails: bool = False) -> Topology:
    """Two boxes of four GPUs on a switch, a network port each; all ports on one switch, or one switch a rail."""
    nodes: list[Node] = []
    links: list[Link] = []
    networks = [f"rail{i}" for i in range(4)] if rails else ["network"]
    for box in range(2):
        host = f"box{box}"
        nodes += [Node(id=f"{host}/gpu{i}", host=host) for i in range(4)]
        nodes += [Node(id=f"{host}/switch", kind=NodeKind.SWITCH, host=host)]
        nodes += [Node(id=f"{host}/nic{i}", kind=NodeKind.NIC, host=host) for i in range(4)]
        for i in range(4):
            links.append(Link(src=f"{host}/gpu{i}", dst=f"{host}/switch", gb_per_s=Fraction(250)))
            links.append(Link(src=f"{host}/gpu{i}", dst=f"{host}/nic{i}", gb_per_s=Fraction(25)))
            links.append(Link(src=f"{host}/nic{i}", dst=networks[i % len(networks)], gb_per_s=Fraction(25)))
    nodes += [Node(id=name, kind=NodeKind.SWITCH) for name in networks]
    return Topology.of("two boxes of four GPUs" + (", rails" if rails else ""), nodes, links)


def topologies() -> dict[str, Topology]:
    """The networks of the table."""
    return {
        "two-boxes": two_boxes(),
        "ring": set_link_rate(preset("ring", gpus=8, gb_per_s=25), "gpu2", "gpu3", 50),
        "mi250-half": subset(preset("mi250"), range(8)),
        "rails": two_boxes(rails=True),
        "slow-nic": scale_nodes(two_boxes(), {"box1/nic2": "50%"}),
    }


def chosen_scale(topology: Topology) -> Fraction:
    """About the load that the cores carry well, with one digit."""
    exact = LOAD / load_of(topology, Fraction(1)).bits_per_s
    return Fraction(f"{float(exact):.0e}")


@dataclass
class Contender:
    """One way to run the collectives: who starts the ranks, what they run, and what was measured."""

    name: str
    launcher: str
    algorithm: str
    forced: dict[Collective, str] = field(default_factory=dict)
    times: dict[Collective, list[float]] = field(default_factory=dict)
    busy: dict[Collective, list[float]] = field(default_factory=dict)
    wrong: int = 0


def contenders(*, forced: bool) -> list[Contender]:
    """Ours with each engine, each library by itself, and Open MPI's algorithms."""
    found = [
        Contender("coppice, MPICH as engine", "mpich", "forest"),
        Contender("coppice, Open MPI as engine", "open-mpi", "forest"),
        Contender("coppice, gloo as engine", "torch", "forest"),
        Contender("MPICH", "mpich", "native"),
        Contender("Open MPI", "open-mpi", "native"),
        Contender("gloo", "torch", "native"),
    ]
    if forced:
        numbers = sorted({number for each in FORCED.values() for number in each})
        for number in numbers:
            which = {what: names[number] for what, names in FORCED.items() if number in names}
            found.append(Contender(f"Open MPI, algorithm {number}", "open-mpi", "native", which))
    return found


@contextlib.contextmanager
def standing(
    name: str,
    topology: Topology,
    scale: Fraction,
    *,
    burst_bytes: int = BURST_BYTES,
    acknowledgements_first: bool = False,
) -> Iterator[Lab]:
    """A lab that is taken down at the end; if a run that was killed left one of this name, it is taken down first."""
    remove(name)
    lab = build(
        name, draw(topology, scale), burst_bytes=burst_bytes, acknowledgements_first=acknowledgements_first
    )
    try:
        yield lab
    finally:
        remove(name)


@contextlib.contextmanager
def first_in_line() -> Iterator[None]:
    """Programs that this thread starts meanwhile get a core before all others of the machine, for as long as they live.

    Ranks over gloo sleep until a message arrives, and then take microseconds. Behind other programs, even idle ones,
    each may wait for milliseconds, at every step. Ranks that poll must yield, as both MPI libraries do: then they give
    way to each other alone, where they gave a whole turn to what else runs.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def mpi_launcher(library: str) -> str:
    """The launcher of open-mpi or mpich, beside the environment or in COPPICE_MPI."""
    return str(MPI_HOME / library / "bin" / "mpiexec")


def mpi_variables(library: str) -> dict[str, str]:
    """Variables with which mpi4py finds open-mpi or mpich there."""
    home = MPI_HOME / library
    if library == "open-mpi":
        return {
            "OPAL_PREFIX": str(home),
            "MPI4PY_MPIABI": "openmpi",
            "MPI4PY_LIBMPI": str(home / "lib" / "libmpi.so"),
        }
    return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(home / "lib")}


def bench_row(
    lab: Lab,
    launcher: str,
    collective: Collective,
    algorithm: str,
    output: Path,
    *,
    size: int,
    iterations: int,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What `coppice bench` says of one algorithm at one size, every rank of the lab a process.

    Args:
        lab: Where.
        launcher: ``open-mpi``, ``mpich``, or ``torch`` for gloo.
        collective: What is performed.
        algorithm: What `coppice bench` calls it.
        output: A file for its row.
        size: Bytes of the large buffer.
        iterations: Rounds, after one that does not count.
        variables: Set for all ranks.

    Raises:
        CheckError: If a rank failed or hangs.
    """
    engine = "torch" if launcher == "torch" else "mpi"
    command = [sys.executable, "-m", "coppice", "bench", collective.value, "-b", str(size), "-e", str(size)]
    command += ["-n", str(iterations), "-w", "1", "-a", algorithm, "--engine", engine]
    command += ["--output", str(output), "--json", "--timeout", "120"]
    with contextlib.redirect_stderr(io.StringIO()):
        if launcher == "torch":
            launch_ranks(
                lab, command, environment=variables, timeout_s=400, out=io.StringIO(), err=io.StringIO()
            )
        else:
            launch_mpi(
                lab,
                launcher,
                command,
                launcher=mpi_launcher(launcher),
                environment={**mpi_variables(launcher), **(variables or {})},
                timeout_s=400,
                quiet=True,
            )
    row: dict[str, Any] = json.loads(output.read_text().splitlines()[0])
    return row


def run(
    lab: Lab, contender: Contender, collective: Collective, size: int, iterations: int, output: Path
) -> None:
    """Run it once, and keep its median and the share of busy cores."""
    variables = {}
    if contender.forced:
        name = collective.dialects.mpi.removeprefix("MPI_").lower()
        number = contender.name.rsplit(" ", 1)[1]
        variables["OMPI_MCA_coll_tuned_use_dynamic_rules"] = "1"
        variables[f"OMPI_MCA_coll_tuned_{name}_algorithm"] = number
    row = bench_row(
        lab,
        contender.launcher,
        collective,
        contender.algorithm,
        output,
        size=size,
        iterations=iterations,
        variables=variables,
    )
    if row["refusal"]:
        raise SystemExit(row["refusal"])
    contender.wrong += row["wrong"]
    contender.times.setdefault(collective, []).append(row["time_us"] / 1e3)
    contender.busy.setdefault(collective, []).append(row["cores_busy"])


def simulated_ms(topology: Topology, collective: Collective, size: int) -> tuple[float, float]:
    """The bound and what the simulator says of the planned forest with a cost of 50 us a message, in ms."""
    problem = Problem(topology=topology, collective=collective)
    limit = size / float(bound(problem).algbw_gb_per_s) / 1e6
    body = plan(problem, ring=False).plan.body
    model = Model(overhead_us=50.0)
    return limit, simulate(body, size, model=model, pieces=choose_pieces(body, size, 50.0)).time_us / 1e3


def rows(name: str, topology: Topology, options: argparse.Namespace) -> Iterator[str]:
    """The rows of one network."""
    scale = chosen_scale(topology)
    found = [
        each
        for each in contenders(forced=name in options.forced)
        if not options.who or any(each.name.startswith(who) for who in options.who)
    ]
    with standing("bench", topology, scale) as lab, tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "rows"
        for number in range(options.rounds):
            for contender in found:
                for collective in COLLECTIVES:
                    if contender.forced and (number or collective not in contender.forced):
                        continue
                    say(f"{name} round {number + 1}: {collective.value} by {contender.name}")
                    run(lab, contender, collective, options.size, options.iterations, output)
    network = scaled(topology, scale)
    for collective in COLLECTIVES:
        limit, simulated = simulated_ms(network, collective, options.size)
        median = {
            each.name: statistics.median(each.times[collective]) for each in found if collective in each.times
        }
        rivals = [value for key, value in median.items() if not key.startswith("coppice")]
        for each in found:
            if collective not in each.times:
                continue
            time = median[each.name]
            ours = each.name.startswith("coppice")
            label = f"{each.name} ({each.forced[collective]})" if each.forced else each.name
            cells = [
                f"{name}, {topology.name} at {float(scale):.0e}",
                collective.value,
                label,
                f"{time:.0f}",
                f"{100 * limit / time:.0f}%",
                f"{100 * simulated / time:.0f}%" if ours else "",
                f"{min(rivals) / time:.2f}" if ours and rivals else "",
                f"{100 * statistics.median(each.busy[collective]):.0f}%",
                str(each.wrong),
            ]
            yield "| " + " | ".join(cells) + " |"


HEAD = """# Collectives on real sockets

{size} bytes on emulated networks (`coppice lab`: network namespaces joined by rate-limited links, TCP), 8 ranks.
Regenerate with `python benchmarks/lab.py --rounds {rounds} --iterations {iterations} --forced NAME ... --write` (Linux,
root). Medians of {rounds} rounds of {iterations}, on each network all contenders in every round. {machine}

"of the bound": the exact bandwidth bound over the measured time; no schedule reaches 100%, since headers take 0.7% and
pipelines fill. "of simulated": simulated time, at 50 us a message, over measured time. "ahead": time of the best
library over ours. "cores busy": share of all cores; above about 40% the cores are part of what was measured, except
that MPI libraries poll while they wait and so are always near 100%. Forced algorithms ran in the first round only.

| network | collective | who | ms | of the bound | of simulated | ahead | cores busy | wrong |
|---|---|---|---|---|---|---|---|---|
"""


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def machine() -> str:
    """What this machine is, for the head of a page."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--size", type=int, default=1 << 24)
    parser.add_argument("--only", action="append", help="name of a network; may be repeated")
    parser.add_argument("--who", action="append", help="how a contender's name begins; may be repeated")
    parser.add_argument(
        "--forced",
        action="append",
        default=[],
        help="network with Open MPI's algorithms, in the first round; repeatable",
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write {TABLE.name}; networks left out keep their rows"
    )
    options = parser.parse_args(arguments)
    networks = topologies()
    head = HEAD.format(
        size=options.size, rounds=options.rounds, iterations=options.iterations, machine=f"{machine()}."
    )
    found = rows_by_network(TABLE) if options.write and options.only else {}
    for name in options.only or networks:
        found[name] = "".join(f"{row}\n" for row in rows(name, networks[name], options))
        if options.write:  # after every network: what was measured is not lost
            TABLE.write_text(head + "".join(found.get(each, "") for each in networks))
    print(head + "".join(found.get(each, "") for each in networks))


if __name__ == "__main__":
    main()
