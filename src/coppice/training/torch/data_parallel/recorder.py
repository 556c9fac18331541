"""Record the first iterations of a training as a workload, and plan it.

Until there is a plan all gradients are summed after the backward pass, as a plain program would. One forward pass is
watched for who reads which parameter, the others are timed; rank 0's times count, so that all ranks plan alike.

A parameter may be updated late only if whoever reads it waits. Its owner is not always who reads it (tied weights are
read by another module), so the watched pass runs under a mode that sees every operation with its arguments, and the
innermost module at that time is the reader. What no operation was seen to read is taken to be read at the start. In
timed passes a module's turn is from its start to that of the next reader, and a gradient's time is from the gradient
before it. The group's network is timed with all-reduces of two sizes: a cost per message and per byte.

Ranks that pick by themselves what is ready and most urgent pick differently, and collectives that do not meet hang. So
a plan is one launch order, equal on all ranks and made beforehand: the policy's messages are simulated on the recorded
times of rank 0, and each stream launches them in the order in which they start there. A message still waits for its
gradients, for what it comes after, and for credit; only the choice among several is made. The simulation respected what
messages wait for, so a rank that launches in its order cannot wait for itself.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import BASELINES, policy_named
from coppice.iteration.policies.data_parallel.ddp import Bucketed
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.step.plan import Message
from coppice.iteration.step.workloads import steady_iteration
from coppice.iteration.tasks import run_tasks
from coppice.training.torch.core.agree import broadcast_from_first
from coppice.training.torch.core.measure import (
    BOUNDARY,
    GRADIENT,
    READ,
    DeviceClock,
    StepRecord,
    measure_network,
    whats,
)
from coppice.training.torch.core.optimizer import uncompiled
from coppice.training.torch.core.streams import Streams
from coppice.training.torch.data_parallel.ooo import DeferredGradients
from coppice.training.torch.data_parallel.poseidon import LinearFactors

_ITERATIONS = 4  # simulated; what is launched in the last but one is the order


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Messages of an iteration with their launch order."""

    messages: tuple[Message, ...]  # The messages; a layer is a tensor, by its number in `tensors`
    tensors: tuple[int, ...]  # Place of each numbered tensor in the list of all trained ones
    # Numbers of the messages of each stream, in the order in which they are launched
    order: Mapping[str, tuple[int, ...]]
    scope: UpdateScope  # What must be summed before a tensor is updated
    predicted_seconds: float = 0.0  # Time of an iteration by the simulation; 0 where nothing was simulated


def data_parallel_policy(name: str, settings: Mapping[str, object]) -> DataParallelPolicy:
    """Look up a data-parallel policy with its options."""
    found = policy_named(name).of(**settings)
    if not isinstance(found, DataParallelPolicy) or name in BASELINES:
        raise InputError(
            f"expected a policy that decides about gradients alone, found {name!r}: take ddp, bytescheduler, dear, p3, "
            "pace, priority, ooo, tictac, gradientflow, poseidon, jia, mg-wfbp, wfbp or serial."
        )
    return found


def recorded_workload(
    tensors: Sequence[torch.Tensor],
    *,
    forward: Sequence[float],
    backward: Sequence[float],
    network: tuple[float, float],  # Bytes per second and seconds per message
    workers: int,
    # Rows of the factors of each layer that may go by them. A workload has one number of rows: that of most
    # elements; layers with another are no matrices in it.
    rows: Sequence[int | None],
) -> LayerWorkload:
    """Workload of a recorded model, with tensors as layers."""
    elements: Counter[int] = Counter()
    kind = tensors[0].element_size()
    for tensor, own in zip(tensors, rows, strict=True):
        if own is not None and tensor.element_size() == kind:
            elements[own] += tensor.numel()
    samples = max(elements, key=lambda each: (elements[each], each)) if elements else 1
    matrices = tuple(
        (tensor.shape[0], tensor.shape[1]) if own == samples and tensor.element_size() == kind else None
        for tensor, own in zip(tensors, rows, strict=True)
    )
    rate, message = network
    return LayerWorkload(
        forward=tuple(forward),
        backward=tuple(backward),
        bytes=tuple(float(each.numel() * each.element_size()) for each in tensors),
        bytes_per_second=rate,
        message_seconds=message,
        workers=workers,
        matrices=matrices if elements else (),
        samples=samples,
        element_bytes=float(kind),
        dtypes=tuple(str(each.dtype) for each in tensors),
    )


def launch_plan(policy: DataParallelPolicy, workload: LayerWorkload, tensors: Sequence[int]) -> LaunchPlan:
    """Messages of a policy in the launch order of a simulated steady iteration.

    Args:
        tensors: Place of each of them among all trained ones.

    Examples:
        >>> from coppice.iteration.policies.data_parallel.priority import Priority
        >>> work = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> launch_plan(Priority.of(partition_bytes=4), work, (0, 1, 2)).order
        {'network': (0, 3, 2, 1)}
    """
    messages = tuple(policy.messages(workload))
    made = policy.iterations(workload, _ITERATIONS)
    times = run_tasks(made.graph)
    tasks = list(made.last[_ITERATIONS - 2])[len(made.last[_ITERATIONS - 2]) - len(messages) :]
    start = [float(times.start[task]) for task in tasks]
    order: dict[str, list[int]] = {}
    for number in sorted(range(len(messages)), key=lambda each: (start[each], messages[each].priority, each)):
        order.setdefault(messages[number].stream, []).append(number)
    return LaunchPlan(
        messages=messages,
        tensors=tuple(tensors),
        order={stream: tuple(numbers) for stream, numbers in order.items()},
        scope=policy.update_scope,
        predicted_seconds=steady_iteration(lambda count: policy.iterations(workload, count)).seconds,
    )


class Readers(TorchFunctionMode):
    """Trace of a forward pass.

    Args:
        model: The model.
        parameters: Its trained parameters.

    Attributes:
        order: Parameters in the order in which they were first read; those that were not come first.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self._place = {id(parameter): place for place, parameter in enumerate(parameters)}
        # Modules that read each parameter, in the order in which they first did; their owners are among them
        self.modules: list[list[nn.Module]] = [[] for _ in parameters]
        self._first: list[int] = []
        self._stack: list[nn.Module] = [model]
        self._hooks: list[RemovableHandle] = []
        self._model = model
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                place = self._place.get(id(parameter))
                if place is not None:
                    self.modules[place].append(module)

    def __enter__(self) -> Readers:
        """Start tracing."""
        for module in self._model.modules():
            self._hooks.append(
                module.register_forward_pre_hook(lambda entered, _: self._stack.append(entered))
            )
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: object) -> None:
        """Stop tracing."""
        super().__exit__(*reason)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        unread = [place for place in range(len(self.modules)) if place not in set(self._first)]
        self.order = [*unread, *self._first]
        for place in unread:
            self.modules[place].append(self._model)

    def _leave(self, *_: object) -> None:
        self._stack.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record the parameters that an operation reads."""
        del types
        for leaf in tree_leaves((args, kwargs)):
            place = self._place.get(id(leaf))
            if place is None:
                continue
            if place not in self._first:
                self._first.append(place)
            reader = self._stack[-1]
            if all(each is not reader for each in self.modules[place]):
                self.modules[place].append(reader)
        return func(*args, **(kwargs or {}))


def tensor_times(record: StepRecord, count: int) -> tuple[list[float], list[float]]:
    """Median forward and backward time of each tensor, 0 for unseen ones.

    A tensor's forward time is from when a module that reads it starts to when that of the next one does; its backward
    time from the gradient before it to its own. What lies between iterations (the optimizer's step, the next batch)
    counts as forward time of the first one.

    Args:
        record: Reads, boundaries and gradients of iterations; steps without one of them do not count.
        count: Number of trained tensors.
    """
    forward: list[list[float]] = [[] for _ in range(count)]
    backward: list[list[float]] = [[] for _ in range(count)]
    first: int | None = None
    for step in record.steps:
        reads: dict[int, float] = {}
        for each in step:
            if each.kind == READ:
                reads.setdefault(each.what, each.begin)
        turn = next((each.begin for each in reversed(step) if each.kind == BOUNDARY), None)
        made = [each for each in step if each.kind == GRADIENT]
        if not reads or not made or turn is None:
            continue
        first = next(iter(reads))
        starts = [step[0].begin, *[*reads.values()][1:], turn]
        for place, (start, end) in zip(reads, itertools.pairwise(starts), strict=True):
            forward[place].append(end - start)
        for each, before in zip(made, [turn, *(each.begin for each in made)], strict=False):
            backward[each.what].append(each.begin - before)
    medians = [[statistics.median(times) if times else 0.0 for times in each] for each in (forward, backward)]
    if first is not None:
        medians[0][first] += record.between_seconds()
    return medians[0], medians[1]


_RECORDED = "schedule() times the first iterations: the graph is whole when they are over"


class Recorder:
    """Recording of the first iterations.

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
        self._record = StepRecord(DeviceClock(device))
        self._readers: Readers | None = None
        self._read_order: list[int] = []
        self._iteration = 0

    @property
    def active(self) -> bool:
        """Whether iterations are being recorded."""
        return self.workload is None

    def first_plan(self, policy: DataParallelPolicy, *, whole: bool) -> LaunchPlan:
        """Initial plan: a message for each type after the backward pass, DDP's first buckets, or chosen chunks.

        Args:
            whole: Whole gradients are sent, not chosen chunks.
        """
        every = tuple(range(len(self._trained)))
        if isinstance(policy, Bucketed):
            return launch_plan(Bucketed.of(first_iteration=True), self._untimed(), every)
        if whole:
            kinds: dict[torch.dtype, list[int]] = {}
            for place, parameter in enumerate(self._trained):
                kinds.setdefault(parameter.dtype, []).append(place)
            messages = [
                Message(
                    name=f"all of {kind}",
                    seconds=0.0,
                    size_bytes=float(sum(self._trained[each].numel() for each in places) * kind.itemsize),
                    layers=every,
                    carries=tuple(places),
                )
                for kind, places in reversed(kinds.items())
                if any(self._trained[each].numel() for each in places)
            ]
        else:
            messages = [
                replace(each, seconds=0.0, layers=every, carries=each.gradients)
                for each in policy.messages(self._untimed())
            ]
        order = {"network": tuple(range(len(messages)))}
        return LaunchPlan(messages=tuple(messages), tensors=every, order=order, scope=UpdateScope.BARRIER)

    def _untimed(self) -> LayerWorkload:
        """The tensors as a workload before anything was timed."""
        return LayerWorkload(
            forward=(0.0,) * len(self._trained),
            backward=(0.0,) * len(self._trained),
            bytes=tuple(float(each.numel() * each.element_size()) for each in self._trained),
            bytes_per_second=1.0,
            dtypes=tuple(str(each.dtype) for each in self._trained),
            workers=len(self._streams.ranks),
        )

    @uncompiled(_RECORDED)
    def model_starts(self) -> None:
        """Called when a forward pass with gradients starts."""
        if self._iteration == 0 and self._readers is None:
            self._readers = Readers(self._model, self._trained)
            self._readers.__enter__()
        elif self.active:
            self._record.begin()

    @uncompiled(_RECORDED)
    def model_ends(self) -> None:
        """Called when a forward pass with gradients ends; the first one reveals who reads which tensor."""
        if self._iteration == 0 and self._readers is not None and not self._read_order:
            self._readers.__exit__(None, None, None)
            self._read_order = self._readers.order
            self._watch(self._readers)
            if self._weights is not None:
                self._weights.watch(self._model, self._readers.modules)
        elif self.active:
            self._record.mark(BOUNDARY)

    @uncompiled(_RECORDED)
    def read(self, places: Sequence[int]) -> None:
        """Called when a module that reads some tensors starts."""
        self._record.mark(READ, *places)

    def arrived(self, place: int) -> None:
        """Called when autograd has made a gradient."""
        self._record.mark(GRADIENT, place)
        if self._weights is not None:
            self._weights.arrived(place)

    def end_backward(self, policy: DataParallelPolicy) -> bool:
        """Called when a backward pass ends; returns whether to make a plan.

        DDP builds its buckets anew after the first iteration, of which the order of gradients is all that it needs.
        """
        self._record.end(counts=self._iteration > 0)
        self._iteration += 1
        return bool(self._read_order) and (
            self._iteration >= self._recorded or (self._iteration == 1 and isinstance(policy, Bucketed))
        )

    def agree(self, policy: DataParallelPolicy) -> LayerWorkload:
        """Workload recorded by rank 0 so far; layers are tensors, ordered for the policy."""
        group = self._streams.group("network")
        arrival = whats(self._record.last, GRADIENT)
        weights = None if self._weights is None else self._weights.times()
        own = (*tensor_times(self._record, len(self._trained)), weights)
        forward, backward, weights, ready, read = broadcast_from_first(
            lambda: (*own, arrival, self._in_turn(arrival)), first=self._streams.ranks[0], group=group
        )
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

    def _in_turn(self, arrival: Sequence[int]) -> list[int]:
        """Tensors in forward order, those of one module against the order of their gradients."""
        assert self._readers is not None
        readers, arrived = self._readers.modules, {place: turn for turn, place in enumerate(arrival)}
        return [
            place
            for _, alike in groupby(self._read_order, key=lambda each: [id(one) for one in readers[each]])
            for place in sorted(alike, key=lambda each: -arrived.get(each, 0))
        ]
