"""A mixture of experts trained under skewed routing on four ranks in the lab: backend "coppice" against gloo.

    python benchmarks/skewed_training.py --write       # the table of benchmarks/skewed_training.md (Linux, root)

Two boxes of two ranks with slow links between them. Each layer is the `MixtureOfExperts` of docs/overlap.md with two
experts a rank; its gate prefers a few experts, others in every step, so that counts are new in each exchange. Both
backends run the same script with the same seeds, in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from coppice.run.lab.launch import launch_ranks
from coppice.topology.model import Link, Node, NodeKind, Topology
from lab import machine, say, standing

TABLE = Path(__file__).with_name("skewed_training.md")
BACKENDS = ("gloo", "coppice")
TOKENS, WIDTH, LAYERS, EXPERTS, WARM = 2048, 128, 2, 8, 2
"""Tokens of a rank, their size, layers, experts of a layer, and steps that do not count."""
FAVOURITES = (0.55, 0.15)
"""Shares of the two most popular experts; the others share the rest."""
SCALE = Fraction(1, 2_000)
"""NICs of 100 Mbit/s, links inside boxes of 1,000."""


def two_small_boxes() -> Topology:
    """Two boxes of two GPUs on a switch, a network port each, all ports on one switch."""
    nodes, links = [Node(id="network", kind=NodeKind.SWITCH)], []
    for box in range(2):
        host = f"box{box}"
        nodes.append(Node(id=f"{host}/switch", kind=NodeKind.SWITCH, host=host))
        for i in range(2):
            nodes += [
                Node(id=f"{host}/gpu{i}", host=host),
                Node(id=f"{host}/nic{i}", kind=NodeKind.NIC, host=host),
            ]
            links += [
                Link(src=f"{host}/gpu{i}", dst=f"{host}/switch", gb_per_s=Fraction(250)),
                Link(src=f"{host}/gpu{i}", dst=f"{host}/nic{i}", gb_per_s=Fraction(25)),
                Link(src=f"{host}/nic{i}", dst="network", gb_per_s=Fraction(25)),
            ]
    return Topology.of("two boxes of two GPUs", nodes, links)


def rank_main(backend: str, steps: int) -> None:
    """One rank: trains, and rank 0 prints losses and times of steps."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import coppice.torch  # noqa: F401  (registers the backend)
    from coppice.training.torch import MixtureOfExperts

    class SkewedGate(nn.Module):
        """Deals tokens to a few experts, drawn anew in every step; how much a token gets of them is learned."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, EXPERTS, bias=False)
            self.drawn = torch.Generator().manual_seed(100 + dist.get_rank())
            self.shared = torch.Generator().manual_seed(7)

        def forward(self, tokens: Any) -> Any:
            order = torch.randperm(EXPERTS, generator=self.shared)
            rest = (1 - sum(FAVOURITES)) / (EXPERTS - len(FAVOURITES))
            shares = torch.full((EXPERTS,), rest)
            shares[order[: len(FAVOURITES)]] = torch.tensor(FAVOURITES)
            chosen = torch.multinomial(shares, len(tokens), replacement=True, generator=self.drawn)
            return self.inner(tokens) + 10 * nn.functional.one_hot(chosen, EXPERTS)

    dist.init_process_group(backend)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(
        *(
            MixtureOfExperts(WIDTH, lambda: nn.Linear(WIDTH, WIDTH), experts=EXPERTS, gate=SkewedGate())
            for _ in range(LAYERS)
        )
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    made = torch.Generator().manual_seed(1 + dist.get_rank())
    inputs, targets = torch.randn(2, TOKENS, WIDTH, generator=made)
    losses, times = [], []
    for _ in range(WARM + steps):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        torch.autograd.backward(loss)
        for layer in net:
            gate: Any = layer.gate
            gradient = gate.inner.weight.grad
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        optimizer.step()
        slowest = torch.tensor([time.perf_counter() - begin])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        dist.all_reduce(loss.detach_())
        losses.append(float(loss) / dist.get_world_size())
        times.append(float(slowest))
    if dist.get_rank() == 0:
        print(json.dumps({"losses": losses, "times": times[WARM:]}), flush=True)
    dist.destroy_process_group()


def trained(lab: Any, backend: str, steps: int) -> dict[str, Any]:
    """What rank 0 prints."""
    out = io.StringIO()
    command = [sys.executable, __file__, "--rank", backend, "--steps", str(steps)]
    with contextlib.redirect_stderr(io.StringIO()):
        launch_ranks(lab, command, timeout_s=200, out=out, err=sys.__stderr__)
    [line] = [line for line in out.getvalue().splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


PAGE = """# A mixture of experts under skewed routing

Four ranks in the lab, two boxes of two: 1,000 Mbit/s inside a box, 100 Mbit/s from each rank to the other box.
{layers} layers of `MixtureOfExperts`, {experts} experts each, {tokens} tokens of {width} floats a rank; in every step
{first:.0%} of the tokens go to one expert and {second:.0%} to another, drawn anew for each layer and step. Regenerate
with `python benchmarks/skewed_training.py --rounds {rounds} --steps {steps} --write` (Linux, root). {machine}

Times of a step are medians over {rounds} rounds of {steps} steps of the slowest rank, both backends in turn in each
round.

| backend | ms of a step | shorter by | largest difference in losses to gloo |
|---|---|---|---|
{rows}"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", choices=BACKENDS, help="be a rank of this backend")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    options = parser.parse_args(arguments)
    if options.rank:
        os.environ.setdefault("COPPICE_THRESHOLD", "1G")  # all but tokens by gloo: these are what is compared
        rank_main(options.rank, options.steps)
        return
    times: dict[str, list[float]] = {name: [] for name in BACKENDS}
    losses: dict[str, list[float]] = {}
    with standing("skewmoe", two_small_boxes(), SCALE) as lab:
        for number in range(options.rounds):
            for name in BACKENDS:
                say(f"round {number + 1}: {name}")
                found = trained(lab, name, options.steps)
                times[name] += found["times"]
                losses[name] = found["losses"]
    median = {name: 1e3 * statistics.median(each) for name, each in times.items()}
    rows = ""
    for name in BACKENDS:
        away = max(abs(one - two) for one, two in zip(losses[name], losses["gloo"], strict=True))
        rows += f"| {name} | {median[name]:.0f} | {1 - median[name] / median['gloo']:.1%} | {away:.1g} |\n"
    page = PAGE.format(
        layers=LAYERS,
        experts=EXPERTS,
        tokens=TOKENS,
        width=WIDTH,
        first=FAVOURITES[0],
        second=FAVOURITES[1],
        rounds=options.rounds,
        steps=options.steps,
        machine=f"{machine()}.",
        rows=rows,
    )
    print(page)
    if options.write:
        TABLE.write_text(page)


if __name__ == "__main__":
    main()
