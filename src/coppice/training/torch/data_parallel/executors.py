"""Executor of messages: in-order queues, one thread per stream, launching messages as their gradients are ready.

A policy counts bytes of gradients in a row. Tensors of one type that follow each other in the row are a run, one flat
tensor; a message over part of the row is a slice of each run that it touches.

A second thread of the stream waits for what was launched. Collectives of a stream run on a process group of its own, so
that nothing that the training program sends comes between them, and which carries one after the other: as their order
is made beforehand, the next one is handed over before the one under way ends, and the network never waits for a thread
of Python. Where the policy gives credit, as many bytes as it allows are handed over. Whatever fails in a thread is
raised in the training program when it next waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from coppice.iteration.step.plan import Message
from coppice.training.torch.core.launcher import Launcher
from coppice.training.torch.core.streams import Streams, all_gather, pull, push, reduce_scatter, used_here
from coppice.training.torch.data_parallel.gradientflow import SparseSums
from coppice.training.torch.data_parallel.poseidon import LinearFactors
from coppice.training.torch.data_parallel.recorder import LaunchPlan


@dataclass(frozen=True)
class _Run:
    """Contiguous tensors of one type."""

    flat: torch.Tensor  # Their memory, with room at its end for equal shares of all ranks
    begin: int  # Byte of the row at which it begins
    size_bytes: int  # Bytes of gradients in it


class Bucket:
    """Bucket of the gradients of some tensors.

    Args:
        parameters: The tensors whose gradients it holds, in their row.
        ranks: Its runs are padded to as many equal shares.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], ranks: int) -> None:
        self.views: list[torch.Tensor] = []  # For each tensor, its gradient's place
        self._runs: list[_Run] = []
        begin = first = 0
        while first < len(parameters):
            kind = (parameters[first].dtype, parameters[first].device)
            last = first
            while last < len(parameters) and (parameters[last].dtype, parameters[last].device) == kind:
                last += 1
            own = parameters[first:last]
            count = sum(each.numel() for each in own)
            flat = torch.zeros(-(-count // ranks) * ranks, dtype=kind[0], device=kind[1])
            place = 0
            for each in own:
                self.views.append(flat[place : place + each.numel()].view(each.shape))
                place += each.numel()
            self._runs.append(_Run(flat, begin, count * flat.element_size()))
            begin += self._runs[-1].size_bytes
            first = last

    @property
    def whole(self) -> list[torch.Tensor]:
        """All of it, padded."""
        return [run.flat for run in self._runs]

    def slices(self, offset_bytes: float, size_bytes: float) -> list[torch.Tensor]:
        """Tensor parts within a byte range, cut at whole elements.

        Cuts are rounded, not sizes, so that the slices of a row that is cut anywhere are the row.
        """
        found = []
        for run in self._runs:
            item = run.flat.element_size()
            count = run.size_bytes // item
            low = min(max(round((offset_bytes - run.begin) / item), 0), count)
            high = min(max(round((offset_bytes + size_bytes - run.begin) / item), 0), count)
            if high > low:
                found.append(run.flat[low:high])
        return found


def buckets_of(
    messages: Sequence[Message], tensors: Sequence[torch.Tensor], ranks: int
) -> dict[tuple[int, ...], Bucket]:
    """Bucket for each group of layers in a message."""
    groups = dict.fromkeys(message.gradients for message in messages)
    return {group: Bucket([tensors[layer] for layer in group], ranks) for group in groups}


@dataclass(eq=False)
class _Sending:
    """Message of the current iteration."""

    missing: set[int]  # Gradients that are not there yet
    launched: bool = False  # Its collectives are handed over
    done: bool = False  # All ranks have its result
    works: list[Any] = field(default_factory=list)  # Its collectives


class MessageExecutor:
    """Execute the messages of a plan, iteration by iteration.

    Args:
        plan: Messages and their order.
        tensors: The tensor of each of its layers.
        streams: Where collectives run.
        timeout_s: Longest wait for a message.
        sparse: What takes the place of buckets where only parts are sent.
        factors: What sends factors instead of gradients.
    """

    collective = True  # Messages are collectives of the ranks

    def __init__(
        self,
        plan: LaunchPlan,
        tensors: Sequence[torch.Tensor],
        streams: Streams,
        timeout_s: float,
        *,
        sparse: SparseSums | None = None,
        factors: LinearFactors | None = None,
    ) -> None:
        self.plan = plan
        self._streams = streams
        self._groups = {stream: streams.group(stream) for stream in plan.order if self.collective}
        self._backs = {
            each.stream: streams.group(f"{each.stream} back")
            for each in plan.messages
            if each.collective in ("reduce_scatter", "all_gather", "push", "pull")
            and streams.over_gloo
            and self.collective
        }
        self._buckets = buckets_of(() if sparse else plan.messages, tensors, len(streams.ranks))
        self._cuda = tensors[0].device if tensors and tensors[0].is_cuda else None
        self._made: dict[int, Any] = {}
        """On a device, events behind which gradients are in their places."""
        self._shards: dict[tuple[int, ...], list[torch.Tensor]] = {}
        pushed = [each for each in plan.messages if each.collective == "push"]
        self._servers = {
            (each.gradients, each.offset_bytes): streams.ranks[turn % len(streams.ranks)]
            for turn, each in enumerate(pushed)
        }
        """Global rank that serves each slice: they are dealt in turn."""
        self.views: list[list[torch.Tensor]] = [[] for _ in tensors]
        for layers, bucket in self._buckets.items():
            for layer, view in zip(layers, bucket.views, strict=True):
                self.views[layer].append(view)
        if sparse is not None:
            sparse.assign(plan.messages, plan.tensors)
            self.views = [sparse.views(place) for place in plan.tensors]
        self.executors: list[list[int]] = [[] for _ in tensors]
        """Messages after which the sum of each layer's gradients is complete."""
        for number, message in enumerate(plan.messages):
            for layer in message.gradients:
                self.executors[layer].append(number)
        self._starts: Mapping[str, Callable[[Message, Any], list[Any]]] = {
            "all_reduce": sparse.start if sparse is not None else self._all_reduce,
            "reduce_scatter": self._reduce_scatter,
            "all_gather": self._all_gather,
            "push": self._push,
            "pull": self._pull,
            **({} if factors is None else {"factors": factors.start}),
        }
        device = tensors[0].device if tensors else None
        self._launcher = Launcher(device, timeout_s, "sum gradients", mistake="ranks run other layers")
        self._changed = self._launcher.changed
        self._sent: list[_Sending] = []
        self._started: set[int] = set()
        self._credit: dict[str, float] = {}
        self.launched: dict[str, list[int]] = {}
        """Numbers of the messages of the last iteration in the order of their launch, by stream."""
        self._under_way: dict[str, deque[tuple[int, _Sending]]] = {stream: deque() for stream in plan.order}
        for stream, order in plan.order.items():
            launch, under_way = partial(self._launch, stream), self._under_way[stream]
            self._launcher.follow(
                stream, order, self._may_start, launch, taken=self._takes_credit, own_stream=True
            )
            self._launcher.serve(
                stream,
                lambda under_way=under_way: under_way.popleft() if under_way else None,  # type: ignore[misc]
                partial(self._finish, stream),
                own_stream=True,
                drains=True,
            )

    def begin(self) -> None:
        """Start a backward pass: all messages wait for their gradients."""
        with self._changed:
            self._sent = [_Sending(missing=set(message.layers)) for message in self.plan.messages]
            self._started = set()
            self._made = {}
            self._credit = {
                message.stream: message.credit_bytes
                for message in self.plan.messages
                if message.credit_bytes is not None
            }
            self.launched = {stream: [] for stream in self.plan.order}
            self._launcher.begin()

    @property
    def busy(self) -> bool:
        """Whether a message of the iteration is outstanding."""
        return any(not sending.done for sending in self._sent)

    def arrived(self, layers: Sequence[int]) -> None:
        """Mark gradients as available, on a device in order of the current stream."""
        with self._changed:
            if self._cuda is not None:
                self._made.update(dict.fromkeys(layers, self._launcher.mark()))
            for sending in self._sent:
                sending.missing.difference_update(layers)
            self._changed.notify_all()

    def missing(self) -> set[int]:
        """Layers whose gradients messages wait for."""
        return set().union(*(sending.missing for sending in self._sent))

    def forward_started(self, layer: int) -> None:
        """Called when the next forward pass of a layer starts."""
        with self._changed:
            self._started.add(layer)
            self._changed.notify_all()

    def wait(self, numbers: Sequence[int]) -> None:
        """Wait for messages; on a device until they are launched, with the current stream ordered behind them."""
        if not self._sent:
            return
        self._launcher.wait(
            lambda: all(self._there(number) for number in numbers),
            lambda: self.plan.messages[next(each for each in numbers if not self._there(each))].name,
        )
        for number in numbers:
            for work in self._sent[number].works:
                work.wait()

    def _there(self, number: int) -> bool:
        """Whether the training need not wait for a message: on a device its stream does."""
        sending = self._sent[number]
        return sending.done or (self._cuda is not None and self.collective and sending.launched)

    def close(self) -> None:
        """Stop the threads; outstanding messages are abandoned."""
        self._launcher.close()

    def _order(self, number: int) -> None:
        """Make this thread's GPU stream wait for a message's gradients and predecessors."""
        if self._cuda is None:
            return
        message = self.plan.messages[number]
        self._launcher.order_behind({self._made[layer] for layer in message.layers if layer in self._made})
        for before in message.after:
            for work in self._sent[before].works:
                work.wait()

    def _fail(self, error: BaseException) -> None:
        self._launcher.fail(error)

    def _may_start(self, number: int) -> bool:
        """Whether a message may start."""
        message = self.plan.messages[number]
        if self._sent[number].missing or (
            message.after_forward is not None and message.after_forward not in self._started
        ):
            return False
        if not all(self._sent[each].done for each in message.after):
            return False
        if message.collective in ("push", "pull") and self._backs and self._server_is_busy(message):
            return False
        return message.credit_bytes is None or self._credit[message.stream] > 0

    def _takes_credit(self, number: int) -> None:
        message = self.plan.messages[number]
        if message.credit_bytes is not None:
            self._credit[message.stream] -= message.size_bytes

    def _launch(self, stream: str, number: int) -> None:
        message, sending = self.plan.messages[number], self._sent[number]
        self._order(number)
        started = self._starts[message.collective](message, self._groups.get(stream))
        with self._changed:
            self.launched[stream].append(number)
            sending.works = [work for work in started if work is not None]
            sending.launched = True
            self._under_way[stream].append((number, sending))

    def _finish(self, stream: str, launched: tuple[int, _Sending]) -> None:
        """Wait for a launched message."""
        number, sending = launched
        for work in sending.works:
            work.wait()
        if self._cuda is not None:  # `wait` has ordered this thread's stream alone
            torch.cuda.current_stream(self._cuda).synchronize()
        with self._changed:
            sending.done = True
            if sending is self._sent[number] and stream in self._credit:
                self._credit[stream] += self.plan.messages[number].size_bytes

    def _slices(self, message: Message) -> list[torch.Tensor]:
        return self._buckets[message.gradients].slices(message.offset_bytes, message.size_bytes)

    def _all_reduce(self, message: Message, group: dist.ProcessGroup) -> list[Any]:
        return [dist.all_reduce(each, group=group, async_op=True) for each in self._slices(message)]

    def _reduce_scatter(self, message: Message, group: dist.ProcessGroup) -> list[Any]:
        shards, works = [], []
        for flat in self._buckets[message.gradients].whole:
            shard = flat.new_empty(len(flat) // len(self._streams.ranks))
            shards.append(shard)
            works.append(reduce_scatter(shard, flat, group, self._backs.get(message.stream)))
        self._shards[message.gradients] = shards
        return works

    def _all_gather(self, message: Message, group: dist.ProcessGroup) -> list[Any]:
        used_here(self._shards[message.gradients])
        return [
            all_gather(flat, shard, group, self._backs.get(message.stream))
            for flat, shard in zip(
                self._buckets[message.gradients].whole, self._shards[message.gradients], strict=True
            )
        ]

    def _push(self, message: Message, group: Any) -> list[Any]:
        server, back = self._server(message), self._backs.get(message.stream)
        return [push(each, server, group, back) for each in self._slices(message)]

    def _pull(self, message: Message, group: Any) -> list[Any]:
        server, back = self._server(message), self._backs.get(message.stream)
        return [pull(each, server, group, back) for each in self._slices(message)]

    def _server(self, message: Message) -> int:
        return self._servers[message.gradients, message.offset_bytes]

    def _server_is_busy(self, message: Message) -> bool:
        """Whether gloo still sends a message of this stream to the same server."""
        return any(
            not self._sent[number].done and self._server(self.plan.messages[number]) == self._server(message)
            for number in self.launched[message.stream]
        )
