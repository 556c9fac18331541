"""Pipeline policies on a job's training step: the order, and messages overlapped with computation.

Orders of :mod:`coppice.iteration.pipeline.orders` hold for any step. What depends on the times of a step, or says when
gradients are sent, is here.
"""

from __future__ import annotations

from coppice.iteration.pipeline.graph import StageTimes
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.split import weights_last
from coppice.iteration.policies.pipelined.fold3d import forward_share
from coppice.iteration.step.block import BACKWARD, FORWARD, RECOMPUTE, Step
from coppice.iteration.step.policy_messages import StepMessage, sharded_messages


def stage_times(step: Step) -> StageTimes:
    """Times of a step's stages per micro-batch, with exchanges inside passes."""

    def of(stage: int, when: str) -> float:
        return sum(
            each.seconds for block in step.stages[stage] for each in block.exchanges if each.when == when
        )

    stages = range(len(step.stages))
    forward = [sum(block.forward for block in step.stages[each]) + of(each, FORWARD) for each in stages]
    backward = [
        sum(block.input_gradient + block.weight_gradient + block.recompute for block in step.stages[each])
        + of(each, BACKWARD)
        + of(each, RECOMPUTE)
        for each in stages
    ]
    return StageTimes(
        forward=forward,
        backward=backward,
        weight=[sum(block.weight_gradient for block in step.stages[each]) for each in stages],
        transfer=step.send.seconds if step.send else 0.0,
    )


def fast_forward_order(step: Step, order: PipelineOrder) -> PipelineOrder:
    """Order with whole backward passes, with weight gradients moved into idle time.

    Args:
        step: The step, whose times say when devices wait.
    """
    return weights_last(order, stage_times(step))


def fold3d_messages(
    step: Step, order: PipelineOrder, *, share: float | None = None
) -> tuple[StepMessage, ...]:
    """Gradient all-reduces of chunks, split between the backward pass and the next forward pass.

    The first chunk of a device is summed in one message, every other in two, and a chunk is updated before its next
    forward pass. The second messages go when no first one is waiting, those of earlier chunks first. Where replicas
    shard the optimizer, each is a reduce-scatter, and an all-gather of the parameters.

    Args:
        order: The programs of its devices; the policy takes breadth-first ones.
        share: Share of the second messages; if not given, that of the published formula.
    """
    if share is None:
        computed = [
            (block.forward, block.input_gradient + block.weight_gradient, block.recompute)
            for stage in step.stages
            for block in stage
        ]
        forward, backward, again = (sum(column) for column in zip(*computed, strict=True))
        share = forward_share(forward / backward, recompute=again > 0) if backward else 0.0
    device_of = order.device_of()
    messages: list[StepMessage] = []
    started: set[int] = set()
    for stage, blocks in enumerate(step.stages):
        device = device_of[stage]
        size = step.gradient_bytes * sum(block.parameters for block in blocks)
        later = share if device in started else 0.0
        started.add(device)
        if step.replicas < 2 or not size:
            continue
        sums: list[StepMessage] = []
        for part, words, priority in ((1 - later, "", 0), (later, ", the rest", 1 + stage)):
            if part:
                sums.append(
                    StepMessage(
                        name=f"gradients of stage {stage}{words}",
                        exchange=step.message("all_reduce", part * size),
                        device=device,
                        stage=stage,
                        layers=tuple(range(len(blocks))),
                        needed_by=(0,),
                        priority=priority,
                    )
                )
        if step.shares_optimizer:
            carried = [tuple(range(len(blocks)))] * len(sums)
            sums = sharded_messages(sums, carried, step, first=len(messages))
        messages += sums
    return tuple(messages)
