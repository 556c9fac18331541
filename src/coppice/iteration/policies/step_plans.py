"""Plans of a job's training step, as policies decide them.

* The baseline: passes, sends, gradient all-reduces and the optimizer take turns.
* A data-parallel policy is asked stage by stage: its messages run beside the last backward pass of a stage, and where
  it lets layers run before all gradients are summed, beside the next iteration.
* ``fold3d``: sums of chunks in two messages, of which the next forward pass awaits one.
* ``megatron`` and ``fsdp``: what replicas shard is gathered ahead, and gradients are scattered beside passes
  (:mod:`coppice.iteration.policies.data_parallel.sharded`).
* ``fast-forward``: gradients of weights fill bubbles, by the times of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.pipeline.stages import StageTimes, weights_last
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.data_parallel.sharded import (
    DistributedOptimizer,
    FullyShardedData,
    ShardedPolicy,
)
from coppice.iteration.policies.pipelined.fold3d import Fold3D, forward_share
from coppice.iteration.policies.policy import ConfiguredPolicy
from coppice.iteration.step.plan import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    LayerBlock,
    LayerPass,
    Message,
    Step,
    StepPlan,
)

_LEAST = 1e-30  # seconds: of a network that is never the limit
_STAGE = 2**20  # more than priorities within a stage
_RINGS = ("all_reduce", "reduce_scatter", "all_gather")
_BUCKET, _BUCKET_OF_REPLICA = 40_000_000, 1_000_000
BASELINE = "none"
"""Nothing overlaps."""


def plan_named(name: str, step: Step, order: PipelineOrder) -> StepPlan:
    """Plan of a policy of gradients by its name, with its defaults; ``none``: the baseline."""
    if name == BASELINE:
        return plan_of([], step, order)
    known = {each: policy for each, policy in POLICIES.items() if _decides_gradients(policy)}
    if name not in known:
        raise InputError(f"expected an overlap ({', '.join((BASELINE, *known))}), found {name!r}.")
    return plan_of([known[name].of()], step, order)


def _decides_gradients(policy: type[ConfiguredPolicy]) -> bool:
    return issubclass(policy, DataParallelPolicy | ShardedPolicy | Fold3D)


def plan_of(policies: Sequence[ConfiguredPolicy], step: Step, order: PipelineOrder) -> StepPlan:
    """Plan of the one of some policies that decides about gradients; none of them: the baseline.

    Raises:
        InputError: If replicas shard otherwise than the policy needs.
    """
    policy = next((each for each in policies if _decides_gradients(type(each))), None)
    sharded = any(each.group == "dp" for stage in step.stages for block in stage for each in block.exchanges)
    if policy is None:
        messages = () if sharded else tuple(_at_the_end(step, order))
        return StepPlan(order=order, name=BASELINE, sends_block=True, messages=messages)
    name = policy.name
    if isinstance(policy, FullyShardedData):
        if not sharded and step.replicas > 1:
            raise InputError(
                f"expected parameters that replicas shard for policy {name}, found none: take `shard=zero3`."
            )
        return StepPlan(order=order, name=name, gathers_ahead=True)
    if sharded and step.replicas > 1:
        raise InputError(
            f"expected parameters that replicas keep for policy {name}, found them sharded, so that gradients are "
            "scattered inside passes and no message is left to order: take fsdp."
        )
    if isinstance(policy, Fold3D):
        messages = fold3d_messages(step, order, share=policy.settings.share)
        return StepPlan(order=order, name=name, messages=messages, synchronous_step=False)
    if isinstance(policy, DistributedOptimizer):
        if not step.shares_optimizer and step.replicas > 1:
            raise InputError(
                f"expected an optimizer that replicas shard for policy {name}, found none: take `shard=zero1`."
            )
        return StepPlan(order=order, name=name, messages=tuple(_megatron(step)))
    assert isinstance(policy, DataParallelPolicy)  # by _decides_gradients
    if step.replicas == 1:
        return StepPlan(order=order, name=name)
    return _data_parallel(policy, step, order)


def _at_the_end(step: Step, order: PipelineOrder) -> list[Message]:
    """One all-reduce of all gradients of a device after its passes."""
    if step.replicas == 1:
        return []
    own = [0.0] * len(order.devices)
    for stage, device in order.device_of().items():
        own[device] += sum(block.parameters for block in step.stages[stage])
    return [
        Message.of(
            step.message("all_reduce", step.gradient_bytes * weights),
            name=f"gradients of device {device}",
            stage=None,
            device=device,
        )
        for device, weights in enumerate(own)
        if weights
    ]


def _megatron(step: Step) -> list[Message]:
    """Gradient buckets in backward order, parameter buckets in forward order."""
    messages: list[Message] = []
    if step.replicas == 1:
        return messages
    most = max(_BUCKET, _BUCKET_OF_REPLICA * step.replicas)
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
            scatter = Message.of(
                step.message("reduce_scatter", size),
                name=f"gradients of {words}",
                stage=stage,
                layers=tuple(layers),
            )
            gather = Message.of(
                step.message("all_gather", size),
                name=f"parameters of {words}",
                stage=stage,
                after_step=True,
                needed_by=tuple(layers),
                priority=stage * 2**20 + min(layers),
            )
            messages += [scatter, gather]
    return messages


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
    messages: Sequence[Message], carried: Sequence[tuple[int, ...]], step: Step, *, first: int
) -> list[Message]:
    """Messages of a stage whose replicas shard the optimizer: gradients are scattered, parameters gathered.

    Args:
        messages: All-reduces, or reduce-scatters and all-gathers.
        carried: Blocks whose gradients each carries.
        first: Number of the first message.
    """
    found: list[Message] = []
    gathers: list[Message] = []
    for number, (each, layers) in enumerate(zip(messages, carried, strict=True), first):
        if each.collective == "all_gather":
            found.append(replace(each, after_step=True, layers=layers))
            continue
        scattered = replace(each, needed_by=layers)
        if each.collective == "all_reduce":
            scattered = _sent(scattered, step, "reduce_scatter")
            gathers.append(
                replace(
                    _sent(each, step, "all_gather"),
                    name=f"parameters of {each.name}",
                    after=(number,),
                    after_step=True,
                    layers=layers,
                    priority=each.priority or _STAGE * (each.stage or 0) + min(layers),
                )
            )
        found.append(scattered)
    return [*found, *gathers]


def _sent(each: Message, step: Step, collective: str) -> Message:
    """A message as another collective of the same bytes."""
    taken = step.message(collective, each.size_bytes)
    return replace(each, collective=collective, seconds=taken.seconds, loads=taken.loads)


def _data_parallel(policy: DataParallelPolicy, step: Step, order: PipelineOrder) -> StepPlan:
    """Messages of a policy, stage by stage.

    Of several stages of a device the one nearest to the input goes first, where the policy has priorities at all.
    Where replicas shard the optimizer (ZeRO-1, ZeRO-2) an all-reduce becomes two messages: gradients are scattered when
    the policy sends them, and parameters gathered before what the policy lets wait for the sum.

    Raises:
        InputError: If replicas shard the optimizer, and the policy sends gradients otherwise than by collectives.
    """
    found: list[Message] = []
    backward: dict[int, Sequence[LayerPass]] = {}
    synchronous = True
    for stage in range(len(step.stages)):
        workload = stage_workload(step, stage)
        if not sum(workload.bytes):
            continue
        messages = policy.messages(workload)
        turns = policy.backward(workload)
        if turns != [LayerPass(Work.BACKWARD, layer) for layer in reversed(range(workload.layers))]:
            backward[stage] = turns
        synchronous &= all(message.needed_by == workload.roots for message in messages)
        ranked = any(message.priority for message in messages)
        first = len(found)
        if step.shares_optimizer:
            _refuse_servers(policy, messages)
        for message in messages:
            loads = message.loads
            if message.collective in _RINGS:
                loads = step.message(message.collective, message.size_bytes).loads
            found.append(
                replace(
                    message,
                    name=f"{message.name} of stage {stage}",
                    loads=loads,
                    stage=stage,
                    after=tuple(first + number for number in message.after),
                    priority=message.priority + _STAGE * stage * ranked,
                )
            )
        if step.shares_optimizer:
            carried = [message.gradients for message in messages]
            found[first:] = sharded_messages(found[first:], carried, step, first=first)
    if backward and order.co_scheduled:
        raise InputError(
            f"expected passes in turn for policy {policy.name}, found an order that runs two at once: take 1f1b."
        )
    return StepPlan(
        order=order,
        name=policy.name,
        messages=tuple(found),
        synchronous_step=synchronous,
        backward=backward,
    )


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


def fold3d_messages(step: Step, order: PipelineOrder, *, share: float | None = None) -> tuple[Message, ...]:
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
    messages: list[Message] = []
    started: set[int] = set()
    for stage, blocks in enumerate(step.stages):
        device = device_of[stage]
        size = step.gradient_bytes * sum(block.parameters for block in blocks)
        later = share if device in started else 0.0
        started.add(device)
        if step.replicas < 2 or not size:
            continue
        sums: list[Message] = []
        for part, words, priority in ((1 - later, "", 0), (later, ", the rest", 1 + stage)):
            if part:
                sums.append(
                    Message.of(
                        step.message("all_reduce", part * size),
                        name=f"gradients of stage {stage}{words}",
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
