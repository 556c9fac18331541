"""Plan of a pipeline policy for real stages: passes of devices, messages, and updates of stages.

The policy is the object that simulation runs; a layer of its workload is a stage, or a half of one where the embedding
goes by itself. Times of its passes, and of the network between ranks, are recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.pipeline.torch_csv import check_ends
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.pipelined.policy import ChunkedOptions, Pipelined, dealt, stage_messages
from coppice.iteration.policies.pipelined.trirace import TriRace
from coppice.iteration.step.passes import StepGraph
from coppice.iteration.step.plan import Message
from coppice.iteration.step.workloads import stages_graph, steady_iteration
from coppice.training.torch.core.agree import gathered
from coppice.training.torch.core.measure import BACKWARD, FORWARD, StepRecord, measure_network, median_seconds
from coppice.training.torch.pipelined.channels import PipelineLayout

_NAMES = sorted({name for name, each in POLICIES.items() if issubclass(each, Pipelined)} | set(ORDERS))


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """Plan executed by every rank."""

    # Passes of devices; of an asynchronous pipeline those of one group, as if it drained
    order: PipelineOrder
    messages: tuple[Message, ...]  # Messages with gradients
    barrier: bool  # All stages are updated at the end of an iteration; otherwise each before it runs again
    staleness: int  # Iterations by which gradients are late
    classes: bool  # More urgent traffic goes first
    delayed: bool  # Sums are awaited when a stage is updated; otherwise when they are launched
    iterations: Callable[[int], StepGraph]  # Tasks of so many iterations in simulation

    def parts(self) -> list[tuple[Fraction, Fraction]]:
        """Shares of a stage's gradients of a class at which each message begins and ends."""
        alike: dict[tuple[int | None, int], list[int]] = {}
        for number, each in enumerate(self.messages):
            alike.setdefault((each.stage, each.priority), []).append(number)
        found: dict[int, tuple[Fraction, Fraction]] = {}
        for numbers in alike.values():
            row = sorted(numbers, key=lambda each: self.messages[each].offset_bytes)
            sizes = [Fraction(self.messages[each].size_bytes) for each in row]
            ends = [sum(sizes[: at + 1], Fraction(0)) / sum(sizes) for at in range(len(row))]
            found |= dict(zip(row, itertools.pairwise([Fraction(0), *ends]), strict=True))
        return [found[number] for number in range(len(self.messages))]

    def predicted_seconds(self) -> float:
        """Simulated steady-state time of an iteration."""
        return steady_iteration(self.iterations).seconds


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Measured costs of stages."""

    forward: Sequence[float]  # Seconds of the forward pass of each over a micro-batch
    backward: Sequence[float]  # Seconds of its backward pass
    weight: Sequence[float] = ()  # Seconds of those that gradients of weights take; empty: half
    bytes: Sequence[float] = ()  # Bytes of its gradients that are summed over replicas
    network: tuple[float, float] = (1e9, 0.0)  # Bytes per second and seconds per message of a sum
    transfer: float = 0.0  # Seconds until another device has what a stage gives
    # Bytes of the embedding of the first stage, within its bytes, where it goes by itself
    embedding_bytes: float = 0.0
    touched: float = 0.5  # Share of its rows that a replica touches in an iteration


def stage_workload(costs: StageCosts, replicas: int) -> LayerWorkload:
    """Workload with a layer per stage; two where the embedding is separate, the first of them of zero time.

    Args:
        replicas: Replicas of the pipeline; one sums nothing.
    """
    sizes = [float(size) if replicas > 1 else 0.0 for size in costs.bytes]
    columns = [list(costs.forward), list(costs.backward), sizes, list(costs.weight)]
    if costs.embedding_bytes:
        pairs = [[value for each in column for value in (0.0, each)] for column in columns]
        pairs[2][0] = float(costs.embedding_bytes) if replicas > 1 else 0.0
        pairs[2][1] -= pairs[2][0]
        columns = pairs
    rate, message = costs.network
    return LayerWorkload(
        forward=tuple(columns[0]),
        backward=tuple(columns[1]),
        bytes=tuple(columns[2]),
        weight_backward=tuple(columns[3]),
        bytes_per_second=rate,
        message_seconds=message,
        workers=max(replicas, 1),
    )


def pipeline_plan(
    order: str | PipelineOrder,
    settings: Mapping[str, Any],  # Options of a policy beside those that the training has
    workload: LayerWorkload,  # Times and bytes of the stages
    *,
    devices: int,
    stages: int,
    micro_batches: int,
    transfer_seconds: float,  # Seconds until another device has what a stage gives
) -> PipelinePlan:
    """Plan of a pipeline order or policy.

    Examples:
        >>> work = stage_workload(StageCosts(forward=(1, 1), backward=(2, 2), bytes=(8, 8)), 2)
        >>> plan = pipeline_plan(
        ...     "1f1b", {}, work, devices=2, stages=2, micro_batches=2, transfer_seconds=0
        ... )
        >>> round(plan.predicted_seconds(), 6), [str(each) for each in plan.order.devices[1]]
        (9.0, ['1F0', '1B0', '1F1', '1B1'])
    """
    policy = POLICIES.get(order) if isinstance(order, str) else None
    if policy is not None and issubclass(policy, Pipelined):
        own: dict[str, Any] = {
            "stages": devices,
            "micro_batches": micro_batches,
            "transfer_seconds": transfer_seconds,
        }
        if issubclass(policy.options, ChunkedOptions):
            own["chunks"] = max(1, stages // devices)
        taken = [
            name for name in settings if name in ("stages", "micro_batches", "transfer_seconds", "chunks")
        ]
        if taken:
            raise InputError(
                f"expected options of {order} that the stages do not say, found `{taken[0]}`: leave it out."
            )
        found = policy.of(**own, **settings)
        passes = found.order(workload)
        _require(passes, order, devices, stages)
        return PipelinePlan(
            order=passes,
            messages=tuple(found.messages(workload)),
            barrier=found.barrier,
            staleness=found.staleness,
            classes=isinstance(found, TriRace) and found.settings.classes,
            delayed=not isinstance(found, TriRace) or found.settings.delayed,
            iterations=lambda count: found.iterations(workload, count),
        )
    if settings:
        raise InputError(
            f"expected no options of an order that is no policy, found `{next(iter(settings))}`."
        )
    if isinstance(order, str) and order not in ORDERS:
        raise InputError(f"expected the order of a pipeline ({', '.join(_NAMES)}), found {order!r}.")
    passes = (
        ORDERS[order](devices, micro_batches, max(1, stages // devices)) if isinstance(order, str) else order
    )
    _require(passes, order if isinstance(order, str) else "the order", devices, stages)
    if passes.micro_batches != micro_batches:
        raise InputError(
            f"expected an order of {micro_batches} micro-batches, found one of {passes.micro_batches}."
        )
    times = dealt(workload, passes.stages, transfer_seconds=transfer_seconds)
    return PipelinePlan(
        order=passes,
        messages=tuple(stage_messages(workload, passes.stages)),
        barrier=True,
        staleness=0,
        classes=False,
        delayed=True,
        iterations=lambda count: stages_graph(passes, times, count),
    )


def _require(order: PipelineOrder, name: object, devices: int, stages: int) -> None:
    if len(order.devices) != devices or order.stages != stages:
        raise InputError(
            f"expected stages for {name} on {devices} devices, which has {order.stages} on {len(order.devices)}, found "
            f"{stages}: give another number of stages."
        )
    check_ends(order)


def gathered_costs(
    layout: PipelineLayout,
    record: StepRecord,  # Passes of this device, by stage and what they do
    # For each stage of this device bytes of its gradients, of its embedding, and the share of rows touched
    own: Mapping[int, tuple[float, float, float]],
    *,
    stages: int,
    device: torch.device,
    network: tuple[float, float] | None,  # Bytes per second and seconds per message of a sum; None: measured
    transfer: Callable[[], float],  # Measures how long it takes until another device has what a stage gives
) -> StageCosts:
    """Costs of stages as measured by the first replica, equal on all ranks."""
    if network is None:
        network = measure_network(layout.replica_group, device) if layout.replicas > 1 else (1e9, 0.0)
    seconds = median_seconds(record.all_events(), FORWARD, BACKWARD)
    said = gathered((seconds, dict(own), network, transfer()), layout.everyone)
    everyone = dist.get_process_group_ranks(layout.everyone)
    row = [said[everyone.index(rank)] for rank in layout.rows[0]]
    medians = {key: value for each in row for key, value in each[0].items()}
    sizes = {stage: value for each in row for stage, value in each[1].items()}
    forward, backward, weight = [], [], []
    for stage in range(stages):
        forward.append(medians.get((stage, Work.FORWARD), 0.0))
        parts = medians.get((stage, Work.WEIGHT))
        whole = medians.get((stage, Work.BACKWARD))
        if parts is not None:
            halves = medians.get((stage, Work.INPUT), 0.0) + parts
            whole = halves if whole is None else whole
            weight.append(min(parts, whole))
        else:
            weight.append((whole or 0.0) / 2)
        backward.append(whole or 0.0)
    return StageCosts(
        forward=forward,
        backward=backward,
        weight=weight,
        bytes=[sizes[stage][0] for stage in range(stages)],
        network=row[0][2],
        transfer=max(each[3] for each in row),
        embedding_bytes=sizes[0][1],
        touched=sizes[0][2],
    )
