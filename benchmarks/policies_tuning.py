"""Settings that are found while a model trains, beside all settings measured.

    python benchmarks/policies_tuning.py --write              # the table of policies_tuning.md (Linux, root)
    python benchmarks/policies_tuning.py --policy dear --window 2 --rounds 1

Two ranks on one switch train a model whose layers take the time of a device of their own. A tuner that only measures,
one that simulates first, and the whole grid: the ends of all three and the default are measured anew, in turns. "over
the grid" is the time of a step over that with the settings that were the best of the grid.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.run.lab.launch import launch_ranks
from coppice.topology.presets import preset
from lab import say, standing
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
PAGE = HERE / "policies_tuning.md"
POLICIES = ("dear", "ddp", "bytescheduler")
RATE = 200
"""Mbit/s of a rank's link."""


def measured(policy: str, rate: int, window: int, rounds: int) -> dict[str, Any]:
    """What the ends of the tuners are, and what steps take with them."""
    with standing("tuning", preset("star", gpus=2, gb_per_s=1), Fraction(rate, 8000)) as lab:
        say(f"{policy}, {rate} Mbit/s")
        out = io.StringIO()
        command = [sys.executable, str(HERE / "policies_tuning_rank.py"), policy, str(window), str(rounds)]
        launch_ranks(lab, command, timeout_s=900, out=out, err=io.StringIO())
        line = next(each for each in out.getvalue().splitlines() if each.startswith("{"))
        return dict(json.loads(line))


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Cells of the table."""
    best = statistics.median(found["grid"]["seconds"])
    default = found["default"]["settings"]
    cells: list[tuple[str, ...]] = []
    for name in ("default", "training", "simulation, then training", "grid"):
        end = found[name]
        seconds = statistics.median(end["seconds"])
        chosen = {key: value for key, value in end["settings"].items() if value != default[key]}
        cells.append(
            (
                name,
                ", ".join(f"{key} {value:.3g}" for key, value in chosen.items()),
                str(len(end.get("trials", []))),
                str(end.get("steps", "")),
                f"{1e3 * seconds:.0f}",
                f"{100 * (seconds / best - 1):+.1f}%",
            )
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--rate", type=int, default=RATE, help="Mbit/s")
    parser.add_argument("--window", type=int, default=2, help="iterations of a window")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    tables = []
    for policy in given.policy.split(","):
        found = measured(policy, given.rate, given.window, given.rounds)
        table = Table(
            title=f"{policy}, {given.rate} Mbit/s",
            header=("settings of", "what differs", "trials", "steps", "step ms", "over the grid"),
            rows=rows(found),
        )
        print(table.text(), flush=True)
        tables.append(table)
    if given.write:
        replace_generated(PAGE, "policies_tuning.py", "\n".join(table.markdown() for table in tables))


if __name__ == "__main__":
    main()
