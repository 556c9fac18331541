"""One rank of benchmarks/policies_tuning.py: ``policies_tuning_rank.py POLICY WINDOW ROUNDS``.

The same model is trained by a tuner that measures, by one that simulates first, and by one that is let try all
settings, which is the grid. Then the default, both ends and the best of the grid are measured anew, in turns. Rank 0
prints a JSON line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.training.torch import schedule
from lab_rank import run_in_lab
from paced import paced

ALL = 10**6
FORWARD_S, BACKWARD_S = 0.003, 0.006
WARM = 4
STEPS = 12


def network() -> nn.Module:
    """Ten layers of 3 and 6 ms; two of them have most of the weights."""
    torch.manual_seed(0)
    shapes = [(160, 160)] * 8 + [(160, 1024), (1024, 160)]
    return nn.Sequential(*(paced(nn.Linear(*shape), FORWARD_S, BACKWARD_S) for shape in shapes))


def trained(net: nn.Module, policy: str, **options: Any) -> Iterator[Any]:
    """Steps of a training without end; yields the optimizer after each."""
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    net, optimizer = schedule(net, optimizer, policy, recorded=4, **options)
    inputs = torch.randn(4, 160)
    try:
        while True:
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()
            yield optimizer
    finally:
        optimizer.close()


def tuned(net: nn.Module, policy: str, **options: Any) -> dict[str, Any]:
    """The end of a tuner, and what it took."""
    begin = time.perf_counter()
    for steps, optimizer in enumerate(trained(net, policy, **options)):
        made = optimizer.schedule
        if made.workload is not None and not made.tuning:
            return {
                "settings": vars_of(made.policy.settings),
                "trials": [[dict(each.settings), each.seconds] for each in made.trials],
                "steps": steps,
                "took": time.perf_counter() - begin,
            }
    raise AssertionError


def vars_of(settings: Any) -> dict[str, Any]:
    """Options of a policy by name."""
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


def seconds_of(net: nn.Module, policy: str, settings: dict[str, Any]) -> float:
    """Seconds of a step of the slowest rank."""
    begin = 0.0
    for step, optimizer in enumerate(trained(net, policy, **settings)):
        if step in (WARM + 4, WARM + 4 + STEPS):  # after those that are recorded
            optimizer.flush()
            if begin:
                break
            dist.barrier()
            begin = time.perf_counter()
    seconds = torch.tensor([(time.perf_counter() - begin) / STEPS])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def ends() -> dict[str, Any]:
    """Where tuners end, and the time of a step there."""
    policy, window, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    net = network()
    found: dict[str, Any] = {
        "training": tuned(net, policy, tune="training", window=window),
        "simulation, then training": tuned(net, policy, tune=True, window=window),
        "grid": tuned(net, policy, tune="training", trials=ALL, window=window),
    }
    default = found["grid"]["trials"][0][0]  # a tuner begins with what it is given
    found["default"] = {"settings": default}
    for end in found.values():
        end["seconds"] = []
    for _ in range(rounds):
        for end in found.values():
            end["seconds"].append(seconds_of(net, policy, end["settings"]))
    return found


if __name__ == "__main__":
    run_in_lab(ends)
