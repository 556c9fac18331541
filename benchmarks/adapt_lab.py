"""Adapting in the lab: a link becomes slow in the middle of training under DDP, or rates are only restless.

    python benchmarks/adapt_lab.py --write      # the tables of benchmarks/adapt_lab.md (Linux, root; some minutes)

Eight ranks in two boxes train with the backend "coppice", on links that `coppice lab` limits. Before one step a link
loses most of its rate; with COPPICE_ADAPT=1 the group finds that out by itself. Beside it stand a run whose topology
has said so from the start, and one that keeps its plan.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from coppice.run.adapting.adapting import ADAPT_VARIABLE, slowed
from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_ranks
from coppice.run.lab.namespaces import Lab, build, remove, throttle
from coppice.topology.operations import scale as scaled
from coppice.topology.readers.document import write_topology
from lab import SLOW_BURST_BYTES, machine, say, two_boxes
from tables import Table, number

HERE = Path(__file__).resolve().parent
PAGE = HERE / "adapt_lab.md"
NAME = "adapt"
SCALE = Fraction(1, 10_000)
SLOW, KEPT = ("box0/nic2", "network"), 0.3
STEPS, HALT, WITHIN, NEAR = 55, 20, 20, 0.05
"""Steps of a run, the first with the slow link, steps until the group has to be as fast, and how near."""

RESTLESS, TURN_S = (0.9, 1.0), 0.5
"""Shares of their rates that links have in turn in the run that is only noisy, and for how long."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A run: times and losses of its steps, and what its group said."""

    seconds: list[float]
    losses: list[float]
    said: list[str]


class Links:
    """What becomes of the links of a lab from step HALT on."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self._over = lab, threading.Event()
        self._thread: threading.Thread | None = None
        index = lab.blueprint.topology.node_index
        self._slow = {(index[SLOW[0]], index[SLOW[1]]): KEPT}

    def slow(self) -> None:
        """One of them keeps a part of its rate."""
        throttle(self.lab, self._slow, burst_bytes=SLOW_BURST_BYTES)

    def restless(self) -> None:
        """All of them change their rates again and again."""
        draw_ = random.Random(2026)
        ends = [(node, other) for node, other, end in self.lab.blueprint.cable_ends if end[3]]

        def change() -> None:
            while not self._over.wait(TURN_S):
                shares = {each: draw_.uniform(*RESTLESS) for each in ends}
                throttle(self.lab, shares, burst_bytes=SLOW_BURST_BYTES)

        self._thread = threading.Thread(target=change)
        self._thread.start()

    def usual(self) -> None:
        """All have their own rates again."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        throttle(self.lab, {}, burst_bytes=SLOW_BURST_BYTES)


def training(lab: Lab, variables: Mapping[str, str], change: Callable[[Links], None]) -> TrainingRun:
    """Train in the lab, with a change of the links before step HALT."""
    out, err, over, links = io.StringIO(), io.StringIO(), threading.Event(), Links(lab)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def watch() -> None:
            while not (folder / "halted").exists():
                if over.wait(0.02):
                    return
            change(links)
            (folder / "go").touch()

        thread = threading.Thread(target=watch)
        thread.start()
        command = [sys.executable, str(HERE / "adapt_lab_rank.py"), name, str(STEPS), str(HALT)]
        own = {"COPPICE_THRESHOLD": "64K", "COPPICE_CACHE": str(folder / "plans"), **variables}
        try:
            launch_ranks(lab, command, environment=own, timeout_s=400, out=out, err=err)
        finally:
            over.set()
            thread.join()
            links.usual()
    line = next(each for each in out.getvalue().splitlines() if each.startswith("{"))
    said = [each for each in err.getvalue().splitlines() if each.startswith("coppice: ")]
    return TrainingRun(**json.loads(line), said=said)


def runs() -> dict[str, TrainingRun]:
    """All four."""
    topology = two_boxes()
    remove(NAME)
    lab = build(NAME, draw(topology, SCALE), burst_bytes=SLOW_BURST_BYTES, acknowledgements_first=True)
    found = {}
    try:
        told = lab.directory / "slow.json"
        write_topology(slowed(scaled(topology, SCALE), {" -> ".join(SLOW): KEPT}), told)
        adapt = {ADAPT_VARIABLE: "1"}
        for words, variables, change in (
            (ADAPTS, adapt, Links.slow),
            (TOLD, {"COPPICE_TOPOLOGY": str(told)}, Links.slow),
            (KEEPS, {}, Links.slow),
            (RESTLESS_ONLY, adapt, Links.restless),
        ):
            say(words)
            begin = time.monotonic()
            found[words] = training(lab, variables, change)
            for line in found[words].said:
                say(line)
            say(f"{time.monotonic() - begin:.0f} s")
    finally:
        remove(NAME)
    return found


ADAPTS, TOLD, KEEPS = "finds out by itself", "planned for it from the start", "keeps its plan"
RESTLESS_ONLY = "finds out by itself; rates only restless"


def table(found: Mapping[str, TrainingRun]) -> Table:
    """Times of steps before and after, and whether the goals hold."""
    told, adapted = found[TOLD], found[ADAPTS]
    aim = statistics.median(told.seconds[HALT + 1 :])
    late = HALT + WITHIN
    as_fast = next(
        (
            step - HALT
            for step in range(HALT, STEPS)
            if statistics.median(adapted.seconds[step:]) <= aim * (1 + NEAR)
            and adapted.seconds[step] <= aim * (1 + 2 * NEAR)
        ),
        None,
    )
    off = statistics.median(adapted.seconds[late:]) / aim - 1
    apart = max(abs(a - b) for a, b in zip(adapted.losses, told.losses, strict=True))
    rows: list[tuple[str, ...]] = [
        (
            words,
            number(statistics.median(each.seconds[2:HALT]), unit="s"),
            number(statistics.median(each.seconds[late:]), unit="s"),
            number(max(each.seconds[HALT:]), unit="s"),
            number(sum(each.seconds[HALT:]), unit="s"),
            f"{each.losses[-1]:.6f}",
            str(len(each.said)),
        )
        for words, each in found.items()
    ]
    good = f"{100 * off:+.1f}% from the run that was planned for it{'' if off <= NEAR else ' MISS'}"
    reached = "never" if as_fast is None else f"from step {as_fast} on"
    return Table(
        title=f"{STEPS} steps; from step {HALT} on {SLOW[0]} -> {SLOW[1]} has {100 * KEPT:.0f}% of its rate",
        header=(
            "run",
            "step before",
            f"{WITHIN} steps after",
            "slowest after",
            "all after",
            "last loss",
            "lines said",
        ),
        rows=rows,
        notes=[
            f"* {WITHIN} steps after the change and later: {good}; as fast {reached}.",
            f"* Losses of both differ by {apart:.1e} at most.",
            *(
                f"* Said by the run that {words}: `{line}`"
                for words, each in found.items()
                for line in each.said
            ),
        ],
    )


HEAD = """# Adapting while training

A net of two layers of 1024 x 1024 trains under DDP with the backend "coppice": 8 ranks in two boxes of the lab
(`coppice lab`), 20 Mbit/s a NIC, 200 inside. Regenerate with `python benchmarks/adapt_lab.py --write` (Linux, root).
{machine}

Three runs in which a link becomes slow for good: with COPPICE_ADAPT=1, with a topology that has said so from the start,
and with the plan of before. In a fourth one, with COPPICE_ADAPT=1, all links change their rates twice a second, to
{low:.0f} to {high:.0f}% of what they are: nothing is to happen. Times of steps are medians.

"""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    found = table(runs())
    page = (
        HEAD.format(machine=f"{machine()}.", low=100 * RESTLESS[0], high=100 * RESTLESS[1]) + found.markdown()
    )
    print(page)
    if options.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
