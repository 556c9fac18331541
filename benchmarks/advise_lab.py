"""Advice for Open MPI and MPICH in a lab: what `coppice advise --write` says it brings beside what it brings in use.

    sudo python benchmarks/advise_lab.py --write            # the table of benchmarks/advise_lab.md (Linux, root)
    sudo python benchmarks/advise_lab.py --only mpich-reduce --rounds 5

Each part is a network of this machine (`coppice lab`), a library and calls, which were chosen before anything was
measured. `coppice advise` gets the network and, in parts that are swept, what `coppice tune sweep` measured there; then
every call is measured again with the files that it wrote in use, beside the library by itself, pair by pair. Exit code
1 if a call is slower than by default beyond noise, or a gain is not within 20% of what was said.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.collectives import Collective
from coppice.run.lab.namespaces import BURST_BYTES
from coppice.text import short_size
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import scale as scaled
from coppice.topology.readers.document import write_topology
from coppice.tuning.records import read_runs
from coppice.tuning.statistics import ChoiceVerdict, compare
from coppice.tuning.sweep import sweep_mpi
from coppice.tuning.worker import Spec
from lab import SLOW_BURST_BYTES, first_in_line, machine, mpi_launcher, mpi_variables, say, standing
from tables import rows_by_network
from tuning import two_boxes

TABLE = Path(__file__).with_name("advise_lab.md")
KIB = 1 << 10
WITHIN, LOSS, CHANCE = 0.2, 0.03, 0.05
SWEPT, SIMULATED = 21, 17
"""Rounds of parts."""


def line_of_boxes() -> Topology:
    """Three boxes of two ranks in a line: what the outer ones exchange crosses both cables."""
    # Every rank is a host, as it is for the libraries in its namespace.
    nodes = [Node(id=f"g{rank}", host=f"host{rank}") for rank in range(6)]
    nodes += [Node(id=f"s{box}", kind=NodeKind.SWITCH) for box in range(3)]
    ends = [(f"g{rank}", f"s{rank // 2}", 80) for rank in range(6)] + [("s0", "s1", 40), ("s1", "s2", 40)]
    return Topology.of(
        "three boxes of two in a line",
        nodes,
        [Link(src=a, dst=b, gb_per_s=Fraction(rate)) for a, b, rate in ends],
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """Calls of a library on a network, and whether what is advised on was measured there."""

    topology: Topology
    library: str
    collectives: tuple[Collective, ...]
    sizes: tuple[int, ...]
    swept: bool
    scale: Fraction = Fraction(1, 1000)  # Ranks of 640 Mbit/s

    @property
    def burst_bytes(self) -> int:
        """What its links let through at once after a rest: a millisecond or so."""
        return BURST_BYTES if self.scale >= Fraction(1, 1000) else SLOW_BURST_BYTES


_FOUR = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST, Collective.REDUCE)


def parts() -> dict[str, Part]:
    """The parts of the table: four of 3 calls, two of 2 calls, one of 4 calls."""
    boxes = two_boxes()
    found = {
        f"open-mpi-{each.dialects.mpi.removeprefix('MPI_').lower()}": Part(
            topology=boxes,
            library="open-mpi",
            collectives=(each,),
            sizes=(16 * KIB, 64 * KIB, 256 * KIB),
            swept=True,
        )
        for each in _FOUR
    }
    for each in (Collective.ALL_REDUCE, Collective.REDUCE):
        found[f"mpich-{each.dialects.mpi.removeprefix('MPI_').lower()}"] = Part(
            topology=boxes, library="mpich", collectives=(each,), sizes=(4 * KIB, 64 * KIB), swept=True
        )
    found["open-mpi-simulated"] = Part(
        topology=line_of_boxes(),
        library="open-mpi",
        collectives=_FOUR,
        sizes=(4096 * KIB,),
        swept=False,
        scale=Fraction(1, 4000),  # Pipelines use all links at once: two cores carry no more
    )
    return found


def advised(words: Sequence[str]) -> dict[str, Any]:
    """What `coppice advise ... --json` prints."""
    command = [sys.executable, "-m", "coppice", "advise", *words, "--json"]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def in_use(library: str, folder: Path) -> dict[str, str]:
    """Variables that put the files of a folder into use; those of Open MPI leave han to the default beside them."""
    if library == "mpich":
        lines = [line for file in folder.glob("*.env") for line in file.read_text().splitlines()]
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    return {
        name: value
        for file in folder.glob("rules*")
        for name, value in (
            ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
            ("OMPI_MCA_coll_tuned_dynamic_rules_filename", str(file)),
        )
    }


def measured(part: Part, lab: str, output: Path, rounds: int, extra: Mapping[str, str] | None) -> None:
    """Every choice beside the default, or the default beside what variables put into use."""
    spec = Spec(
        library=part.library,
        collectives=list(part.collectives),
        sizes=list(part.sizes),
        rounds=rounds,
        output=str(output),
        segments=[64 * KIB],
        deployed=extra is not None,
    )
    environment = mpi_variables(part.library) | dict(extra or {})
    with first_in_line():
        sweep_mpi(spec, lab=lab, launcher=mpi_launcher(part.library), environment=environment)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call: what was said, and what was measured."""

    row: Mapping[str, Any]
    verdict: ChoiceVerdict
    default_us: Sequence[float]

    @property
    def spread(self) -> float:
        """How far the quartiles of the default's times are apart, which are one and the same call."""
        low, _, high = statistics.quantiles(self.default_us, n=4)
        return high / low - 1

    @property
    def said(self) -> float:
        """Gain that was said."""
        before, after = self.row["picked_seconds"], self.row["best_seconds"]
        return (
            float(before / after) if before else 1.0
        )  # where no schedule of the pick is known, nothing is said

    @property
    def slower(self) -> bool:
        """It is slower than by default beyond noise."""
        return self.verdict.p_slower <= CHANCE and self.verdict.gain < 1 - LOSS

    @property
    def right(self) -> bool:
        """The gain is within 20% of what was said."""
        return abs(self.verdict.gain / self.said - 1) <= WITHIN


def calls(part: Part, rounds: int, lab: str) -> Iterator[Call]:
    """All calls of a part."""
    with (
        tempfile.TemporaryDirectory() as name,
        standing(lab, part.topology, part.scale, burst_bytes=part.burst_bytes, acknowledgements_first=True),
    ):
        folder = Path(name)
        write_topology(scaled(part.topology, part.scale), folder / "network.json")
        words = [str(folder / "network.json"), "--library", part.library, "--write", str(folder / "advice")]
        if part.swept:
            say("sweep")
            measured(part, lab, folder / "runs.jsonl", rounds, None)
            words += ["--log", str(folder / "runs.jsonl")]
        else:
            words += ["--sizes", ",".join(map(str, part.sizes)), "--collective", ",".join(part.collectives)]
        advice = advised(words)
        say("in use")
        measured(part, lab, folder / "again.jsonl", rounds, in_use(part.library, folder / "advice"))
        again = {(run.collective, run.size_bytes): run for run in read_runs([folder / "again.jsonl"])}
    for (collective, size), run in again.items():
        (row,) = [
            each
            for each in advice["rows"]
            # MPI counts elements: what is asked for is met to a block of each rank.
            if each["collective"] == collective and abs(each["size_bytes"] - size) < 64
        ]
        verdict = compare(run.default_us, run.time_us, paired=run.paired)
        yield Call(row=row, verdict=verdict, default_us=run.default_us)


def lines(name: str, part: Part, rounds: int) -> Iterator[tuple[str, Call]]:
    """The rows of a part."""
    for call in list(calls(part, rounds, f"advise{os.getpid() % 1000}")):
        row, verdict = call.row, call.verdict
        cells = [
            f"{name}, {part.topology.name}",
            f"{row['collective']} {short_size(row['size_bytes'])}",
            f"{verdict.default_us / 1e3:.3g}",
            row["best"] if row["best"] != row["picked"] else "nothing",
            row["model"],
            f"{call.said:.2f}",
            f"{verdict.gain:.2f}{' **slower**' if call.slower else ''}",
            f"{verdict.low:.2f} .. {verdict.high:.2f}",
            f"{100 * (verdict.gain / call.said - 1):+.0f}%{'' if call.right else ' MISS'}",
            f"{100 * call.spread:.0f}%",
        ]
        yield "| " + " | ".join(cells) + " |\n", call


HEAD = """# Advice in use

What `coppice advise --write` says it brings to Open MPI and MPICH, and what it brings with its files in use, in a lab
of network namespaces (`coppice lab`): two boxes of three ranks on a cable of half the rate of a rank, and three boxes
of two in a line, 640 Mbit/s a rank (160 where all is simulated); acknowledgements wait for no data. Regenerate with
`sudo python benchmarks/advise_lab.py --write` (Linux, root). {machine}

"Said": gain of the row of `coppice advise`, 1 where it says that nothing is to be changed. "In use": the default's time
over the time with the files, {swept} pairs one right after the other ({simulated} where all is simulated), the median;
then its 95% interval, and how far it is from what was said. "From": what `advise` went by, a sweep of {swept} rounds
before, or simulation alone. "Spread": how far the quartiles of the default's times are apart, which are those of one
and the same call. Ranks get the two cores before all other programs of the machine: they poll and yield, and where they
gave way to others, even to idle ones, calls of few bytes differed from themselves by more than what is measured here.

| part | call | default, ms | advice | from | said | in use | interval | off | spread |
|---|---|---|---|---|---|---|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help=f"default: {SWEPT}, or {SIMULATED} where all is simulated")
    parser.add_argument(
        "--only", action="append", choices=tuple(parts()), help="name of a part; may be repeated"
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write {TABLE.name}; parts left out keep their rows"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the lab is taken down then, too
    known = parts()
    head = HEAD.format(
        swept=options.rounds or SWEPT, simulated=options.rounds or SIMULATED, machine=f"{machine()}."
    )
    found = rows_by_network(TABLE) if options.write and options.only else {}
    failed = 0
    for name in options.only or known:
        part = known[name]
        made = list(lines(name, part, options.rounds or (SWEPT if part.swept else SIMULATED)))
        found[name] = "".join(line for line, _ in made)
        failed += sum(call.slower or not call.right for _, call in made)
        if options.write:  # after every part: what was measured is not lost
            TABLE.write_text(head + "".join(found.get(each, "") for each in known))
    print(head + "".join(found.get(each, "") for each in known))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
