"""Split backward passes: input gradients in place, weight gradients in pipeline bubbles."""

from __future__ import annotations

from coppice.iteration.pipeline.graph import KINDS, StageTimes, source_of
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.running import run_tasks
from coppice.iteration.tasks import TaskGraphBuilder


def weights_last(order: PipelineOrder, times: StageTimes) -> PipelineOrder:
    """Split an order's backward passes, and run weight gradients in bubbles.

    A device runs forward passes and gradients of inputs in the order of its program, and gradients of weights, the
    oldest first, when what is next in its program has not come yet. A pass that has begun is not interrupted.

    Args:
        order: An order with whole backward passes.
        times: Times of its stages, by which what has come is told.

    Examples:
        >>> from coppice.iteration.pipeline.orders import gpipe
        >>> plain = StageTimes(forward=(1, 1), backward=(2, 2))
        >>> [str(each) for each in weights_last(gpipe(2, 2), plain).devices[0]]
        ['0F0', '0F1', '0I0', '0I1', '0W0', '0W1']
    """
    graph = TaskGraphBuilder()
    device_of = order.device_of()
    chain = [_first_part(each) for each in order.passes()]
    weights = [each._replace(work=Work.WEIGHT) for each in chain if each.work is Work.INPUT]
    place = {each: number for number, each in enumerate([*chain, *weights])}
    for device, program in enumerate(order.devices):
        stream = graph.stream(f"device {device}")
        before: list[int] = []
        for each in map(_first_part, program):
            after = list(before)
            source = source_of(each, order.stages)
            if source is not None:
                far = times.transfer and device_of[source.stage] != device
                sent = len(place) + place[source]
                after.append(sent if far else place[source])
            before = [graph.add(str(each), KINDS[each.work], stream, times.of(each), after=after)]
    for each in weights:
        own = place[each._replace(work=Work.INPUT)]
        stream = graph.stream(f"device {device_of[each.stage]}")
        graph.add(str(each), KINDS[each.work], stream, times.of(each), after=[own], priority=1)
    for number, each in enumerate(place):
        graph.add(f"{each} sent", "transfer", -1, times.transfer, after=[number])
    start = run_tasks(graph.build()).start
    programs: list[list[StagePass]] = [[] for _ in order.devices]
    # Of passes that start at one instant, which take no time, the chain keeps its order.
    for each in sorted(place, key=lambda each: (start[place[each]], place[each])):
        programs[device_of[each.stage]].append(each)
    return PipelineOrder(
        devices=tuple(map(tuple, programs)), stages=order.stages, micro_batches=order.micro_batches
    )


def _first_part(each: StagePass) -> StagePass:
    """Input-gradient part of a backward pass."""
    return each._replace(work=Work.INPUT) if each.work is Work.BACKWARD else each
