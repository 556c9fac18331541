"""Data-parallel training: layers on a compute stream, their gradients on the network, and the questions between."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.policy import IterationGraph, Policy
from coppice.iteration.tasks import TaskGraphBuilder

__all__ = ["DataParallelPolicy", "UpdateScope"]


class UpdateScope(StrEnum):
    """What must be summed before a layer runs again."""

    BARRIER = "barrier"
    """All gradients of all layers: an optimizer that steps once."""
    GROUP = "group"
    """The gradients of the layer, and those that are summed together with them."""


class DataParallelPolicy(Policy):
    """The baseline, of which policies change what they are about.

    A message for every layer, first come first served, and an optimizer that steps when all are done. The questions are
    answered before anything runs, so that simulation and real training can ask the same policy.

    Attributes:
        update_scope: What must be summed before a layer runs again.
        overlaps: Communication runs beside the backward pass; otherwise it begins when that is over.
        in_order: Groups are launched in their order only.
    """

    update_scope: ClassVar[UpdateScope] = UpdateScope.BARRIER
    overlaps: ClassVar[bool] = True
    in_order: ClassVar[bool] = False

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Layers whose gradients are sent as one, in the order in which they are submitted.

        Each by itself, in the order of the backward pass.
        """
        return [[layer] for layer in reversed(range(workload.layers))]

    def parts(self, workload: LayerWorkload, size_bytes: float) -> Sequence[float]:
        """Bytes of the messages that a group of so many bytes is cut into: one."""
        del workload
        return [size_bytes]

    def key(self, workload: LayerWorkload, group: Sequence[int]) -> int:
        """Priority of the messages of a group, the least first: all alike, so the first to be submitted."""
        del workload, group
        return 0

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """What no policy can beat that computes layer by layer and sums every gradient once an iteration."""
        return workload.lower_bound_seconds()

    def compute_seconds(self, workload: LayerWorkload) -> float:
        """Forward and backward pass."""
        return workload.compute_seconds

    def iterations(self, workload: LayerWorkload, count: int) -> IterationGraph:
        """The tasks of one worker, whose others do the same at the same time, in so many iterations.

        The forward pass runs layer by layer, then the backward pass in the opposite order. A group of gradients is
        ready when the backward passes of its layers are done; its messages then wait for the network.

        Raises:
            InputError: If the groups are not the layers, each once.
        """
        return _graph(workload, self, count)


def _graph(workload: LayerWorkload, policy: DataParallelPolicy, count: int) -> IterationGraph:
    """The tasks, as the policy answers."""
    groups = [tuple(group) for group in policy.groups(workload)]
    if sorted(layer for group in groups for layer in group) != list(range(workload.layers)):
        msg = f"expected groups of policy {policy.name} with each of {workload.layers} layers once, found {groups}."
        raise InputError(msg)
    cut = []
    for group in groups:
        size = sum(workload.bytes[layer] for layer in group)
        cut.append([workload.message(part) for part in policy.parts(workload, size)] if size else [])
    keys = [policy.key(workload, group) for group in groups]
    graph = TaskGraphBuilder()
    compute, network = graph.stream("compute"), graph.stream("network")
    layers = range(workload.layers)
    needed: list[list[int]] = [[] for _ in layers]  # by the next forward pass of each layer
    previous: list[int] = []
    first, last = [], []
    for iteration in range(count):
        for layer in layers:
            task = graph.add(
                f"F{layer} of {iteration}",
                "forward",
                compute,
                workload.forward[layer],
                after=[*previous, *needed[layer]],
            )
            if not layer:
                first.append(task)
            previous = [task]
        done = [0] * workload.layers
        for layer in reversed(layers):
            task = graph.add(
                f"B{layer} of {iteration}", "backward", compute, workload.backward[layer], after=previous
            )
            done[layer], previous = task, [task]
        sent: list[list[int]] = []
        launched: list[int] = []
        for number, group in enumerate(groups):
            before = [done[layer] for layer in group] if policy.overlaps else previous
            ready = graph.barrier(f"group {number} of {iteration}", [*before, *launched])
            if policy.in_order:
                launched = [ready]
            sent.append(
                [
                    graph.add(
                        f"group {number} part {part} of {iteration}",
                        "all_reduce",
                        network,
                        seconds,
                        after=[ready],
                        priority=keys[number],
                    )
                    for part, seconds in enumerate(cut[number])
                ]
            )
        every = [task for messages in sent for task in messages]
        last.append([*previous, *every])
        if policy.update_scope is UpdateScope.BARRIER:
            needed = [[graph.barrier(f"step of {iteration}", last[-1])] for _ in layers[:1]]
            needed += [[] for _ in layers[1:]]
        else:
            for group, messages in zip(groups, sent, strict=True):
                for layer in group:
                    needed[layer] = messages
    return IterationGraph(graph=graph.build(), first=first, last=last)
