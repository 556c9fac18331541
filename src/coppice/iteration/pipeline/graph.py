"""Iterations of a pipeline as tasks: passes on devices, activations between stages, gradients on networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.pipeline.order import NEEDS, PipelineOrder, StagePass, Work
from coppice.iteration.policies.policy import IterationGraph
from coppice.iteration.tasks import TaskGraphBuilder

__all__ = ["StageTimes", "pipeline_graph"]


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Times of the stages of a pipeline for a micro-batch.

    Attributes:
        forward: Seconds of the forward pass of each stage.
        backward: Seconds of its backward pass.
        weight_share: Share of the backward pass that the gradients of weights take.
        transfer: Seconds until the next stage has what a stage gives, on the link between them.
        reduction: Seconds in which the gradients of each stage are summed over its replicas.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    weight_share: float = 0.5
    transfer: float = 0.0
    reduction: Sequence[float] = ()

    def of(self, each: StagePass) -> float:
        """Seconds of a pass."""
        if each.work is Work.FORWARD:
            return self.forward[each.stage]
        whole = self.backward[each.stage]
        share = {Work.BACKWARD: 1.0, Work.INPUT: 1 - self.weight_share, Work.WEIGHT: self.weight_share}
        return whole * share[each.work]


def pipeline_graph(
    order: PipelineOrder, times: StageTimes, count: int, *, in_order: bool = True
) -> IterationGraph:
    """The tasks of so many iterations in a row.

    A device runs its program in order. The gradients of a stage are summed when its last backward pass is done, on the
    network of its device, stages in the order in which they are ready. The next iteration begins when all gradients are
    summed, as the optimizer steps everywhere at once.

    Args:
        order: The programs of the devices.
        times: Times of the stages.
        count: Number of iterations.
        in_order: Devices keep the order of their programs; otherwise they run what is ready, so that only what stages
            need of each other binds: the graph whose bounds hold for every order.

    Raises:
        InputError: If the times are not those of as many stages.
    """
    for name, values in (
        ("forward", times.forward),
        ("backward", times.backward),
        ("reduction", times.reduction),
    ):
        if len(values) != order.stages and (values or name != "reduction"):
            msg = f"expected {name} times of {order.stages} stages, found {len(values)}."
            raise InputError(msg)
    graph = TaskGraphBuilder()
    devices = range(len(order.devices))
    compute = [graph.stream(f"device {device}") for device in devices]
    network = [graph.stream(f"network {device}") for device in devices]
    passes = order.passes()
    device_of = order.device_of()
    crossing = [
        (each, target)
        for each in passes
        if times.transfer and (target := _target(each, order.stages)) is not None
        if device_of[target] != device_of[each.stage]
    ]
    over: list[int] = []  # with what the last iteration is over
    first, last = [], []
    for iteration in range(count):
        # Devices wait for each other in both directions: tasks are numbered before they are submitted.
        place = {each: len(graph) + number for number, each in enumerate(passes)}
        given = place | {each: len(graph) + len(passes) + number for number, (each, _) in enumerate(crossing)}
        first.append(len(graph))
        for device, program in enumerate(order.devices):
            before = over
            for each in program:
                own = [place[each._replace(work=needed)]] if (needed := NEEDS.get(each.work)) else []
                source = _source(each, order.stages)
                after = [*before, *own, *([] if source is None else [_gives(given, source)])]
                task = graph.add(
                    f"{each} of {iteration}", _KINDS[each.work], compute[device], times.of(each), after=after
                )
                before = [task] if in_order else over
        for each, target in crossing:
            link = graph.stream(f"link {device_of[each.stage]} to {device_of[target]}")
            graph.add(f"{each} sent in {iteration}", "transfer", link, times.transfer, after=[place[each]])
        over = _reductions(graph, order, times, place, network, iteration)
        last.append(over)
        over = [graph.barrier(f"step of {iteration}", over)]
    return IterationGraph(graph=graph.build(), first=first, last=last)


_KINDS = {
    Work.FORWARD: "forward",
    Work.BACKWARD: "backward",
    Work.INPUT: "input gradient",
    Work.WEIGHT: "weight gradient",
}


def _source(each: StagePass, stages: int) -> StagePass | None:
    """The pass of another stage that gives what this one takes; its backward pass may be whole or in parts."""
    if each.work is Work.FORWARD:
        return each._replace(stage=each.stage - 1) if each.stage else None
    if each.work is Work.WEIGHT or each.stage == stages - 1:
        return None
    return each._replace(stage=each.stage + 1)


def _target(each: StagePass, stages: int) -> int | None:
    """The stage that takes what a pass gives."""
    if each.work is Work.FORWARD:
        return each.stage + 1 if each.stage < stages - 1 else None
    return each.stage - 1 if each.work is not Work.WEIGHT and each.stage else None


def _gives(given: dict[StagePass, int], source: StagePass) -> int:
    """The task that gives it: the gradients of inputs come from a whole pass or from a part of one."""
    if source in given:
        return given[source]
    other = Work.BACKWARD if source.work is Work.INPUT else Work.INPUT
    return given[source._replace(work=other)]


def _reductions(
    graph: TaskGraphBuilder,
    order: PipelineOrder,
    times: StageTimes,
    place: dict[StagePass, int],
    network: Sequence[int],
    iteration: int,
) -> list[int]:
    """Submit the sums of gradients; the tasks with which the iteration is over."""
    ends = []
    for device, program in enumerate(order.devices):
        of_stage: dict[int, list[int]] = {}
        for each in program:
            if each.work in (Work.BACKWARD, Work.WEIGHT):
                of_stage.setdefault(each.stage, []).append(place[each])
        ends += [task for tasks in of_stage.values() for task in tasks]
        for stage, tasks in sorted(of_stage.items(), key=lambda item: item[1][-1]):
            if times.reduction and times.reduction[stage]:
                ends.append(
                    graph.add(
                        f"gradients of stage {stage} of {iteration}",
                        "all_reduce",
                        network[device],
                        times.reduction[stage],
                        after=tasks,
                    )
                )
    return ends
