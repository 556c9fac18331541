"""Diagnosis of slow parts in the lab: eight ranks on rate-limited links, one slow part or slow process at a time.

    python benchmarks/diagnosis_lab.py                       # 20 faults, 10 slow ranks, 20 healthy runs (Linux, root)
    python benchmarks/diagnosis_lab.py --cases 0:12          # some of the 50 runs
    python benchmarks/diagnosis_lab.py --engine mpi --cases 0:10
    python benchmarks/diagnosis_lab.py --write               # rewrites the table of diagnosis.md from the runs so far

A fault is a link in one direction, a NIC, a GPU, a box or the switch of a box that keeps 30% to 80% of its rate: the
limits of its links are changed while the ranks wait. A slow rank is stopped part of the time (SIGSTOP), so that it runs
30% to 80% of it, in turns of a tenth of a second. Rates are a ten-thousandth of the true ones, and so is what sockets
hold (32 KiB), lest they hide that a process stands still. Right is the part itself, or one that no probe tells apart
from it. Results are kept in the folder for temporary files, so that a long run can be made in portions.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from coppice.diagnosis.design import ProbeDesign, design_probes
from coppice.diagnosis.inference import infer
from coppice.diagnosis.probes import GPU, HOST, LINK, NIC, SWITCH
from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_mpi, launch_ranks
from coppice.run.lab.namespaces import Lab, build, remove, throttle
from coppice.topology.operations import scale as scaled
from lab import SLOW_BURST_BYTES, mpi_launcher, mpi_variables, say, two_boxes
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
ENGINES = ("torch", "mpi")
NAME = "diagnosis"
SCALE = Fraction(1, 10_000)
FAULTS, RANKS, HEALTHY = 20, 10, 20
PERIOD_S = 0.1
"""A slow rank runs and stands still once in so long."""

BUFFERS = ("net.ipv4.tcp_rmem=4096 32768 32768", "net.ipv4.tcp_wmem=4096 16384 32768")
"""What sockets hold."""


def kept_in(engine: str) -> Path:
    """Where the runs of an engine are kept."""
    return Path(tempfile.gettempdir()) / f"coppice-diagnosis-lab-{engine}.json"


def probes() -> ProbeDesign:
    """What the ranks measure: at the rates of the lab."""
    return design_probes(scaled(two_boxes(), SCALE))


def cases(design: ProbeDesign) -> list[tuple[str, str, float]]:
    """(kind, part, share) of all runs, in an order of their own: what comes before a run should not matter."""
    names, kinds, unseen = design.parts.names, design.parts.kinds, set(design.unseen)
    choose = np.random.default_rng(2026)
    found: list[tuple[str, str, float]] = []
    for number_ in range(FAULTS):
        kind = (LINK, NIC, GPU, HOST, SWITCH)[number_ % 5]
        some = [place for place in range(len(names)) if kinds[place] == kind and place not in unseen]
        found.append(("fault", names[int(choose.choice(some))], float(choose.uniform(0.3, 0.8))))
    gpus = [name for name, kind in zip(names, kinds, strict=True) if kind == GPU]
    found += [("rank", str(choose.choice(gpus)), float(choose.uniform(0.3, 0.8))) for _ in range(RANKS)]
    found += [("healthy", "", 1.0)] * HEALTHY
    return [found[place] for place in choose.permutation(len(found)).tolist()]


@contextlib.contextmanager
def set_up(lab: Lab, design: ProbeDesign, case: tuple[str, str, float], folder: Path) -> Iterator[None]:
    """The lab with one fault."""
    kind, name, share = case
    shares: dict[tuple[int, int], float] = {}
    topology = design.topology
    if kind == "fault":
        part = design.parts.names.index(name)
        for link in design.parts.links[design.parts.first[part] : design.parts.first[part + 1]].tolist():
            shares[int(topology.src[link]), int(topology.dst[link])] = share
    throttle(lab, shares, burst_bytes=SLOW_BURST_BYTES)
    if kind != "rank":
        yield
        return
    rank = int(topology.rank[topology.node_index[name]])
    process, over = int((folder / f"rank{rank}.pid").read_text()), threading.Event()

    def slow() -> None:
        while not over.is_set():
            os.kill(process, signal.SIGSTOP)
            time.sleep((1 - share) * PERIOD_S)
            os.kill(process, signal.SIGCONT)
            over.wait(share * PERIOD_S)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(chosen: slice, engine: str) -> dict[str, Any]:
    """Figures of some of the runs, by their numbers."""
    topology, design = two_boxes(), probes()
    planned = list(enumerate(cases(design)))[chosen]
    lab = build(NAME, draw(topology, SCALE), burst_bytes=SLOW_BURST_BYTES, acknowledgements_first=True)
    for node in lab.blueprint.rank_nodes:
        words = ["ip", "netns", "exec", lab.namespace(node), "sysctl", "-q", "-w", *BUFFERS]
        subprocess.run(words, check=True)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            *(sys.executable, str(HERE / "diagnosis_lab_rank.py"), name, str(len(planned))),
        ]

        def launch() -> None:
            if engine == "mpi":
                launch_mpi(
                    lab,
                    "open-mpi",
                    command,
                    launcher=mpi_launcher("open-mpi"),
                    environment=mpi_variables("open-mpi"),
                    timeout_s=900,
                    quiet=True,
                )
            else:
                launch_ranks(lab, command, timeout_s=900, out=io.StringIO(), err=io.StringIO())

        thread = threading.Thread(target=launch, daemon=True)
        thread.start()
        try:
            while len(list(folder.glob("*.pid"))) < topology.num_ranks and thread.is_alive():
                time.sleep(0.05)
            for place, (number_, case) in enumerate(planned):
                begin = time.monotonic()
                with set_up(lab, design, case, folder):
                    (folder / f"case{place}.begin").touch()
                    while not (folder / f"case{place}.json").exists():
                        if not thread.is_alive():
                            raise SystemExit(f"the ranks ended in run {number_}")
                        time.sleep(0.02)
                seconds = time.monotonic() - begin
                measured = json.loads((folder / f"case{place}.json").read_bytes())
                kept = {"kind": case[0], "part": case[1], "share": case[2], "seconds": seconds}
                found[str(number_)] = kept | {
                    "rates": [each["repeated_gb_per_s"] for each in measured["probes"]]
                }
                say(str(judged(number_, found[str(number_)], design)))
            thread.join(30)
        finally:
            remove(NAME)
    return found


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What was inferred from the rates of a run."""

    number: int
    kind: str
    part: str
    share: float
    seconds: float
    named: tuple[str, ...]
    confidence: float
    right: bool

    def __str__(self) -> str:
        return (
            f"{self.number:2d} {self.kind:8}{self.part or '-':28}{self.share:.2f}  "
            f"{'right' if self.right else 'WRONG'}  {' and '.join(self.named) or 'nothing'} "
            f"{100 * self.confidence:.1f}%  {self.seconds:.1f} s"
        )


def judged(number_: int, run_: dict[str, Any], design: ProbeDesign) -> Judged:
    """Infer what is slow from the rates of a run, and compare it with what was."""
    rates, start = np.median(np.array(run_["rates"]), axis=1), 0
    measured = []
    for each in design.rounds:
        measured.append(rates[start : start + len(each.src)])
        start += len(each.src)
    found = infer(design, measured)
    named = tuple(each.name for each in found.culprits)
    names = design.parts.names
    good = {run_["part"]}.union(
        *(
            {names[part] for part in each}
            for each in design.undistinguished
            if run_["part"] in {names[p] for p in each}
        )
    )
    right = not named if run_["kind"] == "healthy" else len(named) == 1 and named[0] in good
    return Judged(
        number=number_,
        kind=run_["kind"],
        part=run_["part"],
        share=run_["share"],
        seconds=run_["seconds"],
        named=named,
        confidence=found.confidence,
        right=right,
    )


def table(found: dict[str, Any], design: ProbeDesign, engine: str) -> Table:
    """What was right, by kind of runs."""
    every = [
        judged(int(number_), each, design) for number_, each in sorted(found.items(), key=lambda e: int(e[0]))
    ]
    for each in every:
        say(str(each))
    rows: list[tuple[str, ...]] = []
    for kind, words in (
        ("fault", "one slow part"),
        ("rank", "one slow process"),
        ("healthy", "nothing slow"),
    ):
        some = [each for each in every if each.kind == kind]
        if not some:
            continue
        sure = sum(not each.right and each.confidence > 0.9 for each in some)
        alarms = sum(bool(each.named) for each in some) if kind == "healthy" else "-"
        rows.append(
            (
                words,
                f"{sum(each.right for each in some)} of {len(some)}",
                str(sure),
                str(alarms),
                f"{number(float(np.median([each.seconds for each in some])))} s",
            )
        )
    return Table(
        title=f"Eight ranks in the lab over {engine}: {len(design.rounds)} rounds of probes (none has fewer than "
        f"{design.fewest}), {design.flows} flows",
        header=("runs", "right", "wrong above 90%", "alarms", "to measure"),
        rows=rows,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=":", help="runs, as first:last")
    parser.add_argument("--engine", choices=ENGINES, default="torch")
    parser.add_argument("--write", action="store_true", help="rewrite the table of diagnosis.md")
    asked = parser.parse_args()
    first, _, last = asked.cases.partition(":")
    files = {engine: kept_in(engine) for engine in ENGINES}
    kept = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    if not asked.write:
        chosen = slice(int(first or 0), int(last) if last else None)
        kept = {asked.engine: kept.get(asked.engine, {}) | run(chosen, asked.engine)}
        files[asked.engine].write_text(json.dumps(kept[asked.engine]))
    found = [table(each, probes(), engine) for engine, each in kept.items()]
    print("\n".join(each.text() for each in found))
    if asked.write:
        replace_generated(
            HERE / "diagnosis.md", "diagnosis_lab.py", "\n".join(each.markdown() for each in found)
        )


if __name__ == "__main__":
    main()
