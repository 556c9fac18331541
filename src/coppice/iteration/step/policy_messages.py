"""Messages of a step, and those of data-parallel policies, which are asked stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.step.block import GroupExchange, LayerBlock, Step

__all__ = ["StepMessage", "policy_messages", "stage_workload"]

_LEAST = 1e-30  # seconds: of a network that is never the limit
_STAGE = 2**20  # more than priorities within a stage
_RINGS = ("all_reduce", "reduce_scatter", "all_gather")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMessage:
    """A message between replicas, outside of passes.

    Attributes:
        name: Its name.
        exchange: What it takes.
        device: The pipeline device that sends it.
        stage: The stage that it is about; None: all of the device, when that has run its passes.
        layers: Blocks of the stage whose gradients are there before it starts.
        after: Numbers of messages that end before it starts.
        after_step: It comes after the optimizer.
        needed_by: Blocks of the stage whose next forward pass waits for it; none: the optimizer waits.
        after_forward: LayerBlock whose next forward pass has started before it starts.
        stream: What carries it.
        priority: The least first.
        credit_bytes: Bytes that its stream takes on before they are acknowledged; None: no limit.
        acknowledgement_seconds: Time from its end until its credit is back.
    """

    name: str
    exchange: GroupExchange
    device: int
    stage: int | None = None
    layers: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    after_step: bool = False
    needed_by: tuple[int, ...] = ()
    after_forward: int | None = None
    stream: str = "network"
    priority: int = 0
    credit_bytes: float | None = None
    acknowledgement_seconds: float = 0.0


def stage_workload(step: Step, stage: int) -> LayerWorkload:
    """A stage as data-parallel policies see it: passes over its blocks for a micro-batch, and gradients of all.

    The network is taken to be as fast as between half and all of the gradients.

    Args:
        step: The step, of several replicas.
        stage: The stage.
    """
    blocks = step.stages[stage]
    size = step.gradient_bytes * sum(block.parameters for block in blocks) / 2 or 1.0
    once, twice = (step.message("all_reduce", each).seconds for each in (size, 2 * size))
    return LayerWorkload(
        forward=tuple(block.forward + _inside(block, ("forward",)) for block in blocks),
        backward=tuple(
            block.compute - block.forward + _inside(block, ("backward", "recompute")) for block in blocks
        ),
        bytes=tuple(step.gradient_bytes * block.parameters for block in blocks),
        bytes_per_second=size / max(twice - once, _LEAST),
        message_seconds=max(0.0, 2 * once - twice),
        workers=step.replicas,
        element_bytes=step.gradient_bytes,
    )


def _inside(block: LayerBlock, when: tuple[str, ...]) -> float:
    """Exchanges that hold passes up."""
    return sum(each.seconds for each in block.exchanges if each.when in when)


def policy_messages(
    policy: DataParallelPolicy, step: Step, order: PipelineOrder
) -> tuple[list[StepMessage], bool]:
    """The messages of a policy, and whether the optimizer steps when all have arrived.

    Of several stages of a device the one nearest to the input goes first, where the policy has priorities at all.

    Args:
        policy: The policy.
        step: The step, of several replicas.
        order: Which device has which stage.
    """
    found: list[StepMessage] = []
    device_of = order.device_of()
    at_once = True
    for stage in range(len(step.stages)):
        workload = stage_workload(step, stage)
        if not sum(workload.bytes):
            continue
        messages = policy.messages(workload)
        at_once &= all(message.needed_by == workload.roots for message in messages)
        ranked = any(message.priority for message in messages)
        first = len(found)
        for message in messages:
            loads = {}
            if message.collective in _RINGS:
                loads = dict(step.message(message.collective, message.size_bytes).loads)
            found.append(
                StepMessage(
                    name=f"{message.name} of stage {stage}",
                    exchange=GroupExchange(
                        group="dp",
                        collective=message.collective,
                        size_bytes=message.size_bytes,
                        seconds=message.seconds,
                        loads=loads,
                    ),
                    device=device_of[stage],
                    stage=stage,
                    layers=message.layers,
                    after=tuple(first + number for number in message.after),
                    needed_by=message.needed_by,
                    after_forward=message.after_forward,
                    stream=message.stream,
                    priority=message.priority + _STAGE * stage * ranked,
                    credit_bytes=message.credit_bytes,
                    acknowledgement_seconds=message.acknowledgement_seconds,
                )
            )
    return found, at_once
