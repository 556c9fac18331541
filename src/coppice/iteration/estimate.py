"""Closed-form iteration time of a transformer on boxes of GPUs: the work of a layer, and what components take.

Theory. A layer takes the time of its matrix products, of attention, and of passes over activations at the rate of
memory; at least what the host needs to launch them. The backward pass takes twice as long, and what is recomputed once
more. The gradient of a weight is added to the sum of earlier micro-batches. Tensor parallelism sums the activations of
a layer over its ranks four times, six times where all is recomputed. Stages send each other shares of activations,
which ranks of a tensor-parallel group gather where they do not keep shares. ZeRO-3 gathers parameters and scatters
gradients for each layer of each micro-batch. A GPU that stalls stops all of them, so that passes take longer the more
GPUs there are.

In a pipeline of p devices with v chunks each the slowest stage, which is the last one with the head if all have as
many layers, runs all m micro-batches, and the others fill and drain it in 1 / v of their time. Replicas sum their
gradients at the end.

Not modelled: sums that run beside computation (of gradients beside the last backward pass, of ZeRO-3, of sequence
parallelism), trouble of allocators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from coppice.iteration.machine import Cluster
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer, layer_kinds

_HALF = 2  # bytes of an element of activations, parameters and gradients
OPTIMIZER_BYTES = 34
"""What Adam reads and writes for a parameter, its 32-bit states and copy included, and the norm of its gradient."""
_COPIES = 4  # passes over what is gathered into a list of parts and put together from them
ROUTED_PASSES = 9.67
"""Passes over tokens that go to experts: permutation there and back, and their weighted sum."""
CAST_PASSES = 3.43
"""Passes over operands of 8 bits or fewer: their largest value, scaling, and the transposed copy."""


@dataclass(frozen=True)
class LayerWork:
    """Compute time of a GPU per micro-batch."""

    tokens: float  # Its tokens
    forward: float  # Seconds of the forward pass of a layer
    backward: float  # Seconds of its backward pass, with what is computed again
    head: float  # Seconds of the output layer and the loss, forward and backward
    recompute: float  # Seconds of the backward pass for what is computed again

    @property
    def layer(self) -> float:
        """Forward and backward time of a layer."""
        return self.forward + self.backward

    @classmethod
    def of(cls, model: Transformer, layout: Layout, cluster: Cluster) -> LayerWork:
        """Work of a layer; of a model with experts in some layers, on average."""
        kinds = layer_kinds(model)
        works = {view: cls._of_kind(view, layout, cluster) for view, _ in kinds}
        found = cls(
            **{
                each.name: sum(count * getattr(works[view], each.name) for view, count in kinds)
                / model.layers
                for each in fields(cls)
            }
        )
        if not model.mtp_layers:
            return found
        joined = 3 * cluster.product_seconds(found.tokens, model.hidden / layout.tensor, 2 * model.hidden)
        further = found.head + joined + works[model.of_layer(model.layers - 1)].layer
        return replace(found, head=found.head + model.mtp_layers * further)

    @classmethod
    def _of_kind(cls, model: Transformer, layout: Layout, cluster: Cluster) -> LayerWork:
        """Work of a layer, where all are alike, and of the output layer once."""
        memory, framework, tensor = cluster.memory_rate, cluster.framework, layout.tensor
        tokens = layout.micro_batch * model.seq / layout.context
        own = tokens / tensor
        products = products_seconds(model, tokens, tensor, cluster)
        passes = framework.norm_passes * model.hidden * (own if layout.sequence_parallel else tokens)
        passes += framework.activation_passes * own * model.mlp_width * (model.mlp_matrices - 1)
        passes += framework.attention_passes * own * (model.query_width + model.key_value_width)
        passes += (
            framework.attention_passes * (own if layout.sequence_parallel else tokens) * model.latent_width
        )
        if model.experts:
            products += _routed_seconds(model, layout, cluster, tokens)
            passes += ROUTED_PASSES * own * model.hidden * model.routed_share
        moved = passes * _HALF / memory
        attention, behind = attention_seconds(model, layout, cluster)
        stalls = stalls_of(layout.gpus, cluster)
        host = cluster.host_seconds
        forward = max((products + attention + moved) * stalls, host)
        backward = max((2 * (products + moved) + behind) * stalls, 2 * host)
        again = {
            Recompute.NONE: 0.0,
            # What attention computes that keeps its scores on the chip is not kept in any case.
            Recompute.SELECTIVE: 0.0 if layout.fused_attention else attention * stalls,
            Recompute.FULL: forward,
        }[layout.recompute]
        backward += accumulating_seconds(_layer_weights(model, layout), layout, cluster)
        scored = (model.scored_tokens or model.seq) / model.seq
        head = 3 * cluster.product_seconds(tokens * scored, model.vocab / tensor, model.hidden, precision=1.0)
        words = tokens if framework.gathers_logits else own
        head += framework.loss_passes * words * scored * model.vocab * _HALF / memory
        return cls(
            tokens=tokens,
            forward=forward,
            backward=backward + again,
            head=head * stalls,
            recompute=again,
        )


def attention_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[float, float]:
    """Forward and backward time of attention itself in a layer, where all are alike."""
    # Kernels that keep scores on the chip skip what a window hides; others compute it.
    seen = model.seen_tokens if layout.fused_attention else model.seq
    wide = model.query_width + model.context_width
    own = layout.micro_batch * model.seq / layout.context / layout.tensor
    forward, backward = (
        cluster.attention_seconds(
            2 * own * seen * wide,
            sequences=layout.micro_batch / layout.context,
            seq=seen,
            heads=model.heads / layout.tensor,
            width=wide / model.heads / 2,
            causal=model.causal,
            fused=layout.fused_attention,
            backward=backward,
        )
        for backward in (False, True)
    )
    return forward, backward


def stalls_of(gpus: int, cluster: Cluster) -> float:
    """Factor by which passes take longer on many GPUs."""
    return 1 + cluster.calibration.stall_share * math.sqrt(gpus / 1000)


def _layer_weights(model: Transformer, layout: Layout) -> float:
    """Weights of a layer on a GPU."""
    routed = model.routed_parameters / model.layers / layout.expert
    return (model.dense_parameters / model.layers + routed) / layout.tensor


def accumulating_seconds(weights: float, layout: Layout, cluster: Cluster) -> float:
    """Seconds of adding a micro-batch's gradients to those of the ones before; with ZeRO-3, of a replica's share."""
    share = layout.replicas if layout.shard is Shard.ZERO3 else 1
    return cluster.framework.accumulated_bytes * weights / share / cluster.memory_rate


def products_seconds(model: Transformer, tokens: float, tensor: int, cluster: Cluster) -> float:
    """Forward time of a layer's matrix products on one tensor-parallel rank.

    Those of experts that tokens are sent to are not among them.
    """
    wide = model.mlp_matrices - 1
    if model.kv_rank:
        heads = model.query_width - model.heads * model.rope_width + model.context_width
        down = model.latent_width if model.query_rank else model.latent_width + model.query_width / tensor
        seconds = cluster.product_seconds(tokens, down, model.hidden)
        if model.query_rank:
            seconds += cluster.product_seconds(tokens, model.query_width / tensor, model.query_rank)
        seconds += cluster.product_seconds(tokens, heads / tensor, model.kv_rank)
        columns = model.query_width + heads + tensor * model.latent_width + model.hidden
    else:
        queries = model.query_width + model.key_value_width
        seconds = cluster.product_seconds(tokens, queries / tensor, model.hidden)
        columns = queries + model.hidden
    seconds += cluster.product_seconds(tokens, model.hidden, model.context_width / tensor)
    ffn = model.shared_ffn if model.experts else model.ffn
    if model.experts:
        seconds += cluster.product_seconds(tokens / tensor, model.experts, model.hidden, precision=1.0)
    if ffn:
        seconds += cluster.product_seconds(tokens, wide * ffn / tensor, model.hidden)
        seconds += cluster.product_seconds(tokens, model.hidden, ffn / tensor)
        columns += wide * ffn + model.hidden
    if cluster.precision > 1:
        seconds += CAST_PASSES * tokens * columns / tensor / cluster.memory_rate
    return seconds


def _routed_seconds(model: Transformer, layout: Layout, cluster: Cluster, tokens: float) -> float:
    """Time of the experts' matrix products, with padded slots and few tokens per expert."""
    rows = max(1.0, tokens * model.routed_share * layout.expert / model.experts)
    width, parts = (model.expert_ffn or model.ffn) / layout.tensor, model.experts / layout.expert
    up = cluster.product_seconds(rows, (model.mlp_matrices - 1) * width, model.hidden, parts=parts)
    down = cluster.product_seconds(rows, model.hidden, width, parts=parts)
    return up + down


def tensors_of(model: Transformer) -> int:
    """Number of parameter tensors of a layer: four matrices and the gains of two norms, each with or without a bias."""
    return 12 if model.biases else 6


def hop_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """Time to send a micro-batch's activations to the next stage.

    Each rank of a tensor-parallel group sends its share; without sequence parallelism they gather the whole (scatter
    and gather of Narayanan et al., SC 2021, section 4.1).
    """
    size = _HALF * layout.micro_batch * model.seq / layout.context * model.hidden
    stride = layout.tensor * layout.data * layout.context
    gathered = 0.0 if layout.sequence_parallel else cluster.ring_seconds(size, layout.tensor, 1, rounds=1)
    return cluster.send_seconds(size / layout.tensor, stride, layout.pipeline) + gathered


def routing_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """Time of one all-to-all between expert-parallel ranks per micro-batch."""
    tokens = layout.micro_batch * model.seq / layout.context
    size = _HALF * tokens * model.routed_share * model.hidden / layout.tensor
    return cluster.exchange_seconds(size, layout.expert, layout.tensor)


def context_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[float, float]:
    """Time that a forward and a backward pass of a layer wait for keys and values of other context-parallel ranks.

    They are gathered before a pass, and their gradients scattered after it; or blocks of them go around a ring while
    attention to the block before is computed (Liu et al., arXiv 2310.01889), sequences split so that each rank has as
    many scores, and what takes longer than that is waited for.
    """
    if layout.context == 1:
        return 0.0, 0.0
    size = _HALF * layout.micro_batch * model.seq * model.key_value_width / layout.tensor
    whole = cluster.ring_seconds(size, layout.context, layout.tensor, rounds=1)
    if not layout.context_ring:
        return whole, 2 * whole
    hops = layout.context - 1
    forward, backward = (each / layout.context for each in attention_seconds(model, layout, cluster))
    return hops * max(0.0, whole / hops - forward), hops * max(0.0, 2 * whole / hops - backward)


def gathering_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """Exposed ZeRO-3 time of a layer: parameter all-gather and gradient reduce-scatter."""
    if layout.shard is not Shard.ZERO3:
        return 0.0
    framework = cluster.framework
    size = _HALF * (model.dense_parameters + model.routed_parameters) / model.layers / layout.tensor
    rounds = 3 + framework.regathers * (1 + (layout.recompute is Recompute.FULL))
    messages = tensors_of(model) if framework.by_tensor else 4
    share = cluster.gradient_share
    replicas = layout.data * layout.context
    once = messages * cluster.ring_seconds(size / messages, replicas, layout.tensor, rounds=1, share=share)
    copied = _COPIES * size / cluster.memory_rate if framework.regathers else 0.0
    return rounds * (once + copied)


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
