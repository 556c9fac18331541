"""Planned forests against every algorithm that Open MPI and MPICH can be forced to run, on real sockets.

    python benchmarks/mpi_algorithms.py --write    # the tables of mpi_algorithms.md (Linux, root; half an hour)
    python benchmarks/mpi_algorithms.py --rounds 1 --iterations 1 --size 1048576 --only ring

One network of this machine stands for `examples/two-boxes.json` at a scale of 5e-4: 8 ranks, 1 Gbit/s to the switch of
their box, 100 Mbit/s to the network. Every contender runs in every round, one after the other; a figure is the median
over the rounds of its own median of the slowest rank's time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from rich.console import Console

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.run.bench.measuring import NATIVE, busy_share, core_times
from coppice.run.lab.namespaces import Lab
from coppice.run.planned import FOREST
from coppice.topology.operations import scale
from coppice.topology.sources import resolve
from lab import bench_row, machine, say, simulated_ms, standing
from mpi_traffic import FUNCTIONS
from mpich_traffic import MPICH, algorithm_variable
from tables import Table

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "two-boxes.json"
PAGE = HERE / "mpi_algorithms.md"
SCALE = Fraction(5, 10000)
COLLECTIVES = (Collective.ALL_GATHER, Collective.ALL_REDUCE)
LIBRARIES = {"open-mpi": "Open MPI", "mpich": "MPICH"}


@dataclass
class Contender:
    """One way to run a collective.

    Attributes:
        library: ``open-mpi`` or ``mpich``.
        collective: What it performs.
        name: What the table calls it.
        planned: Our forest, with the library as engine.
        variables: What forces an algorithm of the library.
        times_ms: Its median in each round.
        busy: Share of all cores that were busy in each round.
        wrong: Results that were wrong, over all rounds.
        refusal: Why it does not run.
    """

    library: str
    collective: Collective
    name: str
    planned: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    times_ms: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    wrong: int = 0
    refusal: str | None = None


def contenders(ranks: int) -> Iterator[Contender]:
    """Ours over both libraries, both by themselves, and all that they can be forced to run."""
    for collective in COLLECTIVES:
        function = collective.dialects.mpi.removeprefix("MPI_").lower()
        for library, title in LIBRARIES.items():
            yield Contender(library, collective, f"coppice, {title} as engine", planned=True)
        for library, title in LIBRARIES.items():
            yield Contender(library, collective, title)
        for number, forced in FUNCTIONS[function][1].items():
            if forced.name == "two-proc" or forced.runs_as(ranks) != forced.name:
                continue
            variables = {
                "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
                "OMPI_MCA_coll_tuned_priority": "100",
                f"OMPI_MCA_coll_tuned_{function}_algorithm": str(number),
            }
            yield Contender("open-mpi", collective, f"Open MPI, {number} {forced.name}", variables=variables)
        for algorithm in MPICH[function][1]:
            variables = {
                "MPIR_CVAR_DEVICE_COLLECTIVES": "none",
                algorithm_variable(function): algorithm,
            }
            yield Contender("mpich", collective, f"MPICH, {algorithm}", variables=variables)


def run(lab: Lab, contender: Contender, output: Path, options: argparse.Namespace) -> None:
    """Run it once, and keep its median and the share of busy cores."""
    before = core_times()
    try:
        row = bench_row(
            lab,
            contender.library,
            contender.collective,
            FOREST if contender.planned else NATIVE,
            output,
            size=options.size,
            iterations=options.iterations,
            variables=contender.variables,
        )
    except CheckError as error:
        contender.refusal = str(error)
        return
    busy = busy_share(before, core_times())
    if row["refusal"]:
        contender.refusal = row["refusal"]
        return
    contender.wrong += row["wrong"]
    contender.times_ms.append(row["time_us"] / 1e3)
    contender.busy.append(busy)


def measured(options: argparse.Namespace) -> list[Contender]:
    """All contenders, round by round."""
    topology = resolve(str(EXAMPLE))
    found = [each for each in contenders(topology.num_ranks) if options.only in (None, *each.name.split())]
    with standing("benchalgorithms", topology, SCALE) as lab, tempfile.TemporaryDirectory() as directory:
        for number in range(options.rounds):
            for each in found:
                if each.refusal is None:
                    say(f"round {number + 1}: {each.collective} by {each.name}")
                    run(lab, each, Path(directory) / "rows", options)
    return found


def tables(found: list[Contender], options: argparse.Namespace) -> Iterator[Table]:
    """A table for each collective, fastest first."""
    network = scale(resolve(str(EXAMPLE)), SCALE)
    for collective in COLLECTIVES:
        limit, simulated = simulated_ms(network, collective, options.size)
        rows = [each for each in found if each.collective is collective]
        median = {each.name: statistics.median(each.times_ms) for each in rows if each.times_ms}
        rivals = [median[each.name] for each in rows if each.name in median and not each.planned]
        made = Table(
            title=f"{collective.value} of {options.size / 2**20:g} MiB",
            header=(
                "who",
                "ms",
                "bound / time",
                "simulated / time",
                "best library / time",
                "cores busy",
                "wrong",
            ),
        )
        made.rows.append(("exact bound", f"{limit:.0f}", "100%", "", "", "", ""))
        made.rows.append(
            ("our forest, simulated", f"{simulated:.0f}", f"{limit / simulated:.0%}", "", "", "", "")
        )
        for each in sorted(rows, key=lambda one: median.get(one.name, float("inf"))):
            if each.name not in median:
                made.rows.append((each.name, "-", "", "", "", "", each.refusal or ""))
                continue
            time = median[each.name]
            made.rows.append(
                (
                    each.name,
                    f"{time:.0f}",
                    f"{limit / time:.0%}",
                    f"{simulated / time:.0%}" if each.planned else "",
                    f"{min(rivals) / time:.2f}" if each.planned and rivals else "",
                    f"{statistics.median(each.busy):.0%}",
                    str(each.wrong),
                )
            )
        yield made


HEAD = """# Algorithms of MPI libraries on real sockets

`python benchmarks/mpi_algorithms.py --rounds {rounds} --iterations {iterations} --write` (Linux, root). Our planned
forests, with a library's point-to-point messages as engine, against the collectives of Open MPI and MPICH: what each
picks by itself and every algorithm that it can be forced to run. Emulated TCP: `examples/two-boxes.json` at {scale:g}
of its rates as network namespaces of this machine ({machine}).
Medians of {rounds} rounds of {iterations}, all contenders in every round.

Headers take 0.7% and pipelines fill: no schedule reaches the bound. MPI libraries poll while they wait, and so keep
the cores busy whatever they do.

"""


def main() -> None:
    """Measure, print, and write the page if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--size", type=int, default=1 << 24, help="bytes of the collective's large buffer")
    parser.add_argument("--only", help="contenders whose name has this word")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    found = measured(options)
    made = list(tables(found, options))
    for table in made:
        table.show(Console(width=160))
    if options.write:
        head = HEAD.format(
            scale=float(SCALE),
            machine=machine(),
            rounds=options.rounds,
            iterations=options.iterations,
        )
        PAGE.write_text(head + "\n".join(table.markdown() for table in made))


if __name__ == "__main__":
    main()
