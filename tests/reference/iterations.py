"""Iterations of layers and of pipelines, task by task: what :func:`coppice.iteration.step.lower.lower` must amount to.

Plain loops over iterations, layers and passes, which know neither templates nor rows nor steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import NEEDS, PipelineOrder, StagePass, Work, source_of, target_of
from coppice.iteration.pipeline.stages import StageTimes
from coppice.iteration.step.plan import LayerPass, Message
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder

KINDS = {
    Work.FORWARD: "forward",
    Work.BACKWARD: "backward",
    Work.INPUT: "input gradient",
    Work.WEIGHT: "weight gradient",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Iterations:
    """Task graph of consecutive iterations."""

    graph: TaskGraph  # The tasks
    first: Sequence[int]  # For each iteration, the task whose start begins it
    last: Sequence[Sequence[int]]  # For each iteration, the tasks with whose ends it is over


def message_graph(
    workload: LayerWorkload, backward: Sequence[LayerPass], messages: Sequence[Message], count: int
) -> Iterations:
    """Task graph of one worker over several iterations; all workers are alike.

    A forward pass waits for the layers that it takes its input from and for the messages that it needs; of those that
    are ready, the device runs the first. Then come the backward passes in the order given; when they are done, the next
    iteration begins.
    """
    graph = TaskGraphBuilder()
    weights = [workload.weight_seconds(layer) for layer in range(workload.layers)]
    seconds = {
        Work.BACKWARD: workload.backward,
        Work.INPUT: [whole - own for whole, own in zip(workload.backward, weights, strict=True)],
        Work.WEIGHT: weights,
    }
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
            name = f"{each.work.value}{each.layer} of {iteration}"
            task = graph.add(name, KINDS[each.work], compute, seconds[each.work][each.layer], after=previous)
            if each.work is not Work.INPUT:
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
    return Iterations(graph=graph.build(), first=first, last=last)


def pipeline_graph(
    order: PipelineOrder,
    times: StageTimes,
    count: int,
    *,
    # Devices keep the order of their programs; otherwise they run what is ready, so that only what stages
    # need of each other binds: the graph whose bounds hold for every order
    in_order: bool = True,
    # The messages; if not given, one for each stage that takes as long as the times say
    messages: Sequence[Message] | None = None,
    # The optimizer steps everywhere at once; otherwise a stage waits only for its own messages
    barrier: bool = True,
) -> Iterations:
    """Task graph of several iterations.

    A device runs its program in order. The gradients of a stage are summed when its last backward pass is done, on the
    network of its device, stages in the order in which they are ready. The next iteration begins when all gradients are
    summed, as the optimizer steps everywhere at once.
    """
    if messages is None:
        reduced = enumerate(times.reduction)
        messages = [Message(name="", stage=stage, seconds=seconds) for stage, seconds in reduced if seconds]
    graph = TaskGraphBuilder()
    devices = range(len(order.devices))
    compute = [graph.stream(f"device {device}") for device in devices]
    network = [graph.stream(f"network {device}") for device in devices]
    passes = order.passes()
    device_of = order.device_of()
    crossing = [
        (each, target)
        for each in passes
        if times.transfer and (target := target_of(each, order.stages)) is not None
        if device_of[target] != device_of[each.stage]
    ]
    launches = {each.forward_stage for each in messages if each.after_forward is not None}
    over: list[int] = []  # what every pass of the next iteration comes after
    needed: dict[int, list[int]] = {}  # what the forward passes of a stage come after
    ready: dict[int, list[int]] = {}  # the passes after which the gradients of a stage are there
    held: list[Message] = []  # messages of the last iteration that this one starts
    first: list[int] = []
    last: list[list[int]] = []
    for iteration in range(count):
        # Devices wait for each other in both directions: tasks are numbered before they are submitted.
        place = {each: len(graph) + number for number, each in enumerate(passes)}
        given = place | {each: len(graph) + len(passes) + number for number, (each, _) in enumerate(crossing)}
        starts: dict[int, tuple[int, list[int]]] = {}  # first pass of each stage, and what it comes after
        first.append(len(graph))
        for device, program in enumerate(order.devices):
            before = over
            for each in program:
                own = [place[each._replace(work=work)]] if (work := NEEDS.get(each.work)) else []
                source = source_of(each, order.stages)
                after = [*before, *own, *([] if source is None else [_gives(given, source)])]
                if each.work is Work.FORWARD:
                    after += needed.get(each.stage, ())
                task = graph.add(
                    f"{each} of {iteration}", KINDS[each.work], compute[device], times.of(each), after=after
                )
                starts.setdefault(each.stage, (task, after))
                before = [task] if in_order else over
        for each, target in crossing:
            link = graph.stream(f"link {device_of[each.stage]} to {device_of[target]}")
            graph.add(f"{each} sent in {iteration}", "transfer", link, times.transfer, after=[place[each]])
        if held:
            launch: dict[int, int] = {}
            for stage in sorted(launches):
                task, after = starts[stage]
                name = f"stage {stage} starts in {iteration}"
                launch[stage] = graph.add(name, "launch", compute[device_of[stage]], 0.0, after=after)
                graph.await_tasks(task, [launch[stage]])
            for message in held:
                after = [
                    *ready[message.stage],
                    *([launch[message.forward_stage]] if message.after_forward is not None else []),
                ]
                task = _sum(graph, message, network[device_of[message.stage]], iteration - 1, after)
                graph.await_tasks(launch.get(message.stage, starts[message.stage][0]), [task])
                last[-1].append(task)
        ready = _ready(order, place)
        last.append([task for tasks in ready.values() for task in tasks])
        needed = {} if barrier else {stage: list(tasks) for stage, tasks in ready.items()}
        held = [each for each in messages if each.after_forward is not None and iteration < count - 1]
        place_of = {stage: number for number, stage in enumerate(ready)}
        for message in sorted(messages, key=lambda message: place_of[message.stage]):
            if message not in held:
                stage = message.stage
                task = _sum(graph, message, network[device_of[stage]], iteration, ready[stage])
                last[-1].append(task)
                needed.setdefault(stage, []).append(task)
        if barrier:
            over, needed = [graph.barrier(f"step of {iteration}", last[-1])], {}
    return Iterations(graph=graph.build(), first=first, last=last)


def _gives(given: dict[StagePass, int], source: StagePass) -> int:
    """Task that produces a pass's input; input gradients come from a whole backward pass or from its first part."""
    if source in given:
        return given[source]
    other = Work.BACKWARD if source.work is Work.INPUT else Work.INPUT
    return given[source._replace(work=other)]


def _ready(order: PipelineOrder, place: dict[StagePass, int]) -> dict[int, list[int]]:
    """Passes after which the gradients of each stage are complete, in the order of the devices' programs."""
    found: dict[int, list[int]] = {}
    for program in order.devices:
        of_stage: dict[int, list[int]] = {}
        for each in program:
            if each.work in (Work.BACKWARD, Work.WEIGHT):
                of_stage.setdefault(each.stage, []).append(place[each])
        found.update(sorted(of_stage.items(), key=lambda item: item[1][-1]))
    return found


def _sum(graph: TaskGraphBuilder, each: Message, network: int, iteration: int, after: Sequence[int]) -> int:
    """Submit a gradient message."""
    name = f"gradients of stage {each.stage} of {iteration}"
    return graph.add(name, "all_reduce", network, each.seconds, after=after)
