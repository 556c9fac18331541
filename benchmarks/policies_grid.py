"""The common set of data-parallel workloads, and every policy of gradients on it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.machine import box_of
from coppice.iteration.models import any_model
from coppice.iteration.optimum import optimal_messages
from coppice.iteration.policies.catalogue import policies_of
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.policy import Policy
from coppice.iteration.step.workloads import steady_iteration
from coppice.iteration.workload.nets import LayeredModel
from coppice.iteration.workload.times import layer_workload

__all__ = [
    "GRADIENTS",
    "MODELS",
    "NETWORKS",
    "WORKERS",
    "Case",
    "Gap",
    "measure",
    "optimum_gaps",
    "seconds_of",
    "workload_of",
]

HOP_SECONDS = 10e-6
MODELS = {
    "vgg-19": ("V100", 64),
    "resnet-50": ("V100", 64),
    "bert-large": ("A100-80G", 32),
    "gpt2-xl": ("A100-80G", 8),
}
"""Device, and samples of a worker."""
NETWORKS = (1, 10, 25, 100, 400, 800)
"""Gb/s of a worker, in each direction."""
WORKERS = (8, 64, 1024)
GRADIENTS = policies_of(DataParallelPolicy)


def workload_of(
    model: str | LayeredModel, device: str, samples: int, workers: int, gb_per_s: float
) -> LayerWorkload:
    """A model whose gradients all workers sum: x bytes take 2 (n - 1) / n x / B, and hops up and down a binary tree."""
    named = any_model(model) if isinstance(model, str) else model
    found = layer_workload(
        named,
        box_of(device),
        workers=workers,
        samples=samples,
        bytes_per_second=gb_per_s * 1e9 / 8 * workers / (2 * (workers - 1)),
        message_seconds=2 * math.ceil(math.log2(workers)) * HOP_SECONDS,
    )
    if not isinstance(named, LayeredModel):
        return replace(found, element_bytes=2.0)
    dense = [each.products[0] for each in named.row if len(each.products) == 1]
    if len(dense) != named.layers:
        return found
    # Gradients of a matrix with a row of input for each sample have factors, which Poseidon can send instead.
    shapes = tuple((int(each.k), int(each.n)) if each.rows == 1 else None for each in dense)
    return replace(found, matrices=shapes, samples=samples, element_bytes=named.gradient_bytes)


def seconds_of(policy: Policy, workload: LayerWorkload) -> float:
    """Time of an iteration in the long run."""
    return steady_iteration(lambda count: policy.iterations(workload, count)).seconds


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload of the common set under all policies.

    Attributes:
        model: Name of the model.
        gb_per_s: Gigabits a second of a worker.
        workers: Workers.
        ratio: Time of a sum of all gradients over that of computation.
        largest: Share of the largest layer in the gradients.
        bound: What no policy can beat that does not split backward passes or send something else.
        plain: Seconds by policy, with defaults.
        tuned: Seconds by policy, with the settings that it chooses for the workload.
    """

    model: str
    gb_per_s: float
    workers: int
    ratio: float
    largest: float
    bound: float
    plain: dict[str, float]
    tuned: dict[str, float]

    def seconds(self, name: str) -> float:
        """Seconds of a policy with defaults, or tuned (``NAME*``)."""
        return self.tuned[name[:-1]] if name.endswith("*") else self.plain[name]

    @property
    def where(self) -> str:
        """The setting in words."""
        return f"{self.model}, {self.gb_per_s:g} Gb/s, {self.workers:,} workers"


def measure(model: str, gb_per_s: float, workers: int, names: Iterable[str] = GRADIENTS) -> Case:
    """All policies on a workload, with defaults and tuned."""
    workload = workload_of(model, *MODELS[model], workers, gb_per_s)
    plain, tuned = {}, {}
    for name in names:
        policy = GRADIENTS[name].of()
        plain[name] = seconds_of(policy, workload)
        tuned[name] = seconds_of(GRADIENTS[name].of(**policy.tune(workload)), workload)
    whole = sum(workload.bytes)
    return Case(
        model=model,
        gb_per_s=gb_per_s,
        workers=workers,
        ratio=workload.message(whole) / workload.compute_seconds,
        largest=max(workload.bytes) / whole,
        bound=workload.lower_bound_seconds(),
        plain=plain,
        tuned=tuned,
    )


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How far a policy is from the optimum of small workloads.

    Attributes:
        name: The policy, tuned with ``*``.
        barrier: Its optimizer steps once, so its optimum has a barrier.
        whole: Time over the optimum of whole layers minus one, of every workload.
        parts: The same over the optimum of layers in two parts each.
    """

    name: str
    barrier: bool
    whole: Sequence[float]
    parts: Sequence[float]


def random_workload(number: int) -> LayerWorkload:
    """Two to six layers with times (0.2 to 2 ms) and gradients (0.3 to 100 MB) at random."""
    draw = random.Random(number)
    layers = draw.randint(2, 6)
    forward = tuple(draw.uniform(2e-4, 2e-3) for _ in range(layers))
    return LayerWorkload(
        forward=forward,
        backward=tuple(2 * each for each in forward),
        bytes=tuple(10 ** draw.uniform(5.5, 8.0) for _ in range(layers)),
        bytes_per_second=draw.choice([5e9, 10e9, 20e9, 40e9]),
        message_seconds=draw.choice([0.0, 2e-5, 1e-4, 3e-4]),
    )


def steps_once(name: str) -> bool:
    """Whether a policy with defaults lets no layer run again before all gradients are summed."""
    two = LayerWorkload(forward=(1, 1), backward=(2, 2), bytes=(1e8, 1e8), bytes_per_second=1e8)
    return all(each.needed_by in ((), two.roots) for each in GRADIENTS[name].of().messages(two))


def optimum_gaps(count: int, names: Iterable[str] = GRADIENTS) -> list[Gap]:
    """Policies on random workloads beside the exact optimum of the same kind."""
    kinds = {name: GRADIENTS[name] for name in names}
    gaps: dict[str, tuple[list[float], list[float]]] = {}
    for number in range(count):
        workload = random_workload(number)
        # At most five layers have two parts each within what the search takes.
        twice = 2 if workload.layers <= 5 else 1
        best = {
            barrier: tuple(
                optimal_messages(workload, parts=parts, barrier=barrier).seconds for parts in (1, twice)
            )
            for barrier in (False, True)
        }
        for name, kind in kinds.items():
            policy = kind.of()
            for label, each in ((name, policy), (f"{name}*", kind.of(**policy.tune(workload)))):
                found = seconds_of(each, workload)
                whole, parts = gaps.setdefault(label, ([], []))
                optimum = best[steps_once(name)]
                whole.append(found / optimum[0] - 1)
                parts.append(found / optimum[1] - 1)
    return [
        Gap(
            name=label,
            barrier=steps_once(label.removesuffix("*")),
            whole=whole,
            parts=parts,
        )
        for label, (whole, parts) in gaps.items()
    ]
