"""Iterations of data-parallel training as tasks: layers on a compute stream, their gradients on the network."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.policy import IterationGraph, Policy, UpdateScope
from coppice.iteration.tasks import TaskGraphBuilder

__all__ = ["data_parallel_graph"]


def data_parallel_graph(workload: LayerWorkload, policy: Policy, count: int) -> IterationGraph:
    """The tasks of one worker, whose others do the same at the same time, in so many iterations.

    The forward pass runs layer by layer, then the backward pass in the opposite order. A group of gradients is ready
    when the backward passes of its layers are done; its messages then wait for the network.

    Raises:
        InputError: If the groups of the policy are not the layers, each once.
    """
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
