"""Speed and memory of the simulator, by kind of schedule and number of transfers.

    python benchmarks/simulator.py [--quick] [--only PATTERN] [--write]

Every case runs in a process of its own. `messages` is the time from a schedule (or forest) to columns of messages,
routes included; the other times are those of the simulation itself: links that serve in turn, the same with one engine
each way per GPU, and links shared fairly. All are wall times per transfer on one core. Peaks are those of the process
after each stage: with the schedule alone, and in the end.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from coppice.bounds import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.catalogue import find, make
from coppice.planners.algorithms.parts.moves import Moves, pairs, whole
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.forest import Forest
from coppice.schedule.messages import messages_of
from coppice.schedule.schedule import Schedule
from coppice.simulation import Model, Sharing
from coppice.simulation.engine import run
from coppice.topology.presets import preset
from measure import peak_gib
from tables import Table, number, replace_generated

HERE = Path(__file__).resolve().parent
SIZE_BYTES = 2**30
GOAL_US = 1.0
"""Most microseconds per transfer of a simulation in turn."""

Made = tuple[Schedule | Forest, int]
TURNS = Model()
ENGINES = Model(send_engines=1, receive_engines=1)
FAIR = Model(sharing=Sharing.FAIR)


def ring(transfers: int) -> Made:
    """All-reduce round a ring of P GPUs at a switch: 2 P (P - 1) transfers."""
    gpus = round((transfers / 2) ** 0.5) + 1
    case = AlgorithmCase(topology=preset("star", gpus=gpus), collective=Collective.ALL_REDUCE)
    return make(find("ring", Collective.ALL_REDUCE), case), 1


def binomial(transfers: int) -> Made:
    """Broadcast down a binomial tree of 1,024 GPUs at a switch, in pieces."""
    case = AlgorithmCase(topology=preset("star", gpus=1024), collective=Collective.BROADCAST, root=0)
    moves = Moves(case, whole(case))
    for step in range(10):
        senders = np.arange(2**step)
        moves.add(step, senders, senders + 2**step, 0)
    return moves.schedule(), max(1, transfers // 1023)


def forest(transfers: int) -> Made:
    """The all-gather forest of four DGX A100, in pieces."""
    problem = Problem(topology=preset("dgx-a100", boxes=4), collective=Collective.ALL_GATHER)
    planned = plan_forest(problem)
    return planned, max(1, transfers // (planned.num_edges * planned.num_images))


def all_to_all(transfers: int) -> Made:
    """Pairwise all-to-all of P GPUs at a switch: P (P - 1) transfers, each with a route of its own."""
    gpus = round(transfers**0.5) + 1
    case = AlgorithmCase(topology=preset("star", gpus=gpus), collective=Collective.ALL_TO_ALL)
    moves, at = Moves(case, pairs(case)), np.arange(gpus)
    for step in range(1, gpus):
        moves.add(step - 1, at, (at + step) % gpus, at * gpus + (at + step) % gpus)
    return moves.schedule(), 1


def posted_at_once(transfers: int) -> Made:
    """The same with all messages posted in one step, so that all wait for links and engines."""
    schedule, pieces = all_to_all(transfers)
    assert isinstance(schedule, Schedule)
    return replace(schedule, step=np.zeros_like(schedule.step)), pieces


KINDS: dict[str, tuple[Callable[[int], Made], int]] = {
    "ring all-reduce": (ring, 10**7),
    "binomial tree, pieces": (binomial, 10**7),
    "forest, pieces": (forest, 10**7),
    "all-to-all, pairwise": (all_to_all, 10**6),
    "all-to-all, at once": (posted_at_once, 10**5),
}
"""What is measured, and up to how many transfers."""


def measure(kind: str, transfers: int) -> dict[str, Any]:
    """Figures of one case."""
    body, pieces = KINDS[kind][0](transfers)
    begin = time.perf_counter()
    messages = messages_of(body, SIZE_BYTES, pieces=pieces)
    figures: dict[str, Any] = {
        "messages_s": time.perf_counter() - begin,
        "transfers": int(messages.num_rows.sum()),
    }
    figures["schedule_gib"] = peak_gib()
    for name, model in (("turns", TURNS), ("engines", ENGINES), ("fair", FAIR)):
        begin = time.perf_counter()
        run(messages, model=model, collective=body.collective, size_bytes=SIZE_BYTES)
        figures[f"{name}_s"] = time.perf_counter() - begin
    return figures | {"peak_gib": peak_gib()}


def row(kind: str, found: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    each = 1e6 / found["transfers"]
    total = (found["messages_s"] + found["turns_s"]) * each
    return (
        kind,
        f"{found['transfers']:,}",
        *(number(found[name] * each) for name in ("messages_s", "turns_s", "engines_s", "fair_s")),
        number(1 / total),
        f"{found['schedule_gib']:.2f}",
        f"{found['peak_gib']:.2f}",
        "ok" if found["turns_s"] * each <= GOAL_US else "MISS",
    )


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="at most 10^5 transfers")
    parser.add_argument("--only", default="*", help="kinds that match this pattern")
    parser.add_argument("--write", action="store_true", help="rewrite the table in simulator.md")
    parser.add_argument("--measure", nargs=2, metavar=("KIND", "TRANSFERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]))))
        return
    header = (
        "schedule",
        "transfers",
        "messages",
        "in turn",
        "engines",
        "fair",
        "M/s",
        "GiB before",
        "GiB",
        "goal",
    )
    table = Table(title="Microseconds per transfer", header=header)
    for kind, (_, most) in KINDS.items():
        for power in range(4, 6 if options.quick else 8):
            if not fnmatch.fnmatch(kind, options.only) or 10**power > most:
                continue
            command = [sys.executable, __file__, "--measure", kind, str(10**power)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            table.rows.append(row(kind, json.loads(out)))
    table.notes.append(
        "`M/s`: million transfers per second from schedule to timeline, in turn, every hop kept. `GiB before`: peak "
        "with schedule and messages, before any simulation. Goal: at most 1 us per transfer in turn."
    )
    table.show(Console())
    if options.write:
        machine = (
            f"`python benchmarks/simulator.py` on {platform.system()} {platform.machine()}, one core.\n\n"
        )
        replace_generated(HERE / "simulator.md", "simulator.py", machine + table.markdown())


if __name__ == "__main__":
    main()
