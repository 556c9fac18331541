"""Closed-form iteration time of a transformer on boxes of GPUs: what its layers, its pipeline and its replicas take.

Theory. The blocks of a step (:mod:`coppice.iteration.step.blocks`) say what a layer of a micro-batch computes and
exchanges. In a pipeline of p devices with v chunks each the slowest stage, which is the last one with the head if all
have as many layers, runs all m micro-batches, and the others fill and drain it in 1 / v of their time. Stages send each
other shares of activations, which ranks of a tensor-parallel group gather where they do not keep shares. Replicas sum
their gradients at the end.

Not modelled: sums that run beside computation (of gradients beside the last backward pass, of ZeRO-3, of sequence
parallelism), trouble of allocators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coppice.iteration.layout import Layout, Shard
from coppice.iteration.machine import Cluster
from coppice.iteration.step.blocks import OPTIMIZER_BYTES, end_blocks, kinds_of_blocks
from coppice.iteration.step.exchanges import exchange_seconds, stage_send, tensors_of
from coppice.iteration.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Breakdown of the iteration time, in seconds on the slowest device."""

    compute: float  # Passes of its layers
    head: float  # The output layer and the loss, on the last stage, and what embeds on the same device
    tensor: float  # Activation all-reduces of tensor parallelism
    sends: float  # Activations between stages
    bubble: float  # Filling and draining the pipeline
    gradients: float  # Sums over replicas that computation does not hide
    optimizer: float  # The step
    flops: float  # Operations of a forward and backward pass of all GPUs, nothing recomputed
    peak: float  # Operations a second of all GPUs, by the data sheet
    # Tokens that go to experts, rows of embedding tables, keys and values of context parallelism
    exchange: float = 0.0

    @property
    def seconds(self) -> float:
        """Iteration time."""
        beside = self.tensor + self.sends + self.bubble + self.gradients + self.optimizer + self.exchange
        return self.compute + self.head + beside

    @property
    def mfu(self) -> float:
        """Model FLOP/s utilisation (MFU)."""
        return self.flops / self.seconds / self.peak


def estimate(model: Transformer, layout: Layout, cluster: Cluster) -> Estimate:
    """Estimate the iteration time.

    Args:
        layout: How the job lies on the GPUs.
    """
    framework = cluster.framework
    tensor, count, stages = layout.tensor, layout.micro_batches, layout.pipeline
    embedding, head = end_blocks(model, layout, cluster)
    computed = summing = gathering = exchanged = 0.0
    for block, number in kinds_of_blocks(model, layout, cluster):
        share = number / model.layers
        computed += share * block.compute
        summing += share * exchange_seconds(block.exchanges, "tp")
        gathering += share * exchange_seconds(block.exchanges, "dp")
        exchanged += share * exchange_seconds(block.exchanges, "ep", "cp")
    sending = 2 * layout.chunks * stage_send(model, layout, cluster).seconds if stages > 1 else 0.0
    layer = computed + summing + gathering + exchanged
    held, heads = model.layers / stages, 1
    if stages > 1 and (framework.balanced or model.layers % (stages * layout.chunks)):
        held, heads = _slowest(model.layers, stages, layer, head.compute)
    ends = heads * head.compute + (embedding.compute if stages == 1 else 0.0)
    others = model.layers * layer + head.compute + embedding.compute - held * layer - ends
    weights = (model.dense_parameters / stages + model.vocab * model.hidden) / tensor
    routed = model.routed_parameters / stages / tensor / layout.expert
    gradients = 0.0
    if layout.shard is not Shard.ZERO3:
        messages = 1.0
        if framework.by_tensor and layout.shard is Shard.ZERO1:
            messages = tensors_of(model) * model.layers / stages
        size = framework.gradient_bytes * weights / messages
        gradients = messages * cluster.replicas_seconds(size, layout.replicas, layout.sharing, layout.tensor)
        if routed:
            few = layout.replicas // layout.expert
            gradients += cluster.ring_seconds(
                framework.gradient_bytes * routed, few, tensor * layout.expert, share=cluster.gradient_share
            )
    stepped = weights + routed
    if layout.shard is not Shard.NONE:
        stepped = weights / layout.sharing + routed / layout.sharing_experts
    return Estimate(
        compute=count * held * computed,
        head=count * ends,
        tensor=count * held * summing,
        sends=count * sending,
        bubble=(others + (stages - 1) * sending) / layout.chunks,
        gradients=gradients + count * held * gathering,
        exchange=count * held * exchanged,
        optimizer=framework.step_seconds + OPTIMIZER_BYTES * stepped / cluster.memory_rate,
        flops=3 * model.forward_flops(layout.global_batch),
        peak=layout.gpus * cluster.device.flops,
    )


def _slowest(layers: int, stages: int, layer: float, head: float) -> tuple[int, int]:
    """Layers and heads of the slowest stage in the best partition."""
    dealt = []
    for last in range(layers + 1):
        other = math.ceil((layers - last) / (stages - 1))
        dealt.append(max((other * layer, other, 0), (last * layer + head, last, 1)))
    _, held, heads = min(dealt)
    return held, heads
