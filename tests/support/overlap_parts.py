"""One rank of a training that sends parts of gradients, or what stands for them; arguments as in overlap_ranks.py."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from overlap_ranks import NETWORK, OPTIMIZERS, ROWS, STEPS, batch, chain, distance, main
from refusals import refusals
from torch import nn

from coppice.errors import InputError
from coppice.training.torch import schedule

CHUNK = 300
SETTINGS = {"theta_bytes": 20000, "chunk_elements": CHUNK}


def train(model: nn.Module, optimizer: Any, steps: range, rank: int, size: int) -> list[list[int]]:
    """Steps of one rank; the chunks that it sent in each."""
    mine, sent = slice(rank * ROWS, (rank + 1) * ROWS), []
    for step in steps:
        x, y = batch(step, size)
        optimizer.zero_grad()
        sent.append(list(optimizer.schedule._sparse.chosen))
        nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()
    optimizer.flush()
    return sent


class Reference:
    """The algorithm on flat vectors, all ranks in one process."""

    def __init__(
        self, model: nn.Module, size: int, ratio: float, *, mu: float, rate: float, decay: float
    ) -> None:
        self.model, self.size = model, size
        self.mu, self.rate, self.decay = mu, rate, decay
        self.row = list(reversed(list(model.parameters())))
        count = sum(p.numel() for p in self.row)
        self.chunks = math.ceil(count / CHUNK)
        self.wanted = math.ceil(ratio * self.chunks)
        self.m = [torch.zeros(count) for _ in range(size)]
        self.h = [torch.zeros(count) for _ in range(size)]
        self.chosen = list(range(self.chunks))
        self.sent_before = list(range(self.chunks))

    def step(self, step: int) -> None:
        """One iteration of all ranks."""
        x, y = batch(step, self.size)
        weights = torch.cat([p.detach().flatten() for p in self.row])
        for rank in range(self.size):
            rows = slice(rank * ROWS, (rank + 1) * ROWS)
            loss = nn.functional.mse_loss(self.model(x[rows]), y[rows])
            g = torch.cat([each.flatten() for each in torch.autograd.grad(loss, self.row)])
            self.m[rank] = self.mu * self.m[rank] + g + self.decay * weights
            self.h[rank] = self.h[rank] + self.m[rank]
        for chunk in self.chosen:
            own = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            weights[own] -= self.rate * sum(h[own] for h in self.h) / self.size
            for rank in range(self.size):
                self.h[rank][own] = 0
                if chunk not in self.sent_before:
                    self.m[rank][own] = 0
        self.sent_before = self.chosen
        norms = [
            sum(float(h[c * CHUNK : (c + 1) * CHUNK].abs().sum()) for h in self.h) for c in range(self.chunks)
        ]
        self.chosen = sorted(sorted(range(self.chunks), key=lambda c: (-norms[c], c))[: self.wanted])
        with torch.no_grad():
            for p, own in zip(self.row, weights.split([p.numel() for p in self.row]), strict=True):
                p.copy_(own.view(p.shape))


def sparse(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Chunks of the greatest norms beside dense training, a reference, and themselves resumed."""
    del folder
    found: dict[str, Any] = {}
    plain, model = chain(), chain(rank)
    reference, optimizer = (OPTIMIZERS["sgd"](each.parameters()) for each in (plain, model))
    schedule(model, optimizer, "gradientflow", network=NETWORK, ratio=0.999, **SETTINGS)
    train(model, optimizer, range(STEPS), rank, size)
    for step in range(STEPS):
        x, y = batch(step, size)
        reference.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        reference.step()
    found["dense"] = distance(model, plain)
    optimizer.close()

    model = chain(rank)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    schedule(model, optimizer, "gradientflow", network=NETWORK, ratio=0.25, **SETTINGS)
    same = Reference(chain(), size, 0.25, mu=0.9, rate=0.05, decay=1e-3)
    sent, chosen = train(model, optimizer, range(11), rank, size), []
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    sent += train(model, optimizer, range(11, STEPS), rank, size)
    for step in range(STEPS):
        chosen.append(same.chosen)
        same.step(step)
    found["reference"] = distance(model, same.model)
    found["sent"], found["chosen"], found["chunks"] = sent, chosen, same.chunks
    found["messages"] = optimizer.schedule.launched["network"]
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = [torch.zeros_like(flat) for _ in range(size)]
    dist.all_gather(everyone, flat)
    found["alike"] = all(torch.equal(flat, other) for other in everyone)

    other = chain(7)
    again = OPTIMIZERS["sgd"](other.parameters())
    schedule(other, again, "gradientflow", network=NETWORK, ratio=0.25, **SETTINGS)
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    train(other, again, range(11, STEPS), rank, size)
    found["resumed"] = distance(other, model)

    found["refused"] = []
    foreign = {**saved["optimizer"]["sparse_sums"], "rank": rank + 1}
    dense = chain()
    nets = [chain(), chain()]
    nesterov = torch.optim.SGD(nets[1].parameters(), lr=0.1, momentum=0.9, nesterov=True)
    flow = {"network": NETWORK, "ratio": 0.5}
    _, whole = schedule(dense, OPTIMIZERS["sgd"](dense.parameters()), "ddp", network=NETWORK)
    found["refused"] += refusals(
        lambda: again.load_state_dict({**saved["optimizer"], "sparse_sums": foreign}),
        lambda: whole.load_state_dict(saved["optimizer"]),
        lambda: schedule(nets[0], OPTIMIZERS["adam"](nets[0].parameters()), "gradientflow", **flow),
        lambda: schedule(nets[1], nesterov, "gradientflow", **flow),
    )
    for each in (optimizer, again, whole):
        each.close()
    return found


class Mixed(nn.Module):
    """Layers that go by factors, one that is too narrow, one that runs twice, and one with other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 64)
        self.twice = nn.Linear(64, 64)
        self.pooled = nn.Linear(64, 48, bias=False)
        self.deep = nn.Linear(48, 64)
        self.narrow = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.twice(torch.relu(self.twice(torch.relu_(self.wide(x))))))
        y = self.pooled(y.view(len(y) // 2, 2, -1).sum(1)).repeat_interleave(2, dim=0)
        return self.narrow(torch.relu(self.deep(y)))


def mixed(seed: int = 0) -> nn.Module:
    """See :class:`Mixed`."""
    torch.manual_seed(seed)
    return Mixed()


def factors(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Gradients of matrices by factors beside plain training; the last batches are shorter."""
    del folder
    found: dict[str, Any] = {}
    for kind in ("sgd", "adam"):
        plain, model = mixed(), mixed(rank)
        reference, optimizer = (OPTIMIZERS[kind](each.parameters()) for each in (plain, model))
        schedule(model, optimizer, "poseidon", network=NETWORK, recorded=3)
        for step in range(STEPS):
            rows = ROWS if step < STEPS - 3 else ROWS - 2
            x, y = (each[: size * rows] for each in batch(step, size))
            mine = slice(rank * rows, (rank + 1) * rows)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
            optimizer.step()
            reference.zero_grad()
            nn.functional.mse_loss(plain(x), y).backward()
            reference.step()
            if step == 13:
                saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        plan = optimizer.schedule.plan
        names = [name for name, _ in model.named_parameters()]
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        everyone = [torch.zeros_like(flat) for _ in range(size)]
        dist.all_gather(everyone, flat)
        found[kind] = {
            "distance": distance(model, plain),
            "alike": all(torch.equal(flat, other) for other in everyone),
            "samples": optimizer.schedule.workload.samples,
            "factors": sorted(
                names[plan.tensors[layer]]
                for message in plan.messages
                if message.collective == "factors"
                for layer in message.gradients
            ),
            "messages": len(plan.messages),
        }
        other = mixed(7)
        again = OPTIMIZERS[kind](other.parameters())
        schedule(other, again, "poseidon", network=NETWORK, recorded=2)
        for turn in ("resumed_anew", "resumed"):  # the first one records again, which sends whole gradients
            other.load_state_dict(saved["model"])
            again.load_state_dict(copy.deepcopy(saved["optimizer"]))
            for step in range(14, STEPS):
                rows = ROWS if step < STEPS - 3 else ROWS - 2
                x, y = (each[: size * rows] for each in batch(step, size))
                mine = slice(rank * rows, (rank + 1) * rows)
                again.zero_grad()
                nn.functional.mse_loss(other(x[mine]), y[mine]).backward()
                again.step()
            found[kind][turn] = distance(other, model)
        found[kind]["by_factors"] = sum(each.collective == "factors" for each in again.schedule.plan.messages)
        again.close()
        if kind == "sgd":
            optimizer.close()
    found["refused"] = []
    x, y = batch(0, 2 * size)
    try:
        with optimizer.no_sync():
            nn.functional.mse_loss(model(x[:ROWS]), y[:ROWS]).backward()
    except InputError as error:
        found["refused"].append(str(error))
    try:
        nn.functional.mse_loss(model(x[: 2 * ROWS]), y[: 2 * ROWS]).backward()
    except InputError as error:
        found["refused"].append(str(error))
    optimizer.close()
    return found


if __name__ == "__main__":
    main({"sparse": sparse, "factors": factors})
