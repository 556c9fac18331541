"""Policies of overlap in real training on rate-limited networks, beside what simulation predicts.

    python benchmarks/policies.py --write [--rounds 3] [--steps 12]       # the table of policies.md (Linux, root)
    python benchmarks/policies.py --model vgg --rate 100 --policy bytescheduler,stock --rounds 1

Ranks on one switch whose layers take as long as on devices of their own (paced.py). Every policy is run in every round,
one after the other, with the settings that simulation of its recorded iterations finds best; "stock" is what people use
today. A figure is the median of the rounds, of the slowest rank. Losses are compared with those of stock.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.errors import CheckError
from coppice.run.lab.launch import launch_ranks
from coppice.topology.presets import preset
from lab import SLOW_BURST_BYTES, say, standing
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
PAGE = HERE / "policies.md"
RATES = (100, 200, 400)
"""Mbit/s of a rank's link."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained, by what, and where.

    Attributes:
        title: What it is.
        program: A rank of it, in this folder: called with the model, the policy, its settings and a number of steps.
        policies: Those that are compared; those that begin with ``stock`` are what people use today.
        ranks: Ranks on a star.
    """

    title: str
    program: str
    policies: tuple[str, ...]
    ranks: int = 2


HEADER = ("policy", "step ms", "predicted", "apart", "over stock", "predicted", "messages", "losses apart")
DATA_PARALLEL = (
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
WORKLOADS = {
    "vgg": Workload(
        title="convolutions, then matrices with nearly all weights",
        program="policies_rank.py",
        policies=("stock", "stock-scaled", *DATA_PARALLEL),
    ),
    "transformer-tp": Workload(
        title="blocks cut over two ranks", program="policies_blocks_rank.py", policies=("stock", "oases")
    ),
    "transformer-recompute": Workload(
        title="blocks cut over two ranks, nothing kept but what enters them",
        program="policies_recompute_rank.py",
        policies=("stock", "lynx"),
    ),
    "transformer-sp": Workload(
        title="blocks and tokens cut over two ranks",
        program="policies_tensor_rank.py",
        policies=("stock", "decomposition", "coconet"),
    ),
    "mixture": Workload(
        title="experts over four ranks",
        program="policies_mixture_rank.py",
        policies=("stock", "lina", "lina-packed"),
        ranks=4,
    ),
    "pipeline": Workload(
        title="four stages on two devices, two replicas",
        program="policies_pipeline_rank.py",
        policies=("stock", "interleaved", "breadth-first", "fold3d"),
        ranks=4,
    ),
    "transformer": Workload(
        title="six layers alike", program="policies_rank.py", policies=("stock", *DATA_PARALLEL)
    ),
}


def measured(
    name: str, rate: int, policies: Sequence[str], rounds: int, steps: int
) -> dict[str, list[dict[str, Any]]]:
    """What every round of every policy found."""
    workload = WORKLOADS[name]
    found: dict[str, list[dict[str, Any]]] = {policy: [] for policy in policies}
    topology = preset("star", gpus=workload.ranks, gb_per_s=1)
    with standing("policies", topology, Fraction(rate, 8000), burst_bytes=SLOW_BURST_BYTES) as lab:
        for turn in range(rounds):
            for policy in policies:
                say(f"{name}, {rate} Mbit/s, round {turn + 1}: {policy}")
                out, err = io.StringIO(), io.StringIO()
                command = [sys.executable, str(HERE / workload.program), name, policy, "{}", str(steps)]
                try:
                    launch_ranks(lab, command, timeout_s=600, out=out, err=err)
                except CheckError as error:
                    sys.exit(f"{policy} on {name}: {error}\n{err.getvalue()[-2000:]}")
                lines = [each for each in out.getvalue().splitlines() if each.startswith("{")]
                found[policy].append(json.loads(lines[0]))
    return found


def rows(found: dict[str, list[dict[str, Any]]]) -> list[tuple[str, ...]]:
    """Cells of the table."""

    def middle(policy: str, key: str) -> float:
        return statistics.median(each.get(key) or 0.0 for each in found[policy])

    cells: list[tuple[str, ...]] = []
    stock = next((policy for policy in found if policy.startswith("stock")), None)
    for policy, runs in found.items():
        seconds, predicted = middle(policy, "seconds"), middle(policy, "predicted")
        gain = foretold = apart = ""
        if stock is not None:
            gain = f"{middle(stock, 'seconds') / seconds:.2f}"
            if predicted and middle(stock, "predicted"):
                foretold = f"{middle(stock, 'predicted') / predicted:.2f}"
            pairs = zip(runs[0]["losses"], found[stock][0]["losses"], strict=True)
            apart = f"{max(abs(own - other) for own, other in pairs):.0e}"
        cells.append(
            (
                policy,
                f"{1e3 * seconds:.0f}",
                f"{1e3 * predicted:.0f}" if predicted else "",
                f"{100 * (seconds / predicted - 1):+.0f}%" if predicted else "",
                gain,
                foretold,
                f"{runs[0].get('messages', '')}",
                apart,
            )
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=",".join(WORKLOADS), help="a list")
    parser.add_argument("--rate", default=",".join(str(rate) for rate in RATES), help="Mbit/s, a list")
    parser.add_argument("--policy", help="a list; default: all of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    tables = []
    for model in given.model.split(","):
        for rate in (int(each) for each in given.rate.split(",")):
            policies = given.policy.split(",") if given.policy else WORKLOADS[model].policies
            found = measured(model, rate, policies, given.rounds, given.steps)
            one = next((each for runs in found.values() for each in runs if "compute" in each), None)
            table = Table(
                title=f"{model} ({WORKLOADS[model].title}), {rate} Mbit/s",
                header=HEADER,
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
