"""The software switch over loopback: packets per second, beside what its window and its processor allow.

    python benchmarks/switch_loopback.py [--workers 2] [--rounds 5] [--write]

A switch and its workers are processes of this host that sum float32 by SwitchML. `in` counts contributions that reach
the switch per second; `per core` are contributions per second of processor time of the switch alone, its system calls
included. The law of the protocol is min(rate of the switch, workers x window / round trip), with the round trip of a
window of one packet.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
WORKER = """
import sys, time
import numpy as np
from coppice.innetwork.serving import SwitchClient
address, worker, workers, values, window, packets, rounds, job = sys.argv[1], *map(int, sys.argv[2:])
options = {"values": values, "slots": window, "timeout_ms": 50, "job": job}
with SwitchClient(address, worker=worker, workers=workers, **options) as end:
    data = np.ones(packets * values, dtype=np.float32)
    end.all_reduce(data)
    for _ in range(rounds):
        data[:] = 1
        begin = time.perf_counter()
        end.all_reduce(data)
        print(time.perf_counter() - begin, flush=True)
    assert (data == workers).all()
    print(end.counters()["resent"], flush=True)
"""


def processor_seconds(process: int) -> float:
    """Time that a process has spent, in user mode and in the system."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(
    address: str, switch: int, workers: int, values: int, window: int, packets: int, rounds: int, job: int
) -> tuple[float, float]:
    """Contributions per second, and per second of processor time of the switch."""
    before = processor_seconds(switch)
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", WORKER, address),
                *map(str, (worker, workers, values, window, packets, rounds, job)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in range(workers)
    ]
    said = [process.communicate()[0].split() for process in started]
    spent = processor_seconds(switch) - before
    times = [max(float(each[number]) for each in said) for number in range(rounds)]
    # Packets of exponents go a window ahead of every tensor.
    contributions = workers * (packets + window)
    return contributions / statistics.median(times), contributions * (rounds + 1) / max(spent, 1e-2)


def table(workers: int, rounds: int) -> Table:
    """All sizes of packets and windows."""
    made = Table(
        title=f"{workers} workers over loopback",
        header=(
            "values",
            "window",
            "in (1/s)",
            "sums (1/s)",
            "values in (GB/s)",
            "per core (1/s)",
            "law (1/s)",
        ),
    )
    command = [sys.executable, "-m", "coppice", "switch", "serve", "--port", "0", "--slots", "1024"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as switch:
        assert switch.stdout is not None
        address = switch.stdout.readline().split()[2].rstrip(":")
        job = 0
        for values in (64, 256):
            single = 0.0
            for window in (1, 8, 64, 256):
                job += 1
                packets = 5_000 if window == 1 else 100_000
                rate, per_core = measured(address, switch.pid, workers, values, window, packets, rounds, job)
                single = single or rate
                cells = (
                    *(str(values), str(window), f"{rate:,.0f}", f"{rate / workers:,.0f}"),
                    *(
                        f"{4e-9 * values * rate:.2f}",
                        f"{per_core:,.0f}",
                        f"{min(per_core, window * single):,.0f}",
                    ),
                )
                made.rows.append(cells)
        switch.terminate()
    made.notes.append(
        f"Medians of {rounds} sums; {os.cpu_count()} cores for the switch and {workers} workers."
    )
    return made


def main() -> None:
    """Measure, print, and write into switch_loopback.md if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="rewrite the table of switch_loopback.md")
    options = parser.parse_args()
    made = table(options.workers, options.rounds)
    made.show(Console(width=200))
    if options.write:
        lines = [
            f"* system: {platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores",
            f"* load average when it ended: {os.getloadavg()[0]:.1f}",
            "",
        ]
        replace_generated(
            HERE / "switch_loopback.md", "switch_loopback.py", "\n".join([*lines, made.markdown()])
        )


if __name__ == "__main__":
    main()
