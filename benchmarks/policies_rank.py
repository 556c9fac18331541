"""One rank of benchmarks/policies.py: ``policies_rank.py MODEL POLICY SETTINGS STEPS``; rank 0 prints a JSON line.

``stock`` as a policy is torch's own DistributedDataParallel. The time of a step is from one to the next over some steps
in a row, with no barrier between them: a policy may carry work over from one to the next.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from coppice.training.torch import schedule


def vgg() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Convolutions with few weights, then matrices with nearly all of them."""
    layers: list[nn.Module] = []
    width = 3
    for channels in (32, 64, 64, 64):
        layers += [
            nn.Conv2d(width, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        ]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        width = channels
    layers += [
        nn.Flatten(),
        nn.Linear(64 * 16, 1024),
        nn.ReLU(),
        nn.Linear(1024, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    ]
    return nn.Sequential(*layers), torch.randn(16, 3, 64, 64), torch.randint(10, (16,))


def transformer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Layers alike."""
    layer = nn.TransformerEncoderLayer(192, 4, 768, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    head = nn.Sequential(nn.Embedding(256, 192), body, nn.Linear(192, 256))
    return head, torch.randint(256, (8, 64)), torch.randint(256, (8, 64))


MODELS = {"vgg": vgg, "transformer": transformer}


def train(model: str, policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a step, and what was predicted."""
    torch.manual_seed(0)
    net, inputs, targets = MODELS[model]()
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    run: nn.Module = net
    if policy == "stock":
        run = DistributedDataParallel(net)
    else:
        net, optimizer = schedule(net, optimizer, policy, tune=not settings, recorded=5, **settings)
    losses = []
    begin = 0.0
    warm = 6
    for step in range(warm + steps):
        if step == warm:
            if policy != "stock":
                optimizer.flush()
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(inputs).flatten(0, -2), targets.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    if policy != "stock":
        optimizer.flush()
    seconds = (time.perf_counter() - begin) / steps
    slowest = torch.tensor([seconds])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found: dict[str, Any] = {"seconds": float(slowest), "losses": losses}
    if policy != "stock":
        work = optimizer.schedule.workload
        found |= {
            "predicted": optimizer.schedule.predicted_seconds,
            "messages": len(optimizer.schedule.plan.messages),
            "compute": work.compute_seconds,
            "bytes": sum(work.bytes),
            "rate": work.bytes_per_second,
        }
        optimizer.close()
    return found


def main() -> None:
    model, policy, settings, steps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = train(model, policy, settings, steps)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
