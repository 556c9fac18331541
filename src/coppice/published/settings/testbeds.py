"""Workloads of testbeds, and what an iteration of a policy takes on them.

A ring of all GPUs crosses the NIC of every machine once each way, so that x bytes take 2 (n - 1) / n x / B there, with
a NIC for each GPU a share of that; and 2 (n - 1) hops, of which those between machines are the slower ones. Servers on
the machines get what other machines push, (N - 1) / N x of each of N machines, whose GPUs were summed before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import mean

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.machine import box_of
from coppice.iteration.models import any_model
from coppice.iteration.policies.catalogue import policy_named
from coppice.iteration.policies.policy import Policy
from coppice.iteration.step.workloads import steady_iteration
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel, vgg
from coppice.iteration.workload.single import single_workload
from coppice.iteration.workload.times import layer_workload
from coppice.published.settings.records import PolicyRun, Testbed

__all__ = ["run_seconds", "workload_on"]

_CLASSES = 1000
"""Classes of nets as they are named."""


def workload_on(bed: Testbed, model: str, gb_per_s: float) -> LayerWorkload:
    """Workload of a testbed with one of its models and rates.

    Examples:
        >>> bed = Testbed(models=["resnet-50"], device="P4000", samples=32, boxes=4, gb_per_s=[8])
        >>> found = workload_on(bed, "resnet-50", 8)
        >>> found.workers, round(found.message(1e9), 6)
        (4, 1.5)
    """
    gpus, boxes = bed.boxes * bed.gpus, bed.boxes
    rate = min(gb_per_s, bed.most_gb_per_s or gb_per_s) * 1e9 / 8
    if not bed.shared_nic:
        rate *= bed.gpus
    if bed.transport == "ring":
        carried = rate * gpus / (2 * (gpus - 1))
        once = 2e-6 * (boxes * bed.hop_us + (gpus - boxes) * bed.near_hop_us) * (gpus - 1) / gpus
    else:
        carried, once = rate if bed.dedicated else rate * boxes / (boxes - 1), 1e-6 * bed.hop_us
    found = replace(
        _computed(
            model, bed.device, bed.precision, bed.batches.get(model, bed.samples), bed.classes, bed.seq
        ),
        bytes_per_second=carried,
        message_seconds=once,
        round_trip_seconds=1e-6 * bed.round_trip_us,
        workers=gpus,
    )
    if bed.gradient_bytes is None:
        return found
    share = bed.gradient_bytes / found.element_bytes
    return replace(found, bytes=tuple(share * each for each in found.bytes), element_bytes=bed.gradient_bytes)


@cache
def _computed(model: str, device: str, precision: str, samples: int, classes: int, seq: int) -> LayerWorkload:
    """Workload whose network is not known yet."""
    named = any_model(model)
    if classes != _CLASSES and isinstance(named, LayeredModel):
        named = vgg(int(model.removeprefix("vgg-")), classes=classes)
    if seq and isinstance(named, Transformer):
        named = replace(named, seq=seq)
    if precision == "single":
        found = single_workload(named, device, workers=2, samples=samples, bytes_per_second=1.0)
    else:
        found = layer_workload(
            named, box_of(device), workers=2, samples=samples, bytes_per_second=1.0, message_seconds=0.0
        )
        found = replace(found, element_bytes=named.gradient_bytes if isinstance(named, LayeredModel) else 2.0)
    if not isinstance(named, LayeredModel):
        return found
    shapes = [each.products[0] if len(each.products) == 1 else None for each in named.row]
    return replace(
        found,
        samples=samples,
        matrices=tuple((int(each.k), int(each.n)) if each and each.rows == 1 else None for each in shapes),
    )


def run_seconds(run: PolicyRun, workload: LayerWorkload, workers: int) -> float:
    """Time of an iteration under a policy in the long run.

    Args:
        run: The policy.
        workload: The workload.
        workers: Workers that draw an order each where it is random.
    """
    kind = policy_named(run.policy)
    if not run.draws:
        policy = kind.of(**run.with_)
        return _seconds(kind.of(**policy.tune(workload)) if run.tuned else policy, workload)
    found = [
        _seconds(kind.of(**{**run.with_, "seed": seed}), workload) for seed in range(run.draws * workers)
    ]
    return mean(max(found[number :: run.draws]) for number in range(run.draws))


def _seconds(policy: Policy, workload: LayerWorkload) -> float:
    return steady_iteration(lambda count: policy.iterations(workload, count)).seconds
