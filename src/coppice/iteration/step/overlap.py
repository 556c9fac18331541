"""Overlap of a step's communication: none, a data-parallel policy's messages, ZeRO-3, or Megatron's optimizer.

* ``none``: passes, sends, gradient all-reduces and the optimizer take turns.
* ``fsdp``: parameters that replicas shard are gathered while the layer before computes, two layers at a time, and
  gradients are scattered beside the backward pass, for every micro-batch (ZeRO-3: Rajbhandari et al., SC 2020; PyTorch
  FSDP: Zhao et al., VLDB 2023, section 3.3, whose limit on gathers in flight is two as well).
* a data-parallel policy by its name, asked stage by stage: its messages run beside the last backward pass of a stage,
  and where it lets layers run before all gradients are summed, beside the next iteration.
* ``fold3d``: sums of chunks in two messages, of which the next forward pass awaits one (Fold3D, TPDS 2023).
* ``megatron``: the distributed optimizer of Megatron-LM with both of its overlaps: buckets of gradients are scattered
  beside the last backward passes, and of parameters gathered beside the first forward passes of the next iteration. A
  bucket has 40 million weights, or a million for each replica if that is more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.pipelined.steps import fold3d_messages
from coppice.iteration.step.block import Step
from coppice.iteration.step.policy_messages import StepMessage, policy_messages

_BUCKET, _BUCKET_OF_REPLICA = 40_000_000, 1_000_000
OVERLAPS = (
    "none",
    "fsdp",
    "megatron",
    *(name for name, policy in POLICIES.items() if issubclass(policy, DataParallelPolicy)),
    "fold3d",
)
"""What may run beside computation."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Kind of overlap of communication and computation."""

    name: str  # Its name
    sends_block: bool = False  # A device waits until what it sends to another stage has arrived
    gathers_ahead: bool = False  # Exchanges between replicas inside passes run beside computation
    messages: tuple[StepMessage, ...] = ()  # Messages about gradients and parameters
    # The optimizer steps everywhere at once; otherwise a block is updated before its next forward pass, when
    # its messages are there
    synchronous_step: bool = True
    # For stages whose last backward pass is not taken from the last block to the first: whole backward passes
    # and their halves over blocks, in order
    backward: Mapping[int, Sequence[tuple[Work, int]]] = field(default_factory=dict)

    @property
    def crosses(self) -> bool:
        """Whether messages overlap with the next iteration."""
        return not self.synchronous_step or any(message.after_step for message in self.messages)


def overlap_named(name: str, step: Step, order: PipelineOrder) -> Overlap:
    """Look up a kind of overlap.

    Args:
        name: One of :data:`OVERLAPS`.
    """
    if name not in OVERLAPS:
        raise InputError(f"expected an overlap ({', '.join(OVERLAPS)}), found {name!r}.")
    sharded = any(each.group == "dp" for stage in step.stages for block in stage for each in block.exchanges)
    if name == "none":
        return Overlap(
            name=name, sends_block=True, messages=() if sharded else tuple(_at_the_end(step, order))
        )
    if name == "fsdp":
        if not sharded and step.replicas > 1:
            raise InputError(
                "expected parameters that replicas shard for overlap fsdp, found none: take `shard=zero3`."
            )
        return Overlap(name=name, gathers_ahead=True)
    if name == "fold3d":
        _refuse_shared(name, step, optimizer=True)
        return Overlap(name=name, messages=fold3d_messages(step, order), synchronous_step=False)
    if name == "megatron":
        _refuse_shared(name, step, optimizer=False)
        if not step.shares_optimizer and step.replicas > 1:
            raise InputError(
                "expected an optimizer that replicas shard for overlap megatron, found none: take `shard=zero1`."
            )
        return Overlap(name=name, messages=tuple(_megatron(step, order)))
    policy = POLICIES[name].of()
    assert isinstance(policy, DataParallelPolicy)  # by OVERLAPS
    return overlap_by(policy, step, order)


def _refuse_shared(name: str, step: Step, *, optimizer: bool) -> None:
    """Refuse a step whose replicas shard parameters, or the optimizer if that matters."""
    if step.replicas == 1:
        return
    if any(each.group == "dp" for stage in step.stages for block in stage for each in block.exchanges):
        raise InputError(
            f"expected parameters that replicas keep for overlap {name}, found them sharded: take fsdp."
        )
    if optimizer and step.shares_optimizer:
        raise InputError(
            f"expected an optimizer that replicas do not shard for overlap {name}, found one: take megatron."
        )


def overlap_by(policy: DataParallelPolicy, step: Step, order: PipelineOrder) -> Overlap:
    """Overlap by a data-parallel policy."""
    _refuse_shared(policy.name, step, optimizer=True)
    if step.replicas == 1:
        return Overlap(name=policy.name)
    decided = policy_messages(policy, step, order)
    if decided.backward and order.co_scheduled:
        raise InputError(
            f"expected passes in turn for policy {policy.name}, found an order that runs two at once: take 1f1b."
        )
    return Overlap(
        name=policy.name,
        messages=tuple(decided.messages),
        synchronous_step=decided.synchronous_step,
        backward=decided.backward,
    )


def _at_the_end(step: Step, order: PipelineOrder) -> list[StepMessage]:
    """One all-reduce of all gradients of a device after its passes."""
    if step.replicas == 1:
        return []
    own = [0.0] * len(order.devices)
    for stage, device in order.device_of().items():
        own[device] += sum(block.parameters for block in step.stages[stage])
    return [
        StepMessage(
            name=f"gradients of device {device}",
            exchange=step.message("all_reduce", step.gradient_bytes * weights),
            device=device,
        )
        for device, weights in enumerate(own)
        if weights
    ]


def _megatron(step: Step, order: PipelineOrder) -> list[StepMessage]:
    """Gradient buckets in backward order, parameter buckets in forward order."""
    messages: list[StepMessage] = []
    if step.replicas == 1:
        return messages
    most = max(_BUCKET, _BUCKET_OF_REPLICA * step.replicas)
    device_of = order.device_of()
    for stage, blocks in enumerate(step.stages):
        buckets: list[tuple[list[int], float]] = []
        for layer in reversed(range(len(blocks))):
            if not buckets or buckets[-1][1] >= most:
                buckets.append(([], 0.0))
            layers, weights = buckets[-1]
            buckets[-1] = ([*layers, layer], weights + blocks[layer].parameters)
        for number, (layers, weights) in enumerate(buckets):
            if not weights:
                continue
            size, words = step.gradient_bytes * weights, f"bucket {number} of stage {stage}"
            scatter = StepMessage(
                name=f"gradients of {words}",
                exchange=step.message("reduce_scatter", size),
                device=device_of[stage],
                stage=stage,
                layers=tuple(layers),
            )
            gather = StepMessage(
                name=f"parameters of {words}",
                exchange=step.message("all_gather", size),
                device=device_of[stage],
                stage=stage,
                after_step=True,
                needed_by=tuple(layers),
                priority=stage * 2**20 + min(layers),
            )
            messages += [scatter, gather]
    return messages
