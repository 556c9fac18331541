"""Training steps of a small GPT under DDP in the lab: the backend "coppice" against gloo, alternating.

    python benchmarks/training_step.py [--rounds 3] [--steps 12] [--write]         (Linux, root)

Two boxes of four ranks, ten to one between inside and outside, as in benchmarks/lab.py.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
from fractions import Fraction
from pathlib import Path

from coppice.run.bench.measuring import busy_share, core_times
from coppice.run.lab.launch import launch_ranks
from lab import say, standing, two_boxes

HERE = Path(__file__).resolve().parent
TABLE = HERE / "training_step.md"
SCALES = (Fraction(1, 10_000), Fraction(1, 2_000), Fraction(1, 1_000))


def measure(rounds: int, steps: int) -> list[str]:
    """Rows of the table."""
    rows: list[str] = []
    for scale in SCALES:
        times: dict[str, list[float]] = {"gloo": [], "coppice": []}
        losses: dict[str, list[float]] = {}
        busy: dict[str, list[float]] = {"gloo": [], "coppice": []}
        parameters = 0
        with standing("benchstep", two_boxes(), scale) as lab:
            for number in range(rounds):
                for backend in times:
                    say(f"scale {float(scale):g}, round {number + 1}: {backend}")
                    out, before = io.StringIO(), core_times()
                    command = [sys.executable, str(HERE / "training_step_rank.py"), backend, str(steps)]
                    launch_ranks(lab, command, timeout_s=600, out=out, err=io.StringIO())
                    busy[backend].append(busy_share(before, core_times()))
                    line = next(each for each in out.getvalue().splitlines() if each.startswith("{"))
                    found = json.loads(line)
                    times[backend].append(found["step_ms"])
                    losses[backend] = found["losses"]
                    parameters = found["parameters"]
        ours, theirs = (statistics.median(times[backend]) for backend in ("coppice", "gloo"))
        apart = max(abs(a - b) for a, b in zip(losses["coppice"], losses["gloo"], strict=True))
        shares = [f"{100 * statistics.median(busy[backend]):.0f}%" for backend in ("coppice", "gloo")]
        cells = [
            f"{float(2_000_000 * scale):g} : {float(200_000 * scale):g}",
            f"{parameters / 1e6:.2f} M",
            *(f"{ours:.0f}", f"{theirs:.0f}", f"{theirs / ours:.2f}", *shares, f"{apart:.1e}"),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


HEAD = """# Training steps on real sockets

Medians of {rounds} alternating runs of {steps} steps, a small GPT under DDP, 8 ranks in two boxes of the lab, {cores}
cores. Regenerate with `python benchmarks/training_step.py --write` (Linux, root). Where the cores are busy all the
time, they are what is measured.

| Mbit/s in : out | parameters | coppice, ms | gloo, ms | gloo / coppice | cores busy: coppice | gloo | losses apart |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    options = parser.parse_args()
    rows = measure(options.rounds, options.steps)
    text = (
        HEAD.format(rounds=options.rounds, steps=options.steps, cores=os.cpu_count()) + "\n".join(rows) + "\n"
    )
    print(text)
    if options.write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
