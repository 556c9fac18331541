"""Overlap of a step's communication, as a policy of gradients decides it.

* The baseline: passes, sends, gradient all-reduces and the optimizer take turns.
* A data-parallel policy is asked stage by stage: its messages run beside the last backward pass of a stage, and where
  it lets layers run before all gradients are summed, beside the next iteration.
* ``fold3d``: sums of chunks in two messages, of which the next forward pass awaits one.
* ``megatron`` and ``fsdp``: what replicas shard is gathered ahead, and gradients are scattered beside passes
  (:mod:`coppice.iteration.policies.data_parallel.sharded`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.data_parallel.sharded import (
    DistributedOptimizer,
    FullyShardedData,
    ShardedPolicy,
)
from coppice.iteration.policies.pipelined.fold3d import Fold3D
from coppice.iteration.policies.pipelined.steps import fold3d_messages
from coppice.iteration.policies.policy import ConfiguredPolicy
from coppice.iteration.step.block import Step
from coppice.iteration.step.policy_messages import StepMessage, policy_messages

_BUCKET, _BUCKET_OF_REPLICA = 40_000_000, 1_000_000
BASELINE = "none"
"""Nothing overlaps."""


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
    """What a policy of gradients overlaps with computation, with its defaults; ``none``: the baseline."""
    if name == BASELINE:
        return overlap_of([], step, order)
    known = {each: policy for each, policy in POLICIES.items() if _decides_gradients(policy)}
    if name not in known:
        raise InputError(f"expected an overlap ({', '.join((BASELINE, *known))}), found {name!r}.")
    return overlap_of([known[name].of()], step, order)


def _decides_gradients(policy: type[ConfiguredPolicy]) -> bool:
    return issubclass(policy, DataParallelPolicy | ShardedPolicy | Fold3D)


def overlap_of(policies: Sequence[ConfiguredPolicy], step: Step, order: PipelineOrder) -> Overlap:
    """What one of some policies overlaps with computation; none of them: the baseline.

    Raises:
        InputError: If replicas shard otherwise than the policy needs.
    """
    policy = next((each for each in policies if _decides_gradients(type(each))), None)
    sharded = any(each.group == "dp" for stage in step.stages for block in stage for each in block.exchanges)
    if policy is None:
        messages = () if sharded else tuple(_at_the_end(step, order))
        return Overlap(name=BASELINE, sends_block=True, messages=messages)
    name = policy.name
    if isinstance(policy, FullyShardedData):
        if not sharded and step.replicas > 1:
            raise InputError(
                f"expected parameters that replicas shard for policy {name}, found none: take `shard=zero3`."
            )
        return Overlap(name=name, gathers_ahead=True)
    if sharded and step.replicas > 1:
        raise InputError(
            f"expected parameters that replicas keep for policy {name}, found them sharded, so that gradients are "
            "scattered inside passes and no message is left to order: take fsdp."
        )
    if isinstance(policy, Fold3D):
        messages = fold3d_messages(step, order, share=policy.settings.share)
        return Overlap(name=name, messages=messages, synchronous_step=False)
    if isinstance(policy, DistributedOptimizer):
        if not step.shares_optimizer and step.replicas > 1:
            raise InputError(
                f"expected an optimizer that replicas shard for policy {name}, found none: take `shard=zero1`."
            )
        return Overlap(name=name, messages=tuple(_megatron(step, order)))
    assert isinstance(policy, DataParallelPolicy)  # by _decides_gradients
    if step.replicas == 1:
        return Overlap(name=name)
    decided = policy_messages(policy, step, order)
    if decided.backward and order.co_scheduled:
        raise InputError(
            f"expected passes in turn for policy {name}, found an order that runs two at once: take 1f1b."
        )
    return Overlap(
        name=name,
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
