"""Convert a recorded step to operations with their exchanges, and assign gradients to messages.

What the phases of its collectives take here is measured: each is run by itself, in two sizes, on its own channel.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.iteration.policies.whole.operations import (
    Channel,
    CollectivePhase,
    GraphOperation,
    OperationGraph,
)
from coppice.training.torch.core.agree import gathered, share_weights, tensors_of
from coppice.training.torch.core.measure import DeviceClock, now
from coppice.training.torch.whole.execution import NETWORK, exchange_operation, network_channels
from coppice.training.torch.whole.grids import PhaseGroups
from coppice.training.torch.whole.passes import SectionEntry
from coppice.training.torch.whole.sections import TensorParallelModule
from coppice.training.torch.whole.sharded import GradientBucket
from coppice.training.torch.whole.steps import (
    PIECE_SECONDS,
    RecordedSection,
    StepOperations,
    step_graph,
)
from coppice.training.torch.whole.templates import CollectiveBuffers, piece_steps

STEP_SECONDS = 1e-5
"""Starts of measured phases are multiples of it."""
_ROUNDS = 3
_PARTS = 16
"""The smaller size is so small a part of the larger one: as small as planners cut unless told otherwise. In between a
phase takes no longer than on the straight line, where what starts it is hidden by what it carries."""


def measured_channels(channels: Mapping[str, Channel]) -> dict[str, Channel]:
    """Channels with phase times in seconds."""
    return {name: Channel(start_seconds=STEP_SECONDS) for name in channels}


def measured_graph(
    graph: OperationGraph, work: Mapping[str, CollectiveBuffers], groups: PhaseGroups
) -> OperationGraph:
    """Task graph with measured times, equal on all ranks; collective over the ranks.

    Args:
        graph: Its collectives are those of ``work``; other operations stay, with amounts in seconds.
        work: The collectives; their tensors are not touched.
        groups: Where they run.
    """
    known: dict[Any, GraphOperation] = {}
    found = []
    for operation in graph.operations:
        buffers = work.get(operation.name)
        if buffers is None:
            found.append(operation)
            continue
        key = (buffers.collective, buffers.size_bytes, buffers.tensor.dtype, groups.of(buffers.group).rows)
        if key not in known:
            known[key] = measured_operation(operation, buffers, groups)
        found.append(replace(operation, decompositions=known[key].decompositions))
    channels = {
        name: replace(channel, units_per_second=1.0, start_seconds=STEP_SECONDS)
        for name, channel in graph.channels.items()
    }
    return OperationGraph(operations=tuple(found), channels=channels)


def measured_operation(
    operation: GraphOperation, buffers: CollectiveBuffers, groups: PhaseGroups
) -> GraphOperation:
    """Operation of a collective with the measured times of its phases.

    Args:
        buffers: Tensors like those that it will have.
    """
    output = None if buffers.output is None else torch.zeros_like(buffers.output)
    own = replace(buffers, tensor=torch.zeros_like(buffers.tensor), output=output)
    grid = groups.of(buffers.group)
    rows: list[tuple[CollectivePhase, str, tuple[int, ...]]] = []
    for label, decomposition in zip(operation.labels, operation.decompositions, strict=True):
        steps = piece_steps(own, label, grid, groups.rank)
        rows += [
            (phase, label, grid.part(groups.rank, step.role))
            for phase, step in zip(decomposition, steps, strict=True)
        ]
    device = buffers.tensor.device
    times = torch.zeros(_ROUNDS, 2, len(rows), dtype=torch.float64)
    for turn in range(-1, _ROUNDS):
        for size, pieces in enumerate((1, _PARTS)):
            at = 0
            for label in operation.labels:
                steps = piece_steps(own, label, grid, groups.rank, pieces=pieces)
                for step in steps:
                    phase, _, ranks = rows[at]
                    spent = _timed(step.run, groups.group(phase.channels[0], ranks), groups.parent, device)
                    if turn >= 0:
                        times[turn, size, at] = spent
                    at += 1
    shared = times.to(device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=groups.parent)
    seconds = [
        [statistics.median(float(each[size, at]) for each in shared) for size in range(2)]
        for at in range(len(rows))
    ]
    made = iter(zip(rows, seconds, strict=True))
    decompositions = tuple(
        tuple(_of_times(*next(made)) for _ in decomposition) for decomposition in operation.decompositions
    )
    return replace(operation, decompositions=decompositions)


def _of_times(row: tuple[CollectivePhase, str, tuple[int, ...]], seconds: list[float]) -> CollectivePhase:
    """A phase by its time for the whole and for a small part."""
    whole, part = seconds
    amount = max((whole - part) * _PARTS / (_PARTS - 1), 0.0)
    starts = max(1, round((whole - amount) / STEP_SECONDS))
    return replace(row[0], amount=amount, starts=starts)


def _timed(
    run: Any, group: dist.ProcessGroup, everyone: dist.ProcessGroup | None, device: torch.device
) -> float:
    dist.barrier(group=everyone)
    begin = now()
    run(group)
    return DeviceClock(device).now() - begin


class RecordedStep(NamedTuple):
    """Recorded data of a step."""

    # Seconds of each operation that computes, by name, and of what a piece costs beside its share (`piece`)
    times: dict[str, float]
    # Places of the parameters, among those that ranks have alike, whose gradients came before the turn
    ready: list[int]
    elements: list[int]  # Elements of the sum of each section


@dataclass(frozen=True, eq=False)
class StepLayout:
    """Operations of a step, and the gradients of each message."""

    operations: StepOperations
    means: Mapping[int, GradientBucket]


class SectionModel:
    """A model of sections, initialised equally on all ranks.

    Args:
        model: The model.
        groups: Where collectives run.
        data: The ranks with the same share; None: all.
        network: Figures of the channels; None: measured when steps are recorded.
        beside: Gradients of weights are computed during all-reduces of input gradients.
        shard: Every replica keeps a part of the weights of sections.
        ahead: Sections whose weights may be gathered before the one that computes is over.

    Raises:
        InputError: If there are no sections, ranks differ, or groups are missing.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: PhaseGroups,
        data: dist.ProcessGroup | None,
        network: Mapping[str, tuple[float, float]] | None,
        *,
        beside: bool,
        shard: bool = False,
        ahead: int = 1,
    ) -> None:
        self.entries = section_entries(model, data)  # Its sections
        self._ahead = ahead
        self._groups, self._data, self._beside = groups, data, beside
        self._measured = network is None
        self.channels = network_channels(network or NETWORK)
        self._known: dict[Any, GraphOperation] = {}
        self.device = next(model.parameters()).device
        own = {id(p) for each in self.entries for p in each.section.inner.parameters()}
        # Names and parameters that all ranks have alike
        self.alike = [(n, p) for n, p in model.named_parameters() if p.requires_grad and id(p) not in own]
        self._start(model, own)
        replicas = len(groups.of(data).ranks)
        self._buckets: list[GradientBucket | None] = []
        for each in self.entries:
            if each.trained and shard and replicas > 1:
                each.shard(data)
            whole = GradientBucket(each.trained, replicas) if each.trained and each.sharded is None else None
            self._buckets.append(each.sharded or whole)

    def _start(self, model: nn.Module, own: set[int]) -> None:
        """Broadcast weights, and check that all ranks have the same sections."""
        told = [
            [each.name for each in self.entries],
            [(n, list(p.shape), str(p.dtype)) for n, p in model.named_parameters()],
        ]
        for rank, other in enumerate(gathered(told, None)):
            if other != told:
                raise InputError(
                    f"expected the same sections and parameters on all ranks, found others on rank {rank}: build the "
                    "model alike on all."
                )
        first = self._groups.of(self._data).ranks[0]
        of_sections = [each for each in tensors_of(model) if id(each) in own]
        share_weights(of_sections, first, self._data)
        share_weights([each for each in tensors_of(model) if id(each) not in own], 0, None)

    def plain(self) -> StepLayout:
        """Layout before recording: no times, and one bucket."""
        return self._laid_out(RecordedStep({}, [], [0 for _ in self.entries]), measure=False)

    def layout(self, record: RecordedStep, *, measure: bool = True) -> StepLayout:
        """Layout of a recorded step.

        Args:
            measure: Time phases now, unless figures of the network were given; every rank does.
        """
        if len(record.elements) != len(self.entries):
            raise InputError(
                f"expected a step of {len(self.entries)} sections, found one of {len(record.elements)}: it is of "
                "another model."
            )
        return self._laid_out(record, measure=measure and self._measured)

    def _laid_out(self, record: RecordedStep, *, measure: bool) -> StepLayout:
        if measure:
            self.channels = measured_channels(self.channels)
        chosen, times = set(record.ready), record.times
        buckets: list[GradientBucket | None] = []
        for wanted in (True, False):
            row = [p for at, (_, p) in enumerate(self.alike) if (at in chosen) == wanted]
            buckets.append(GradientBucket(row, len(self._groups.grid.ranks), shared=False) if row else None)
        alike = [None if bucket is None else self._exchange(bucket, measure=measure) for bucket in buckets]
        kinds: dict[Any, str] = {}
        sections = []
        for each, elements, bucket in zip(self.entries, record.elements, self._buckets, strict=True):
            sums = gradients = gather = None
            if each.section.group is not None:
                tensor = torch.empty(elements, dtype=each.dtype, device=self.device)
                sums = self._operation(
                    CollectiveBuffers("all_reduce", tensor, group=each.section.group), measure=measure
                )
            if bucket is not None and len(self._groups.of(self._data).ranks) > 1:
                gradients = self._exchange(bucket, measure=measure)
            if each.sharded is not None:
                gather = self._operation(each.sharded.gather_buffers(), measure=measure)
            word = type(each.section.inner).__name__
            key = word, elements, gradients.size_bytes if gradients else 0, sums is None
            kinds.setdefault(key, f"{word} {len(kinds)}")
            parts = ("forward", "backward", "weights", "norm")
            sections.append(
                RecordedSection(
                    name=each.name,
                    kind=kinds[key],
                    sums=sums,
                    gradients=gradients,
                    gather=gather,
                    before=times.get(f"before {each.name}", 0.0),
                    **{part: times.get(f"{each.name} {part}", 0.0) for part in parts},
                )
            )
        operations = step_graph(
            sections,
            self.channels,
            turn=times.get("turn", 0.0),
            end=times.get("end", 0.0),
            piece=max(times.get("piece", 0.0), PIECE_SECONDS),
            early=alike[0],
            late=alike[1],
            beside=self._beside,
            ahead=self._ahead,
        )
        means = {
            operation: bucket
            for operation, bucket in [
                *(
                    (own.gradients, bucket)
                    for own, bucket in zip(operations.sections, self._buckets, strict=True)
                ),
                (operations.early, buckets[0]),
                (operations.late, buckets[1]),
            ]
            if operation >= 0 and bucket is not None
        }
        return StepLayout(operations, means)

    def _exchange(self, bucket: GradientBucket, *, measure: bool) -> GraphOperation:
        group = self._data if bucket.shared else None
        return self._operation(bucket.buffers(group), measure=measure)

    def _operation(self, buffers: CollectiveBuffers, *, measure: bool) -> GraphOperation:
        made = exchange_operation(buffers.collective, buffers, self._groups, self.channels)
        grid = self._groups.of(buffers.group)
        if not measure or len(grid.ranks) < 2:
            return made
        key = buffers.collective, buffers.size_bytes, buffers.tensor.dtype, grid.nodes, grid.ranks_of_node
        if key not in self._known:
            self._known[key] = measured_operation(made, buffers, self._groups)
        return self._known[key]


def section_entries(model: nn.Module, data: dist.ProcessGroup | None) -> list[SectionEntry]:
    """Sections of a model."""
    found = [
        SectionEntry(name=name or "model", section=each)
        for name, each in model.named_modules()
        if isinstance(each, TensorParallelModule)
    ]
    if not found:
        raise InputError(
            "expected a model with TensorParallelModule parts, found none: wrap attention and perceptrons of layers."
        )
    seen: set[int] = set()
    for each in found:
        own = [p for p in each.section.inner.parameters() if p.requires_grad]
        if seen & {id(p) for p in own}:
            raise InputError(
                f"expected parameters in one section each, found some of {each.name} in another: share none."
            )
        seen |= {id(p) for p in own}
        each.trained = own
    outside = [each for each in found if each.section.group is not None]
    if outside and data is None and dist.get_world_size() > 1:
        raise InputError(
            f"expected the `data` group, of the ranks that have the same share, found none: {outside[0].name} is "
            "shared among ranks."
        )
    return found
