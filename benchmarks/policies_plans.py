"""Plans of SYNDICATE and Centauri carried out on two boxes with a slow network between them, beside their simulation.

    python benchmarks/policies_plans.py --write [--rounds 3] [--steps 12]  # the tables of policies_plans.md (root)
    python benchmarks/policies_plans.py --model exchanges --rate 100 --policy stock,syndicate --rounds 1

Two boxes of two ranks; a rank has a link of four times the rate to its box. Every policy is run in every round, one
after the other; a figure is the median of the rounds, of the slowest rank. "predicted" is the planner's own simulation
of its plan, on the times of this run.
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
from coppice.topology.model import Link, Node, NodeKind, Topology
from lab import SLOW_BURST_BYTES, say, standing
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
PAGE = HERE / "policies_plans.md"
RATES = (100, 200, 400)
"""Mbit/s of a rank's link between boxes."""
MODELS = {
    "exchanges": "an all-reduce and an all-to-all of 2 MiB side by side, over all ranks",
    "transformer": "eight sections shared by the ranks of a box, two replicas",
    "sharded": "the same, weights in parts on the replicas",
}
POLICIES = ("stock", "plain", "syndicate", "centauri")
HEADER = ("policy", "step ms", "predicted", "apart", "over stock", "motifs", "losses apart")


def two_boxes() -> Topology:
    """Two boxes of two GPUs on a switch; each GPU has a network port of its own, a quarter as fast."""
    nodes: list[Node] = [Node(id="network", kind=NodeKind.SWITCH)]
    links: list[Link] = []
    for host in ("box0", "box1"):
        nodes.append(Node(id=f"{host}/switch", kind=NodeKind.SWITCH, host=host))
        for i in range(2):
            nodes += [
                Node(id=f"{host}/gpu{i}", host=host),
                Node(id=f"{host}/nic{i}", kind=NodeKind.NIC, host=host),
            ]
            links.append(Link(src=f"{host}/gpu{i}", dst=f"{host}/switch", gb_per_s=Fraction(4)))
            links.append(Link(src=f"{host}/gpu{i}", dst=f"{host}/nic{i}", gb_per_s=Fraction(1)))
            links.append(Link(src=f"{host}/nic{i}", dst="network", gb_per_s=Fraction(1)))
    return Topology.of("two boxes of two GPUs", nodes, links)


def measured(model: str, rate: int, policies: list[str], rounds: int, steps: int) -> dict[str, list[Any]]:
    """What every round of every policy found."""
    found: dict[str, list[Any]] = {policy: [] for policy in policies}
    with standing("plans", two_boxes(), Fraction(rate, 8000), burst_bytes=SLOW_BURST_BYTES) as lab:
        for turn in range(rounds):
            for policy in policies:
                say(f"{model}, {rate} Mbit/s, round {turn + 1}: {policy}")
                out, err = io.StringIO(), io.StringIO()
                command = [
                    sys.executable,
                    str(HERE / "policies_plans_rank.py"),
                    model,
                    policy,
                    "{}",
                    str(steps),
                ]
                launch_ranks(lab, command, timeout_s=600, out=out, err=err)
                lines = [each for each in out.getvalue().splitlines() if each.startswith("{")]
                if not lines:
                    sys.exit(f"no result of {policy} on {model}:\n{err.getvalue()[-2000:]}")
                found[policy].append(json.loads(lines[0]))
    return found


def rows(found: dict[str, list[Any]]) -> list[tuple[str, ...]]:
    """Cells of the table."""

    def middle(policy: str, key: str) -> float:
        return statistics.median(each.get(key) or 0.0 for each in found[policy])

    cells: list[tuple[str, ...]] = []
    for policy, runs in found.items():
        seconds, predicted = middle(policy, "seconds"), middle(policy, "predicted")
        gain = apart = ""
        if "stock" in found:
            gain = f"{middle('stock', 'seconds') / seconds:.2f}"
            pairs = zip(runs[0]["losses"], found["stock"][0]["losses"], strict=True)
            apart = f"{max(abs(own - other) for own, other in pairs):.0e}"
        cells.append(
            (
                policy,
                f"{1e3 * seconds:.0f}",
                f"{1e3 * predicted:.0f}" if predicted else "",
                f"{100 * (seconds / predicted - 1):+.0f}%" if predicted else "",
                gain,
                f"{runs[0].get('messages', '')}",
                apart,
            )
        )
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=",".join(MODELS), help="a list")
    parser.add_argument("--rate", default=",".join(str(rate) for rate in RATES), help="Mbit/s, a list")
    parser.add_argument("--policy", default=",".join(POLICIES), help="a list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    tables = []
    for model in given.model.split(","):
        for rate in (int(each) for each in given.rate.split(",")):
            found = measured(model, rate, given.policy.split(","), given.rounds, given.steps)
            table = Table(
                title=f"{model} ({MODELS[model]}), {rate} Mbit/s between boxes",
                header=HEADER,
                rows=rows(found),
            )
            for policy, runs in found.items():
                if runs[0].get("choices"):
                    table.notes.append(f"{policy} chose {json.dumps(runs[0]['choices'])}.")
            print(table.text(), flush=True)
            tables.append(table)
            if given.write:
                replace_generated(PAGE, "policies_plans.py", "\n".join(each.markdown() for each in tables))


if __name__ == "__main__":
    main()
