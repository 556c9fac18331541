"""From the first iterations of a training to a plan: what they show becomes the workload that simulations take.

Until there is a plan all gradients are summed after the backward pass, as a plain program would. One forward pass is
watched for who reads which parameter, the others are timed; rank 0's times count, so that all ranks plan alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.ddp import Bucketed
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.training.torch.ordering.weight_gradients import DeferredGradients
from coppice.training.torch.overlap.factors import LinearFactors
from coppice.training.torch.overlap.network import measure_network
from coppice.training.torch.overlap.planning import LaunchPlan, launch_plan, recorded_workload
from coppice.training.torch.overlap.recording import IterationTimes, Readers
from coppice.training.torch.overlap.streams import Streams
from coppice.training.torch.overlap.uncompiled import uncompiled

_RECORDED = "schedule() times the first iterations: the graph is whole when they are over"


class Recorder:
    """The iterations that are recorded.

    Args:
        model: The model.
        trained: Its trained tensors.
        streams: Where collectives run.
        network: Bytes per second and seconds per message of an all-reduce; None: measured now.
        recorded: Iterations that are recorded; the first is not timed.
        factors: What looks whether gradients are products.
        weights: What makes gradients of weights apart.
        watch: Takes over, after the first forward pass, who reads what.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Sequence[nn.Parameter],
        streams: Streams,
        *,
        network: tuple[float, float] | None,
        recorded: int,
        factors: LinearFactors | None,
        weights: DeferredGradients | None,
        watch: Callable[[Readers], None],
    ) -> None:
        self.workload: LayerWorkload | None = None  # What was recorded; None while it is recorded
        self.tensors: tuple[int, ...] = ()  # Place of each layer's tensor in the workload
        self._model, self._trained, self._streams = model, trained, streams
        self._factors, self._weights = factors, weights
        self._watch, self._recorded = watch, recorded
        device = trained[0].device
        self._network = network or measure_network(streams.group("network"), device)
        self._times = IterationTimes(len(trained), _synchronizer(device))
        self._readers: Readers | None = None
        self._read_order: list[int] = []
        self._arrival: list[int] = []
        self._iteration = 0

    @property
    def active(self) -> bool:
        """Iterations are still recorded."""
        return self.workload is None

    def first_plan(self, policy: DataParallelPolicy, *, whole: bool) -> LaunchPlan:
        """All messages when the backward pass is over: one; DDP's first buckets, and chunks where they are chosen.

        Args:
            whole: Whole gradients are sent, not chosen chunks.
        """
        count = len(self._trained)
        sizes = tuple(float(p.numel() * p.element_size()) for p in self._trained)
        work = LayerWorkload(
            forward=(0.0,) * count,
            backward=(0.0,) * count,
            bytes=sizes,
            bytes_per_second=1.0,
            dtypes=tuple(str(p.dtype) for p in self._trained),
            workers=len(self._streams.ranks),
        )
        first = Bucketed.of(first_iteration=True)
        if isinstance(policy, Bucketed):
            return launch_plan(first, work, range(count))
        every = tuple(range(count))
        messages = tuple(
            replace(message, seconds=0.0, layers=every, carries=message.gradients)
            for message in (first if whole else policy).messages(work)
        )
        order = {"network": tuple(range(len(messages)))}
        return LaunchPlan(messages=messages, tensors=every, order=order, scope=UpdateScope.BARRIER)

    @uncompiled(_RECORDED)
    def model_starts(self) -> None:
        """A forward pass with gradients starts."""
        if self._iteration == 0 and self._readers is None:
            self._readers = Readers(self._model, self._trained)
            self._readers.__enter__()
        elif self.active:
            self._times.begin_forward()

    @uncompiled(_RECORDED)
    def model_ends(self) -> None:
        """A forward pass with gradients is over; after the first one it is known who reads what."""
        if self._iteration == 0 and self._readers is not None and not self._read_order:
            self._readers.__exit__(None, None, None)
            self._read_order = self._readers.order
            self._watch(self._readers)
            if self._weights is not None:
                self._weights.watch(self._model, self._readers.modules)
        elif self.active:
            self._times.end_forward()

    @uncompiled(_RECORDED)
    def read(self, places: Sequence[int]) -> None:
        """A module that reads some tensors starts."""
        self._times.read(places)

    def begin_backward(self) -> None:
        """A backward pass starts."""
        self._arrival = []

    def arrived(self, place: int) -> None:
        """Autograd has made a gradient."""
        self._times.arrive(place)
        if self._weights is not None:
            self._weights.arrived(place)
        self._arrival.append(place)

    def end_backward(self, policy: DataParallelPolicy) -> bool:
        """A backward pass is over; whether there is a plan to be made.

        DDP builds its buckets anew after the first iteration, of which the order of gradients is all that it needs.
        """
        if self._iteration:
            self._times.end_backward()
        self._iteration += 1
        return bool(self._read_order) and (
            self._iteration >= self._recorded or (self._iteration == 1 and isinstance(policy, Bucketed))
        )

    def agree(self, policy: DataParallelPolicy) -> LayerWorkload:
        """The workload as rank 0 has recorded it so far; layers are tensors, in the order that suits the policy."""
        group = self._streams.group("network")
        forward, backward = self._times.seconds()
        weights = None if self._weights is None else self._weights.times()
        told: list[Any] = [(forward, backward, weights, self._arrival, self._in_turn())]
        dist.broadcast_object_list(told, src=self._streams.ranks[0], group=group)
        forward, backward, weights, ready, read = told[0]
        barrier = policy.update_scope is UpdateScope.BARRIER
        self.tensors = tuple(reversed(ready)) if barrier else tuple(read)
        rows = {} if self._factors is None else self._factors.agreed_rows(group)
        workload = recorded_workload(
            [self._trained[place] for place in self.tensors],
            forward=[forward[place] for place in self.tensors],
            backward=[backward[place] for place in self.tensors],
            network=self._network,
            workers=len(self._streams.ranks),
            rows=[rows.get(place) for place in self.tensors],
        )
        if weights is not None:
            workload = replace(
                workload,
                weight_backward=tuple(min(weights.seconds[each], backward[each]) for each in self.tensors),
                separable=tuple(weights.separable[each] for each in self.tensors),
            )
        if self._iteration >= self._recorded:
            self.workload = workload
        return workload

    def _in_turn(self) -> list[int]:
        """Tensors as the forward pass reads them, those of one module against the order of their gradients."""
        assert self._readers is not None
        readers, arrived = self._readers.modules, {place: turn for turn, place in enumerate(self._arrival)}
        return [
            place
            for _, alike in groupby(self._read_order, key=lambda each: [id(one) for one in readers[each]])
            for place in sorted(alike, key=lambda each: -arrived.get(each, 0))
        ]


def _synchronizer(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
