"""SwitchML through our software switch against all-reduces of hosts, on rate-limited links of a lab.

    python benchmarks/switch_lab.py --write          # the tables of switch_lab.md (Linux, root; some minutes)
    python benchmarks/switch_lab.py --workers 8 --rounds 1

All workers hang on one switch, by links of one rate. Every contender runs in every round, one after the other; a figure
is the median over the rounds of its own median of the slowest worker's time. "Law" is the time of the models:
SwitchML's window of slots with frames of the lab, and the bandwidth term of a ring, 2 (n - 1) / n of the tensor. The
link counts the frame without preamble: 14 bytes of Ethernet, 20 of IPv4, 8 of UDP, 28 of the envelope and 10 of
SwitchML beside values.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.collectives import Collective
from coppice.innetwork.systems.estimate import AggregationCase
from coppice.innetwork.systems.switchml import slot_run
from coppice.innetwork.systems.windows import ValueFrame
from coppice.run.bench.measuring import busy_share, core_times
from coppice.run.lab.launch import launch_ranks, standing_switches
from coppice.topology.presets import preset
from lab import bench_row, say, standing
from tables import Table, replace_generated

PAGE = Path(__file__).with_name("switch_lab.md")
MBIT = 50
VALUES, SLOTS = 1024, 32
OVERHEAD_BYTES = 14 + 20 + 8 + 28 + 10
TCP_SHARE = Fraction(8948, 9014)
"""Of the bytes that a link counts, those of the tensor: packets of 9,000 bytes with TCP's and Ethernet's heads."""
HOSTS = {
    "ring, our plan over gloo": ("torch", "ring"),
    "forest, our plan over gloo": ("torch", "forest"),
    "gloo": ("torch", "native"),
    "Open MPI": ("open-mpi", "native"),
    "MPICH": ("mpich", "native"),
}
Row = dict[str, Any]


def switched_row(lab: Any, output: Path, *, size: int, iterations: int, options: tuple[str, ...] = ()) -> Row:
    """What `coppice bench` says of SwitchML through the switches of the lab."""
    command = [sys.executable, "-m", "coppice", "bench", "all_reduce", "-b", str(size), "-e", str(size)]
    command += ["-n", str(iterations), "-w", "1", "-a", "switchml", "--engine", "torch"]
    command += ["--output", str(output), "--json", "--timeout", "120"]
    with standing_switches(lab, "switchml", slots=4 * SLOTS, options=options) as addresses:
        launch_ranks(
            lab,
            command,
            switches=addresses,
            environment={"COPPICE_SWITCH_SETTINGS": f"values={VALUES},slots={SLOTS},timeout_ms=400"},
            timeout_s=400,
            out=io.StringIO(),
            err=io.StringIO(),
        )
    row: Row = json.loads(output.read_text().splitlines()[0])
    return row


def round_trip_us(lab: Any, output: Path) -> float:
    """Least time of a sum of one packet with its announcement, half of it: what a packet takes there and back."""
    row = switched_row(lab, output, size=4, iterations=50)
    return float(row["fastest_us"]) / 2


def measured(
    workers: int, size: int, rounds: int, iterations: int
) -> tuple[dict[str, list[Row]], float, list[float]]:
    """Rows of every contender, the round trip, and the shares of the cores that were busy."""
    found: dict[str, list[Row]] = {"SwitchML": [], **{name: [] for name in HOSTS}}
    busy = []
    topology = preset("star", gpus=workers, gb_per_s=1)
    with (
        tempfile.TemporaryDirectory() as folder,
        standing("switchlab", topology, Fraction(MBIT, 8000)) as lab,
    ):
        output = Path(folder) / "rows"
        trip = round_trip_us(lab, output)
        for turn in range(rounds):
            for name, runs in found.items():
                say(f"{workers} workers, round {turn + 1}: {name}")
                before = core_times()
                if name == "SwitchML":
                    runs.append(switched_row(lab, output, size=size, iterations=iterations))
                    busy.append(busy_share(before, core_times()))
                else:
                    launcher, algorithm = HOSTS[name]
                    runs.append(
                        bench_row(
                            lab,
                            launcher,
                            Collective.ALL_REDUCE,
                            algorithm,
                            output,
                            size=size,
                            iterations=iterations,
                        )
                    )
    return found, trip, busy


def law_us(name: str, workers: int, size: int, trip: float) -> float:
    """What the model of a contender says, where it has one."""
    rate = Fraction(MBIT, 8000)
    if name == "SwitchML":
        frame = ValueFrame(values=VALUES, overhead_bytes=OVERHEAD_BYTES)
        wire = frame.wire_us(rate)
        case = AggregationCase(workers=workers, gb_per_s=rate, rtt_us=max(0.0, trip - 2 * wire), slots=SLOTS)
        return slot_run(case, size, frame, passes=1, ahead=True).time_us
    return float(Fraction(2 * (workers - 1), workers) * size / (rate * TCP_SHARE)) / 1000


def table(
    workers: int, size: int, found: Mapping[str, list[Row]], trip: float, busy: list[float]
) -> tuple[Table, float]:
    """One table, and SwitchML's time."""
    times = {name: statistics.median(float(row["time_us"]) for row in runs) for name, runs in found.items()}
    best = min(time for name, time in times.items() if name != "SwitchML")
    rows: list[tuple[str, ...]] = []
    for name, time in times.items():
        law = law_us(name, workers, size, trip) if name != "MPICH" and name != "Open MPI" else None
        wrong = sum(int(row["wrong"]) for row in found[name])
        cells = (
            f"{time / 1000:.0f}",
            f"{law / 1000:.0f}" if law else "",
            f"{100 * (time / law - 1):+.1f}%" if law else "",
        )
        rows.append((name, *cells, f"{best / time:.2f}", f"{wrong}"))
    theory = 2 * (workers - 1) / workers
    made = Table(
        title=f"{workers} workers, {size >> 20} MiB, {MBIT} Mbit/s",
        header=("", "ms", "law", "apart", "best of hosts over it", "wrong"),
        rows=rows,
        notes=[
            (
                f"Best of the hosts over SwitchML: {best / times['SwitchML']:.2f}; 2 (n - 1) / n is {theory:.2f}. "
                f"Round trip {trip:.0f} us; SwitchML's runs kept {100 * statistics.median(busy):.0f}% of the cores "
                "busy, starts included."
            )
        ],
    )
    return made, times["SwitchML"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="2,4,8", help="a list")
    parser.add_argument("--size", type=int, default=8 << 20, help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    tables, switched = [], {}
    for workers in (int(each) for each in given.workers.split(",")):
        found, trip, busy = measured(workers, given.size, given.rounds, given.iterations)
        made, switched[workers] = table(workers, given.size, found, trip, busy)
        print(made.text(), flush=True)
        tables.append(made)
    spread = max(switched.values()) / min(switched.values()) - 1
    last = f"SwitchML over {', '.join(map(str, switched))} workers: largest time {100 * spread:.1f}% above the least.\n"
    print(last)
    if given.write:
        replace_generated(PAGE, "switch_lab.py", "\n".join([*(made.markdown() for made in tables), last]))


if __name__ == "__main__":
    main()
