"""Times of pipeline stages: lower bounds on iterations, and backward passes that are split to fill bubbles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work, source_of
from coppice.iteration.tasks import TaskGraphBuilder, run_tasks


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
            before = [graph.add(str(each), each.work.name, stream, times.of(each), after=after)]
    for each in weights:
        own = place[each._replace(work=Work.INPUT)]
        stream = graph.stream(f"device {device_of[each.stage]}")
        graph.add(str(each), each.work.name, stream, times.of(each), after=[own], priority=1)
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
