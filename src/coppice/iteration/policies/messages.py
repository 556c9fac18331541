"""Messages of data-parallel policies, and their task graph.

A policy gives the messages of an iteration as data; simulation, the stages of a pipeline and real training read the
same. Here they become a graph of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.policy import IterationGraph
from coppice.iteration.tasks import TaskGraphBuilder

GRADIENTS = ("backward", "weight_gradient")
"""Kinds of passes after which the gradients of their layer are there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A gradient message, numbered within its iteration.

    Those of a stream that are ready go by priority, the least first, of equal ones the least number.
    """

    name: str  # Its name
    seconds: float  # Time that it takes alone
    size_bytes: float  # Bytes of gradients (or of what stands for them) that it carries
    layers: tuple[int, ...]  # Layers whose gradients are there before it starts
    # Layers whose gradients it carries, or parts of them; empty: those of `layers`
    carries: tuple[int, ...] = ()
    offset_bytes: float = 0.0  # Where in the gradients that it carries, laid in a row, its bytes begin
    after: tuple[int, ...] = ()  # Numbers of messages that end before it starts
    # Layer whose forward pass of the next iteration has started before it starts
    after_forward: int | None = None
    stream: str = "network"  # What carries it: `network`, or `up` and `down` of parameter servers
    priority: int = 0  # The least first
    needed_by: tuple[int, ...] = ()  # Layers whose next forward pass waits for it
    # `all_reduce`, `reduce_scatter`, `all_gather`, `push`, `pull` or `factors`
    collective: str = "all_reduce"
    # Bytes that its stream takes on before they are acknowledged; one more message is taken on while there is
    # any credit. None: no limit. All messages of a stream have the same.
    credit_bytes: float | None = None
    acknowledgement_seconds: float = 0.0  # Time from its end until its credit is back

    @property
    def gradients(self) -> tuple[int, ...]:
        """Layers in the message."""
        return self.carries or self.layers


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPass:
    """Pass of a layer on the device."""

    kind: str  # `backward`, or its halves `input_gradient` and `weight_gradient`
    layer: int  # The layer
    seconds: float  # Time that it takes


def message_graph(
    workload: LayerWorkload, backward: Sequence[LayerPass], messages: Sequence[Message], count: int
) -> IterationGraph:
    """Task graph of one worker over several iterations; all workers are alike.

    A forward pass waits for the layers that it takes its input from and for the messages that it needs; of those that
    are ready, the device runs the first. Then come the backward passes in the order given; when they are done, the next
    iteration begins.
    """
    _check(workload, backward, messages)
    graph = TaskGraphBuilder()
    compute = graph.stream("compute")
    streams = [graph.stream(message.stream) for message in messages]
    windows: dict[str, int] = {}
    layers = range(workload.layers)
    needed: list[list[int]] = [[] for _ in layers]  # by the next forward pass of each layer
    held: list[tuple[int, int]] = []  # tasks of messages that wait for a forward pass to start, and its layer
    previous: list[int] = []
    first, last = [], []
    for iteration in range(count):
        forward: list[int] = []
        for layer in layers:
            inputs = workload.inputs_of(layer)
            before = [*([forward[each] for each in inputs] or previous), *needed[layer]]
            task = graph.add(
                f"F{layer} of {iteration}", "forward", compute, workload.forward[layer], after=before
            )
            if not layer:
                first.append(task)
            waiting = [number for number, gate in held if gate == layer]
            if waiting:
                started = graph.barrier(f"F{layer} of {iteration} starts", before)
                for number in waiting:
                    graph.await_tasks(number, [started])
            forward.append(task)
        previous = [forward[-1]] if not workload.inputs else forward
        done = [0] * workload.layers
        for each in backward:
            name = f"{_LETTERS[each.kind]}{each.layer} of {iteration}"
            task = graph.add(name, each.kind, compute, each.seconds, after=previous)
            if each.kind in GRADIENTS:
                done[each.layer] = task
            previous = [task]
        ready: dict[tuple[int, ...], list[int]] = {}
        sent: list[int] = []
        for message, stream in zip(messages, streams, strict=True):
            if message.layers not in ready:
                tasks = [done[layer] for layer in message.layers]
                if len(tasks) > 1:
                    name = f"gradients of {len(tasks)} layers of {iteration}"
                    tasks = [graph.barrier(name, tasks)]
                ready[message.layers] = tasks
            sent.append(
                graph.add(
                    f"{message.name} of {iteration}",
                    message.collective,
                    stream,
                    message.seconds,
                    after=ready[message.layers],
                    priority=message.priority,
                )
            )
        for message, task in zip(messages, sent, strict=True):
            graph.await_tasks(task, [sent[number] for number in message.after])
            if message.credit_bytes is not None:
                if message.stream not in windows:
                    windows[message.stream] = graph.window(message.credit_bytes)
                graph.hold(task, windows[message.stream], message.size_bytes)
                if message.acknowledgement_seconds:
                    name, late = f"{graph.name(task)} is acknowledged", message.acknowledgement_seconds
                    graph.acknowledge(task, graph.add(name, "acknowledgement", -1, late, after=[task]))
        held = [
            (task, message.after_forward)
            for message, task in zip(messages, sent, strict=True)
            if message.after_forward is not None
        ]
        needed = [[] for _ in layers]
        for message, task in zip(messages, sent, strict=True):
            for layer in message.needed_by:
                needed[layer].append(task)
        last.append([*previous, *sent])
    return IterationGraph(graph=graph.build(), first=first, last=last)


_LETTERS = {"backward": "B", "input_gradient": "I", "weight_gradient": "W"}


def _check(workload: LayerWorkload, backward: Sequence[LayerPass], messages: Sequence[Message]) -> None:
    """Check that messages refer to existing layers and messages."""
    made = sorted(each.layer for each in backward if each.kind in GRADIENTS)
    if made != list(range(workload.layers)):
        raise InputError(
            f"expected backward passes that make gradients of each of {workload.layers} layers once, found {made}."
        )
    for message in messages:
        same = next(each for each in messages if each.stream == message.stream)
        if message.credit_bytes != same.credit_bytes:
            raise InputError(f"expected one credit for all messages on {message.stream}, found others.")
        start = () if message.after_forward is None else (message.after_forward,)
        for layer in (*message.layers, *message.carries, *message.needed_by, *start):
            if not 0 <= layer < workload.layers:
                raise InputError(
                    f"expected layers 0 to {workload.layers - 1} in {message.name}, found {layer}."
                )
        for number in message.after:
            if not 0 <= number < len(messages):
                raise InputError(
                    f"expected {message.name} after messages 0 to {len(messages) - 1}, found {number}."
                )
