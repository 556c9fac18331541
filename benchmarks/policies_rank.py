"""One rank of benchmarks/policies.py: ``policies_rank.py MODEL POLICY SETTINGS STEPS``; rank 0 prints a JSON line.

``stock`` as a policy is torch's own DistributedDataParallel; ``stock-scaled`` has buckets that are as small beside the
model as those of 25 MiB are beside VGG-16. The time of a step is from one to the next over some steps
in a row, with no barrier between them: a policy may carry work over from one to the next.
"""

from __future__ import annotations

import copy
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from coppice.training.torch import schedule
from lab_rank import run_model
from paced import paced


def vgg() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Convolutions that take most of the time, then matrices with nearly all weights; shares as in VGG-16."""
    layers: list[nn.Module] = []
    width = 3
    for channels in (16, 32, 64, 64):
        layers += [
            paced(nn.Conv2d(width, channels, 3, padding=1), 0.010, 0.020),
            nn.ReLU(),
            paced(nn.Conv2d(channels, channels, 3, padding=1), 0.010, 0.020),
        ]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        width = channels
    layers += [
        nn.Flatten(),
        paced(nn.Linear(64 * 16, 1024), 0.004, 0.008),
        nn.ReLU(),
        paced(nn.Linear(1024, 256), 0.002, 0.004),
        nn.ReLU(),
        paced(nn.Linear(256, 10), 0.001, 0.002),
    ]
    return nn.Sequential(*layers), torch.randn(2, 3, 64, 64), torch.randint(10, (2,))


def transformer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Layers alike."""
    layers = [
        paced(
            nn.TransformerEncoderLayer(192, 4, 768, dropout=0.0, batch_first=True),
            0.012,
            0.024,
        )
        for _ in range(6)
    ]
    net = nn.Sequential(nn.Embedding(256, 192), *layers, paced(nn.Linear(192, 256), 0.004, 0.008))
    return net, torch.randint(256, (2, 16)), torch.randint(256, (2, 16))


MODELS = {"vgg": vgg, "transformer": transformer}
VGG_16_BYTES = 4 * 138_357_544


def train(model: str, policy: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Seconds of a step, and what was predicted."""
    torch.manual_seed(0)
    net, inputs, targets = MODELS[model]()

    def step(run: nn.Module, optimizer: Any) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(inputs).flatten(0, -2), targets.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        return float(loss.detach())

    stock = policy.startswith("stock")
    found: dict[str, Any] = {}
    if stock:
        cap = 25.0 if policy == "stock" else 25.0 * _bytes(net) / VGG_16_BYTES
        copied = copy.deepcopy(net)
        copy_optimizer: Any = torch.optim.SGD(copied.parameters(), lr=0.01, momentum=0.9)
        _, recording = schedule(copied, copy_optimizer, "ddp", recorded=5, bucket_bytes=cap * 2**20)
        for _ in range(6):
            step(copied, recording)
        found["predicted"] = recording.schedule.predicted_seconds
        recording.close()
        run: nn.Module = DistributedDataParallel(net, bucket_cap_mb=cap)
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        tune = False if settings else "simulation"
        run, optimizer = schedule(net, optimizer, policy, tune=tune, recorded=5, **settings)
    warm = 6
    losses = [step(run, optimizer) for _ in range(warm)]
    if not stock:
        optimizer.flush()
    dist.barrier()
    begin = time.perf_counter()
    losses += [step(run, optimizer) for _ in range(steps)]
    if not stock:
        optimizer.flush()
    slowest = torch.tensor([(time.perf_counter() - begin) / steps])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found |= {"seconds": float(slowest), "losses": losses}
    if not stock:
        work = optimizer.schedule.workload
        found |= {
            "predicted": optimizer.schedule.predicted_seconds,
            "messages": len(optimizer.schedule.plan.messages),
            "compute": work.compute_seconds,
            "bytes": sum(work.bytes),
            "rate": work.bytes_per_second,
            "message": work.message_seconds,
        }
        optimizer.close()
    return found


def _bytes(net: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in net.parameters())


if __name__ == "__main__":
    run_model({name: partial(train, name) for name in MODELS})
