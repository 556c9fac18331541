"""All-to-alls of unequal blocks on real sockets: planned at run time, directly, offline, and by the libraries.

    python benchmarks/skewed_lab.py --write            # the table of benchmarks/skewed_lab.md (Linux, root; minutes)
    python benchmarks/skewed_lab.py --rounds 1 --only zipf:1.2 --engine torch --write

Two boxes of four ranks stand in the lab, with slow links between them. `coppice bench all_to_all --skew` runs all
contenders of an engine round by round in turn. "Predicted" is what the plan at run time says of itself: elements of the
busiest link over its rate.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.bounds.all_to_all.rates import rates_of
from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.bounds.skews import skewed_counts, skewed_demands
from coppice.collectives import Collective
from coppice.run.alltoallv.exchange import BlockExchange
from coppice.run.engines.datatype import DataType
from coppice.run.engines.numpy import numpy_engines
from coppice.run.lab.launch import launch_mpi, launch_ranks
from coppice.run.lab.namespaces import Lab
from coppice.topology.model import Topology
from coppice.topology.operations import scale as scaled
from lab import machine, mpi_launcher, mpi_variables, say, standing, two_boxes
from tables import rows_by_network

TABLE = Path(__file__).with_name("skewed_lab.md")
ENGINES = ("torch", "open-mpi", "mpich")
SKEWS = ("zipf:1.2", "hot:8", "zipf:0")
"""The last one is even: nothing is to be gained."""
ALGORITHMS = ("direct", "two-stage", "optimal", "native")
SCALE = Fraction(5, 10_000)
"""NICs of 100 Mbit/s, links inside boxes of 1,000."""
HEADERS = 1.007
"""Bytes on a wire over those of the payload, at frames of 9,000 bytes."""


def predicted_ms(network: Topology, skew: str, size: int) -> dict[str, float]:
    """What links have to carry, in ms: of exchanges planned at run time, directly, and of the exact optimum."""
    counts = skewed_counts(skewed_demands(skew, network.num_ranks), size // 4)
    engine = numpy_engines(network.num_ranks)[0]
    found = BlockExchange(engine, rates_of(network)).estimate(counts, DataType.FLOAT32)
    demands: Any = counts
    best = bound(Problem(topology=network, collective=Collective.ALL_TO_ALL, demands=demands))
    return {
        "direct": HEADERS * found.seconds_directly * 1e3,
        "two-stage": HEADERS * found.seconds * 1e3,
        "optimal": HEADERS * size / float(best.algbw_gb_per_s) / 1e6,
    }


def measured(
    lab: Lab, engine: str, skew: str, output: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Rows of `coppice bench all_to_all --skew`; all ranks of the lab are processes."""
    command = [sys.executable, "-m", "coppice", "bench", "all_to_all", "--skew", skew]
    command += ["-b", str(options.size), "-e", str(options.size), "-n", str(options.rounds), "-w", "1"]
    command += ["-a", ",".join(ALGORITHMS), "--engine", "torch" if engine == "torch" else "mpi"]
    command += ["--output", str(output), "--json", "--timeout", "60"]
    with contextlib.redirect_stderr(io.StringIO()):
        if engine == "torch":
            launch_ranks(lab, command, timeout_s=200, out=io.StringIO(), err=io.StringIO())
        else:
            launch_mpi(
                lab,
                engine,
                command,
                launcher=mpi_launcher(engine),
                environment=mpi_variables(engine),
                timeout_s=200,
                quiet=True,
            )
    found = [json.loads(line) for line in output.read_text().splitlines()]
    if any(row["wrong"] or row["refusal"] for row in found):
        raise SystemExit(f"wrong results: {found}")
    return found


def rows(skew: str, options: argparse.Namespace) -> Iterator[str]:
    """The rows of one skew."""
    topology = two_boxes()
    said = predicted_ms(scaled(topology, SCALE), skew, options.size)
    for engine in options.engine or ENGINES:
        with (
            standing("skewed", topology, SCALE) as lab,
            tempfile.TemporaryDirectory() as directory,
        ):
            say(f"{skew}: {engine}")
            found = measured(lab, engine, skew, Path(directory) / "rows", options)
        times = {row["algorithm"]: row["time_us"] / 1e3 for row in found}
        for row in found:
            name = row["algorithm"]
            time = times[name]
            cells = [
                skew,
                engine,
                name,
                f"{said[name]:.0f}" if name in said else "",
                f"{time:.0f}",
                f"{100 * (time / said[name] - 1):+.1f}%" if name in said else "",
                f"{said['direct'] / said[name]:.2f}" if name in said else "",
                f"{times['direct'] / time:.2f}",
                f"{100 * row['cores_busy']:.0f}%",
            ]
            yield "| " + " | ".join(cells) + " |"


HEAD = """# All-to-alls of unequal blocks on real sockets

{size} bytes (M) on two boxes of four ranks in the lab (`coppice lab`: network namespaces joined by rate-limited links,
TCP): 1,000 Mbit/s inside a box, 100 Mbit/s from each rank to the other box. Regenerate with
`python benchmarks/skewed_lab.py --rounds {rounds} --write` (Linux, root). Medians of {rounds} rounds, all contenders of
an engine in every round. {machine}

"direct" and "two-stage" are planned at run time, with the exchange of counts in the time; "optimal" is planned before
for just these demands; "native" is gloo's or MPI's own. "Predicted": elements of the busiest link over its rate, with
0.7% for headers; "off": how far the measured time is from that. "Gain": time of direct exchange over this one's, as
predicted and as measured. zipf:0 is even: there is nothing to gain. MPI libraries poll while they wait, so that cores
are always busy. The exchange of counts is most of what exchanges planned at run time take longer than "optimal" ones:
eight processes on these cores wake for it, one after the other.

| skew | engine | who | predicted, ms | measured, ms | off | predicted gain | measured gain | cores busy |
|---|---|---|---|---|---|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=1 << 22)
    parser.add_argument("--only", action="append", help="a skew; may be repeated")
    parser.add_argument("--engine", action="append", help="torch, open-mpi or mpich; may be repeated")
    parser.add_argument(
        "--write", action="store_true", help=f"write {TABLE.name}; skews left out keep theirs"
    )
    options = parser.parse_args(arguments)
    head = HEAD.format(size=options.size, rounds=options.rounds, machine=f"{machine()}.")
    found = rows_by_network(TABLE) if options.write and options.only else {}
    for skew in options.only or SKEWS:
        new = {row.split(" | ")[1]: "" for row in found.get(skew, "").splitlines()}
        for row in found.get(skew, "").splitlines():
            new[row.split(" | ")[1]] += f"{row}\n"
        made = list(rows(skew, options))
        new.update(dict.fromkeys((row.split(" | ")[1] for row in made), ""))
        for row in made:
            new[row.split(" | ")[1]] += f"{row}\n"
        found[skew] = "".join(new[engine] for engine in ENGINES if engine in new)
        if options.write:  # after every skew: what was measured is not lost
            TABLE.write_text(head + "".join(found.get(each, "") for each in SKEWS))
    print(head + "".join(found.get(each, "") for each in SKEWS))


if __name__ == "__main__":
    main()
