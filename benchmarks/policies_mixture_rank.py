"""A rank of benchmarks/policies.py with experts: ``policies_mixture_rank.py MODEL POLICY SETTINGS STEPS``.

``stock`` is what people use today: whole exchanges that the layer waits for, and DistributedDataParallel for what all
ranks share. ``lina`` is ``schedule(policy="lina")``; ``lina-packed`` packs experts as well. Rank 0 prints a JSON queue;
predictions are simulations of the steps that were recorded in the same run. Layers take the time of an accelerator
(paced.py), experts in proportion to their tokens.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from coppice.training.torch import MixtureOfExperts, expert_parameter_names, schedule
from lab_rank import run_model
from paced import paced, waited

TOKENS, WIDTH, WIDE, BLOCKS = 512, 256, 512, 4
"""Tokens of a rank, their size, the size inside a dense layer, and blocks."""
DENSE_S = (0.010, 0.020)
"""Seconds of a dense layer, forward and backward."""
EXPERT_S = {"mixture": (0.010, 0.020), "mixture-slow": (0.030, 0.060)}
"""Seconds of the experts of a layer for the tokens of a rank."""
WARM = 6
PACK_EVERY = 2


class Expert(nn.Module):
    """A small product that takes its time for each row."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        begin = time.perf_counter()
        made: torch.Tensor = self.inner(rows)
        share = len(rows) / TOKENS
        rest = share * self.forward_s + begin - time.perf_counter()
        return waited(made, max(rest, 0.0), share * self.backward_s)


class Dense(nn.Module):
    """Many weights that few rows read: means of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x.view(16, -1, WIDTH).mean(dim=1, keepdim=True))
        return x + made.expand(-1, TOKENS // 16, -1).reshape(x.shape)


class EvenGate(nn.Module):
    """Deals tokens evenly, as a gate does that has been trained to; how much of its expert a token gets is learned."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, experts, bias=False)
        self.experts = experts

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        chosen = torch.arange(len(tokens)) % self.experts
        return self.inner(tokens) + 10 * nn.functional.one_hot(chosen, self.experts)  # type: ignore[no-any-return]


class Block(nn.Module):
    """A dense layer, and one of experts."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.dense = paced(Dense(), *DENSE_S)
        experts = 2 * dist.get_world_size()
        self.mixture = MixtureOfExperts(
            WIDTH, lambda: Expert(*EXPERT_S[model]), experts=experts, gate=EvenGate(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dense(x)
        made: torch.Tensor = self.mixture(x)
        return x + made


def made(model: str) -> tuple[nn.Module, Any]:
    """The model and its optimizer."""
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(model) for _ in range(BLOCKS)))
    return net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def run(net: nn.Module, optimizer: Any, steps: int, warm: int) -> tuple[float, list[float]]:
    """Seconds of a step on the slowest rank, after some, and losses."""
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    inputs, targets = torch.randn(2, TOKENS, WIDTH, generator=generator)
    losses, begin = [], 0.0
    for step in range(warm + steps):
        if step == warm:
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    slowest = torch.tensor([(time.perf_counter() - begin) / max(steps, 1)])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest), losses


def train(model: str, policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a step, and what was predicted."""
    net, optimizer = made(model)
    settings = {"micro_bytes": 2**18, **settings}
    warm = WARM
    if policy == "lina-packed":
        settings["pack_every"] = PACK_EVERY
        warm = 7 * WARM
    net, optimizer = schedule(net, optimizer, "lina", recorded=5, **settings)
    if policy != "stock":
        at_work = optimizer.schedule
        losses = run(net, optimizer, 0, warm)[1]
        while not at_work.predicted_seconds:  # after experts were packed steps are recorded again
            losses += run(net, optimizer, 0, 1)[1]
        seconds, last = run(net, optimizer, steps, 0)
        losses = [*losses, *last][: WARM + steps]
        found = {
            "predicted": at_work.predicted_seconds,
            "messages": len(at_work.plan.order),
            "token_pieces": at_work.plan.token_pieces,
            "of_rank": [block.mixture.layout.of_rank for block in net],  # type: ignore[attr-defined]
        }
        optimizer.close()
        return {"seconds": seconds, "losses": losses, **found}
    run(net, optimizer, 0, WARM)
    predicted = optimizer.schedule.plain_seconds
    optimizer.close()
    net, optimizer = made(model)
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model  # noqa: SLF001 (torch has no other)
    ignore(net, expert_parameter_names(net))
    seconds, losses = run(DistributedDataParallel(net), optimizer, steps, WARM)
    return {"seconds": seconds, "losses": losses, "predicted": predicted}


if __name__ == "__main__":
    run_model({name: partial(train, name) for name in EXPERT_S})
