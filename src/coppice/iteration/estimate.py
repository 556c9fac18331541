"""Closed-form iteration time of a transformer on boxes of GPUs, by component.

Theory. Layers, sends and messages take what :mod:`coppice.iteration.layer_work` says. In a pipeline of p devices with v
chunks each the slowest stage, which is the last one with the head if all have as many layers, runs all m micro-batches,
and the others fill and drain it in 1 / v of their time. Replicas sum their gradients at the end.

Not modelled: sums that run beside computation (of gradients beside the last backward pass, of ZeRO-3, of sequence
parallelism), trouble of allocators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coppice.iteration.layer_work import (
    OPTIMIZER_BYTES,
    LayerWork,
    context_seconds,
    gathering_seconds,
    hop_seconds,
    routing_seconds,
    tensors_of,
)
from coppice.iteration.machine import Cluster
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer, layer_kinds

_HALF = 2  # bytes of an element of activations


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Breakdown of the iteration time, in seconds on the slowest device."""

    compute: float  # Passes of its layers
    head: float  # The output layer and the loss, on the last stage
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
    work = LayerWork.of(model, layout, cluster)
    tensor, count, stages = layout.tensor, layout.micro_batches, layout.pipeline
    replicas = layout.data * layout.context
    sums = 4 + 2 * (layout.recompute is Recompute.FULL)
    activations = _HALF * work.tokens * model.hidden
    summing = sums * cluster.sum_seconds(activations, tensor, split=layout.sequence_parallel)
    gathering = gathering_seconds(model, layout, cluster)
    sending = 2 * layout.chunks * hop_seconds(model, layout, cluster) if stages > 1 else 0.0
    mixed = model.expert_layers / model.layers
    routing = mixed * sums * routing_seconds(model, layout, cluster)
    again = layout.recompute is Recompute.FULL
    waits = [(context_seconds(view, layout, cluster), count) for view, count in layer_kinds(model)]
    exchanged = routing + sum(((1 + again) * first + then) * n for (first, then), n in waits) / model.layers
    layer = work.layer + summing + gathering + exchanged
    held, heads = model.layers / stages, 1
    if stages > 1 and (framework.balanced or model.layers % (stages * layout.chunks)):
        held, heads = _slowest(model.layers, stages, layer, work.head)
    others = model.layers * layer + work.head - held * layer - heads * work.head
    own = (model.dense_parameters / stages + model.vocab * model.hidden) / tensor
    routed = model.routed_parameters / stages / tensor / layout.expert
    gradients = 0.0
    if layout.shard is not Shard.ZERO3:
        share = cluster.gradient_share
        messages = 1.0
        if framework.by_tensor and layout.shard is Shard.ZERO1:
            messages = tensors_of(model) * model.layers / stages
        size = framework.gradient_bytes * own / messages
        gradients = messages * cluster.ring_seconds(size, replicas, tensor, share=share)
        size, few = framework.gradient_bytes * routed, replicas // layout.expert
        gradients += cluster.ring_seconds(size, few, tensor * layout.expert, share=share) if routed else 0.0
    stepped = own + routed
    if layout.shard is not Shard.NONE:
        stepped = own / replicas + routed * layout.expert / replicas
    return Estimate(
        compute=count * held * work.layer,
        head=count * heads * work.head,
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
