"""Messages of a step, and messages of data-parallel policies, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.messages import Message
from coppice.iteration.step.block import GroupExchange, LayerBlock, Step

_LEAST = 1e-30  # seconds: of a network that is never the limit
_STAGE = 2**20  # more than priorities within a stage
_RINGS = ("all_reduce", "reduce_scatter", "all_gather")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMessage:
    """Message between replicas, outside of passes."""

    name: str  # Its name
    exchange: GroupExchange  # What it takes
    device: int  # The pipeline device that sends it
    # The stage that it is about; None: all of the device, when that has run its passes
    stage: int | None = None
    # Blocks of the stage whose gradients are there before it starts; after the optimizer: which are updated
    layers: tuple[int, ...] = ()
    after: tuple[int, ...] = ()  # Numbers of messages that end before it starts
    after_step: bool = False  # It comes after the optimizer
    # Blocks of the stage whose next forward pass waits for it; none: the optimizer waits
    needed_by: tuple[int, ...] = ()
    after_forward: int | None = None  # LayerBlock whose next forward pass has started before it starts
    stream: str = "network"  # What carries it
    priority: int = 0  # The least first
    # Bytes that its stream takes on before they are acknowledged; None: no limit
    credit_bytes: float | None = None
    acknowledgement_seconds: float = 0.0  # Time from its end until its credit is back


def stage_workload(step: Step, stage: int) -> LayerWorkload:
    """Workload of a stage for data-parallel policies: passes over its blocks per micro-batch, and all gradients.

    The network is taken to be as fast as between half and all of the gradients.
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
    """Exposed collectives inside passes."""
    return sum(each.seconds for each in block.exchanges if each.when in when)


@dataclass(frozen=True, kw_only=True)
class StepDecisions:
    """Decisions of a data-parallel policy for a step."""

    messages: list[StepMessage]  # Its messages
    synchronous_step: bool  # The optimizer steps when all have arrived
    # Stages whose last backward pass has an order of its own: passes and halves of them over blocks
    backward: dict[int, list[tuple[Work, int]]]


_WORKS = {"backward": Work.BACKWARD, "input_gradient": Work.INPUT, "weight_gradient": Work.WEIGHT}


def _refuse_servers(policy: DataParallelPolicy, messages: Sequence[Message]) -> None:
    """Refuse what replicas that shard the optimizer cannot send."""
    other = next((each.collective for each in messages if each.collective not in _RINGS), None)
    if other is not None:
        what = "servers keep the optimizer" if other in ("push", "pull") else "factors are of whole gradients"
        raise InputError(
            f"expected an optimizer that replicas do not shard for policy {policy.name}, found one, but its {what}: "
            "take `shard=none`, or a policy that sums gradients."
        )


def sharded_messages(
    messages: Sequence[StepMessage], carried: Sequence[tuple[int, ...]], step: Step, *, first: int
) -> list[StepMessage]:
    """Messages of a stage whose replicas shard the optimizer: gradients are scattered, parameters gathered.

    Args:
        messages: All-reduces, or reduce-scatters and all-gathers.
        carried: Blocks whose gradients each carries.
        first: Number of the first message.
    """
    found: list[StepMessage] = []
    gathers: list[StepMessage] = []
    for number, (each, layers) in enumerate(zip(messages, carried, strict=True), first):
        if each.exchange.collective == "all_gather":
            found.append(replace(each, after_step=True, layers=layers))
            continue
        scattered = replace(each, needed_by=layers)
        if each.exchange.collective == "all_reduce":
            size = each.exchange.size_bytes
            scattered = replace(scattered, exchange=step.message("reduce_scatter", size))
            gathers.append(
                replace(
                    each,
                    name=f"parameters of {each.name}",
                    exchange=step.message("all_gather", size),
                    after=(number,),
                    after_step=True,
                    layers=layers,
                    priority=each.priority or _STAGE * (each.stage or 0) + min(layers),
                )
            )
        found.append(scattered)
    return [*found, *gathers]


def policy_messages(policy: DataParallelPolicy, step: Step, order: PipelineOrder) -> StepDecisions:
    """Messages of a policy, stage by stage.

    Of several stages of a device the one nearest to the input goes first, where the policy has priorities at all.
    Where replicas shard the optimizer (ZeRO-1, ZeRO-2) an all-reduce becomes two messages: gradients are scattered when
    the policy sends them, and parameters gathered before what the policy lets wait for the sum.

    Raises:
        InputError: If replicas shard the optimizer, and the policy sends gradients otherwise than by collectives.
    """
    found: list[StepMessage] = []
    backward: dict[int, list[tuple[Work, int]]] = {}
    device_of = order.device_of()
    synchronous = True
    for stage in range(len(step.stages)):
        workload = stage_workload(step, stage)
        if not sum(workload.bytes):
            continue
        messages = policy.messages(workload)
        turns = [(_WORKS[each.kind], each.layer) for each in policy.backward(workload)]
        if turns != [(Work.BACKWARD, layer) for layer in reversed(range(workload.layers))]:
            backward[stage] = turns
        synchronous &= all(message.needed_by == workload.roots for message in messages)
        ranked = any(message.priority for message in messages)
        first = len(found)
        if step.shares_optimizer:
            _refuse_servers(policy, messages)
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
        if step.shares_optimizer:
            carried = [message.gradients for message in messages]
            found[first:] = sharded_messages(found[first:], carried, step, first=first)
    return StepDecisions(messages=found, synchronous_step=synchronous, backward=backward)
