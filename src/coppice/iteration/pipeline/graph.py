"""Task graph of pipeline iterations (passes, activations, gradients), and lower bounds on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.pipeline.order import NEEDS, PipelineOrder, StagePass, Work
from coppice.iteration.policies.policy import IterationGraph
from coppice.iteration.tasks import TaskGraphBuilder


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Times of pipeline stages per micro-batch."""

    forward: Sequence[float]  # Seconds of the forward pass of each stage
    backward: Sequence[float]  # Seconds of its backward pass
    # Share of the backward pass that the gradients of weights take, alike in all stages
    weight_share: float = 0.5
    weight: Sequence[float] = ()  # Seconds that they take in each stage; empty: by the share
    transfer: float = 0.0  # Seconds until the next stage has what a stage gives, on the link between them
    # Seconds in which the gradients of each stage are summed over its replicas
    reduction: Sequence[float] = ()

    def of(self, each: StagePass) -> float:
        """Time of a pass."""
        if each.work is Work.FORWARD:
            return self.forward[each.stage]
        whole = self.backward[each.stage]
        weight = self.weight[each.stage] if self.weight else whole * self.weight_share
        return {Work.BACKWARD: whole, Work.INPUT: whole - weight, Work.WEIGHT: weight}[each.work]


@dataclass(frozen=True, kw_only=True)
class StageMessage:
    """Gradient message of a stage."""

    stage: int  # The stage, on the network of whose device it is
    seconds: float  # Time of the message there
    # Stage of the same device with whose forward pass, of the next iteration, the message starts at the
    # earliest; None: it may start when the last backward pass of its own stage is done
    after_forward: int | None = None
    of_stages: tuple[int, ...] = ()  # Stages whose last backward pass it comes after; none: its own
    # Bytes of gradients in it; of an embedding whose touched rows are exchanged, those of all its rows
    size_bytes: float = 0.0
    urgency: int = 0  # Its class of traffic, the most urgent first


def pipeline_graph(
    order: PipelineOrder,
    times: StageTimes,
    count: int,
    *,
    # Devices keep the order of their programs; otherwise they run what is ready, so that only what stages
    # need of each other binds: the graph whose bounds hold for every order
    in_order: bool = True,
    # The messages; if not given, one for each stage that takes as long as the times say
    messages: Sequence[StageMessage] | None = None,
    # The optimizer steps everywhere at once; otherwise a stage waits only for its own messages
    barrier: bool = True,
) -> IterationGraph:
    """Task graph of several iterations.

    A device runs its program in order. The gradients of a stage are summed when its last backward pass is done, on the
    network of its device, stages in the order in which they are ready. The next iteration begins when all gradients are
    summed, as the optimizer steps everywhere at once.
    """
    if messages is None:
        reduced = enumerate(times.reduction)
        messages = [StageMessage(stage=stage, seconds=seconds) for stage, seconds in reduced if seconds]
    for name, values in (
        ("forward", times.forward),
        ("backward", times.backward),
        ("weight", times.weight),
        ("reduction", times.reduction),
    ):
        if len(values) != order.stages and (values or name in ("forward", "backward")):
            raise InputError(f"expected {name} times of {order.stages} stages, found {len(values)}.")
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
    launches = {each.after_forward for each in messages if each.after_forward is not None}
    over: list[int] = []  # what every pass of the next iteration comes after
    needed: dict[int, list[int]] = {}  # what the forward passes of a stage come after
    ready: dict[int, list[int]] = {}  # the passes after which the gradients of a stage are there
    held: list[StageMessage] = []  # messages of the last iteration that this one starts
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
                    *([launch[message.after_forward]] if message.after_forward is not None else []),
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
    return IterationGraph(graph=graph.build(), first=first, last=last)


KINDS = {
    Work.FORWARD: "forward",
    Work.BACKWARD: "backward",
    Work.INPUT: "input gradient",
    Work.WEIGHT: "weight gradient",
}
"""Kind of the task of a pass."""


def source_of(each: StagePass, stages: int) -> StagePass | None:
    """Pass of another stage that this one depends on."""
    if each.work is Work.FORWARD:
        return each._replace(stage=each.stage - 1) if each.stage else None
    if each.work is Work.WEIGHT or each.stage == stages - 1:
        return None
    return each._replace(stage=each.stage + 1)


def target_of(each: StagePass, stages: int) -> int | None:
    """Stage that depends on a pass."""
    if each.work is Work.FORWARD:
        return each.stage + 1 if each.stage < stages - 1 else None
    return each.stage - 1 if each.work is not Work.WEIGHT and each.stage else None


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


def _sum(
    graph: TaskGraphBuilder, each: StageMessage, network: int, iteration: int, after: Sequence[int]
) -> int:
    """Submit a gradient message."""
    name = f"gradients of stage {each.stage} of {iteration}"
    return graph.add(name, "all_reduce", network, each.seconds, after=after)


def steady_bound_seconds(order: PipelineOrder, times: StageTimes, *, staleness: int = 0) -> float:
    """Lower bound on the iteration time with whole backward passes.

    A device computes all its passes, and its network carries all its messages. And stage c runs again, ``staleness``
    iterations later than the next one, only when its gradients are summed: before that come the forward passes of all
    stages from c on and their backward passes, with as many micro-batches on every device, and then the sum. So
    ``staleness + 1`` iterations take at least the longest of these, whatever else runs meanwhile.

    Args:
        staleness: Iterations by which gradients are late.
    """
    device_of = order.device_of()
    stages = range(order.stages)
    both = [times.forward[stage] + times.backward[stage] for stage in stages]
    reduction = times.reduction or [0.0] * order.stages
    devices = range(len(order.devices))
    of_device = [[stage for stage in stages if device_of[stage] == device] for device in devices]
    bound = 0.0
    for own in of_device:
        busy = order.micro_batches * sum(both[stage] for stage in own)
        bound = max(bound, busy, sum(reduction[stage] for stage in own))
    hops = [times.transfer if stage and device_of[stage] != device_of[stage - 1] else 0.0 for stage in stages]
    for first in stages:
        there, back = [0.0] * order.stages, [0.0] * order.stages  # until a stage may run; after it has run
        for stage in stages[first + 1 :]:
            there[stage] = there[stage - 1] + times.forward[stage - 1] + hops[stage]
            back[stage] = back[stage - 1] + times.backward[stage - 1] + hops[stage]
        longest = there[-1] + both[-1] + back[-1]
        for own in of_device:
            later = [stage for stage in own if stage >= first]
            if later:
                busy = order.micro_batches * sum(both[stage] for stage in later)
                busy += min(there[stage] for stage in later) + min(back[stage] for stage in later)
                longest = max(longest, busy)
        bound = max(bound, (longest + reduction[first]) / (staleness + 1))
    return bound
