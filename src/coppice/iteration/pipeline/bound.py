"""What no order of a pipeline beats whose stages wait only for their own gradients, in the long run."""

from __future__ import annotations

from coppice.iteration.pipeline.graph import StageTimes
from coppice.iteration.pipeline.order import PipelineOrder


def steady_bound_seconds(order: PipelineOrder, times: StageTimes, *, staleness: int = 0) -> float:
    """Time of an iteration that no order of whole backward passes on these devices beats.

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
