"""Policies of overlap in real training on rate-limited networks, beside what simulation predicts.

    python benchmarks/policies.py --write [--rounds 3] [--steps 12]       # the table of policies.md (Linux, root)
    python benchmarks/policies.py --model vgg --rate 100 --policy bytescheduler,stock --rounds 1

Two ranks, a core each, on one switch. Every policy is run in every round, one after the other, with the settings that
simulation of its recorded iterations finds best; "stock" is torch's DistributedDataParallel. A figure is the median of
the rounds, of the slowest rank. Losses are those of stock, or the row says otherwise.
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
PAGE = HERE / "policies.md"
RATES = (100, 200, 400)
"""Mbit/s of a rank's link."""
POLICIES = (
    "stock",
    "ddp",
    "wfbp",
    "mg-wfbp",
    "gradientflow",
    "priority",
    "bytescheduler",
    "pace",
    "dear",
    "p3",
    "tictac",
)
MODELS = {"vgg": "convolutions with large matrices at the end", "transformer": "six layers alike"}


def measured(
    model: str, rate: int, policies: tuple[str, ...], rounds: int, steps: int
) -> dict[str, list[Any]]:
    """What every round of every policy found."""
    found: dict[str, list[Any]] = {policy: [] for policy in policies}
    topology = preset("star", gpus=2, gb_per_s=1)
    with standing("policies", topology, Fraction(rate, 8000)) as lab:
        for turn in range(rounds):
            for policy in policies:
                say(f"{model}, {rate} Mbit/s, round {turn + 1}: {policy}")
                out = io.StringIO()
                command = [sys.executable, str(HERE / "policies_rank.py"), model, policy, "{}", str(steps)]
                launch_ranks(lab, command, timeout_s=600, out=out, err=io.StringIO())
                line = next(each for each in out.getvalue().splitlines() if each.startswith("{"))
                found[policy].append(json.loads(line))
    return found


def rows(found: dict[str, list[Any]]) -> list[tuple[str, ...]]:
    """Cells of the table."""
    cells: list[tuple[str, ...]] = []
    stock = statistics.median(each["seconds"] for each in found["stock"]) if "stock" in found else None
    losses = found["stock"][0]["losses"] if "stock" in found else None
    for policy, runs in found.items():
        seconds = statistics.median(each["seconds"] for each in runs)
        predicted = statistics.median(each.get("predicted", 0.0) for each in runs)
        apart = max(abs(a - b) for a, b in zip(runs[0]["losses"], losses, strict=True)) if losses else 0.0
        cells.append(
            (
                policy,
                f"{1e3 * seconds:.0f}",
                f"{1e3 * predicted:.0f}" if predicted else "",
                f"{100 * (seconds / predicted - 1):+.0f}%" if predicted else "",
                f"{stock / seconds:.2f}" if stock else "",
                f"{runs[0].get('messages', '')}",
                f"{apart:.0e}" if losses else "",
            )
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=",".join(MODELS))
    parser.add_argument("--rate", default=",".join(str(rate) for rate in RATES), help="Mbit/s, a list")
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    tables = []
    for model in given.model.split(","):
        for rate in (int(each) for each in given.rate.split(",")):
            found = measured(model, rate, tuple(given.policy.split(",")), given.rounds, given.steps)
            one = next((each for runs in found.values() for each in runs if "compute" in each), None)
            table = Table(
                title=f"{model} ({MODELS[model]}), {rate} Mbit/s",
                header=("policy", "step ms", "predicted", "apart", "over stock", "messages", "losses apart"),
                rows=rows(found),
            )
            if one:
                wire = one["bytes"] / one["rate"]
                table.notes.append(
                    f"Forward and backward pass {1e3 * one['compute']:.0f} ms, gradients {one['bytes'] / 1e6:.1f} MB, "
                    f"{1e3 * wire:.0f} ms on the network."
                )
            print(table.text(), flush=True)
            tables.append(table)
    if given.write:
        replace_generated(PAGE, "policies.py", "\n".join(table.markdown() for table in tables))


if __name__ == "__main__":
    main()
