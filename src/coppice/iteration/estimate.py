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
from coppice.iteration.recomputation import kinds_of, layers_of, repeated_parts, repeats_routing, sums_of
from coppice.iteration.sharding import gathering_seconds, tensors_of
from coppice.iteration.state_space import BACKWARD_SCAN, VECTOR_SHARE
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer

_HALF = 2  # bytes of an element of activations, parameters and gradients
OPTIMIZER_BYTES = 34
"""What Adam reads and writes for a parameter, its 32-bit states and copy included, and the norm of its gradient."""
ROUTED_PASSES = 12.3
"""Passes over tokens that go to experts: permutation there and back, and their weighted sum."""
CAST_PASSES = 3.42
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
        """Work of a layer; where they differ, on average."""
        kinds = kinds_of(model, layout)
        works = {(view, own): cls._of_kind(view, own, cluster) for view, own, _ in kinds}
        found = cls(
            **{
                each.name: sum(count * getattr(works[view, own], each.name) for view, own, count in kinds)
                / model.layers
                for each in fields(cls)
            }
        )
        if not model.mtp_layers:
            return found
        joined = 3 * cluster.product_seconds(found.tokens, model.hidden / layout.tensor, 2 * model.hidden)
        further = found.head + joined + works[layers_of(model, layout)[-1]].layer
        return replace(found, head=found.head + model.mtp_layers * further)

    @classmethod
    def _of_kind(cls, model: Transformer, layout: Layout, cluster: Cluster) -> LayerWork:
        """Work of a layer, where all are alike, and of the output layer once."""
        memory, framework, tensor = cluster.memory_rate, cluster.framework, layout.tensor
        tokens = layout.micro_batch * model.seq / layout.context
        own = tokens / tensor
        parts = forward_parts(model, layout, cluster)
        behind = attention_seconds(model, layout, cluster)[1] + BACKWARD_SCAN * parts.get("scan", 0.0)
        stalls = stalls_of(layout.gpus, cluster)
        host = cluster.host_seconds * model.sums / 2
        products = sum(parts.values()) - parts["attention"] - parts.get("scan", 0.0)
        forward = max(sum(parts.values()) * stalls, host)
        backward = max((2 * products + behind) * stalls, 2 * host)
        if layout.recompute is Recompute.FULL:
            again = forward
        else:
            shares = repeated_parts(model, layout, framework)
            again = sum(share * parts.get(part, 0.0) for part, share in shares.items()) * stalls
            if layout.recompute is Recompute.OPERATORS:
                again = max(again, host)
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


def forward_parts(model: Transformer, layout: Layout, cluster: Cluster) -> dict[str, float]:
    """Seconds of each part of the forward pass of a layer, where all are alike.

    Parts are products (:func:`layer_products`), passes over activations at the rate of memory, and attention.
    """
    framework, tensor = cluster.framework, layout.tensor
    tokens = layout.micro_batch * model.seq / layout.context
    own = tokens / tensor
    split = own if layout.sequence_parallel else tokens
    wide = model.mlp_matrices - 1
    attends, dense = model.share("*"), model.share("-")
    values = {
        "norms": framework.norm_passes * model.hidden * split * model.sums / 2,
        "rotation": framework.attention_passes * own * attends * (model.query_width + model.key_value_width),
        "latent_norms": framework.attention_passes * split * attends * model.latent_width,
    }
    if model.experts:
        routed = model.routed_share * (model.expert_ffn or model.ffn)
        values["shared_activation"] = framework.activation_passes * own * model.shared_ffn * wide
        values["routed_activation"] = framework.activation_passes * own * routed * wide
        values["permutation"] = ROUTED_PASSES * own * model.hidden * model.routed_share
    elif dense:
        values["activation"] = framework.activation_passes * own * model.ffn * wide
    if model.share("M"):
        # Convolved values are read and written, and so are gates and results for the norm behind the scan.
        values["convolution"] = own * (2 * model.state_space.convolved + 3 * model.state_space.inner)
    parts = {name: passed * _HALF / cluster.memory_rate for name, passed in values.items()}
    parts |= layer_products(model, tokens, tensor, cluster)
    if model.experts:
        parts["routed"] = _routed_seconds(model, layout, cluster, tokens)
    if model.share("M"):
        parts["scan"] = scan_seconds(model, own, cluster)
    parts["attention"] = attention_seconds(model, layout, cluster)[0]
    return parts


def scan_seconds(model: Transformer, tokens: float, cluster: Cluster) -> float:
    """Forward time of the scan of a state-space layer, of a tensor-parallel rank's share of so many tokens.

    Mamba-2 multiplies matrices, in Triton; Mamba scans outside of tensor cores.
    """
    layer = model.state_space
    share = VECTOR_SHARE if layer.rank else cluster.calibration.attention_share.get("triton", 0.3)
    flops = cluster.device.flops * cluster.clock_share * share
    return tokens * (layer.scan_flops / flops + layer.scan_bytes / cluster.memory_rate)


def attention_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[float, float]:
    """Forward and backward time of attention itself in a layer, where all are alike."""
    if not model.share("*"):
        return 0.0, 0.0
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
    return sum(layer_products(model, tokens, tensor, cluster).values())


def layer_products(model: Transformer, tokens: float, tensor: int, cluster: Cluster) -> dict[str, float]:
    """Forward time of the products of :func:`products_seconds`, each with the casts of its operands to 8 bits."""
    made: dict[str, float] = {}
    columns: dict[str, float] = {}
    if model.share("M"):
        for name, (n, k) in model.state_space.products.items():
            inner = k if name in ("state_in", "state_steps") else k / tensor
            own = n if inner < k else n / tensor
            made[name] = cluster.product_seconds(tokens, own, inner)
            columns[name] = n
    attends = model.share("*") > 0
    if attends and model.kv_rank:
        heads = model.query_width - model.heads * model.rope_width + model.context_width
        down = model.latent_width if model.query_rank else model.latent_width + model.query_width / tensor
        made["latent"] = cluster.product_seconds(tokens, down, model.hidden)
        columns["latent"] = tensor * model.latent_width + (0 if model.query_rank else model.query_width)
        if model.query_rank:
            made["query_up"] = cluster.product_seconds(tokens, model.query_width / tensor, model.query_rank)
            columns["query_up"] = model.query_width
        made["key_value_up"] = cluster.product_seconds(tokens, heads / tensor, model.kv_rank)
        columns["key_value_up"] = heads
    elif attends:
        queries = model.query_width + model.key_value_width
        made["queries"] = cluster.product_seconds(tokens, queries / tensor, model.hidden)
        columns["queries"] = queries
    if attends:
        made["output"] = cluster.product_seconds(tokens, model.hidden, model.context_width / tensor)
        columns["output"] = model.hidden
    ffn = model.shared_ffn if model.experts else model.ffn * bool(model.share("-"))
    wide = model.mlp_matrices - 1
    if model.experts:
        made["router"] = cluster.product_seconds(tokens / tensor, model.experts, model.hidden, precision=1.0)
    if ffn:
        made["up"] = cluster.product_seconds(tokens, wide * ffn / tensor, model.hidden)
        made["down"] = cluster.product_seconds(tokens, model.hidden, ffn / tensor)
        columns |= {"up": wide * ffn, "down": model.hidden}
    if cluster.precision > 1:
        for name, cast in columns.items():
            made[name] += CAST_PASSES * tokens * cast / tensor / cluster.memory_rate
    return made


def _routed_seconds(model: Transformer, layout: Layout, cluster: Cluster, tokens: float) -> float:
    """Time of the experts' matrix products, with padded slots and few tokens per expert."""
    rows = max(1.0, tokens * model.routed_share * layout.expert / model.experts)
    width, parts = (model.expert_ffn or model.ffn) / layout.tensor, model.experts / layout.expert
    up = cluster.product_seconds(rows, (model.mlp_matrices - 1) * width, model.hidden, parts=parts)
    down = cluster.product_seconds(rows, model.hidden, width, parts=parts)
    return up + down


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
    once = crossing_share(model, layout, cluster.device.box) if layout.deduplicated else None
    return cluster.exchange_seconds(size, layout.expert, layout.tensor, once=once)


def crossing_share(model: Transformer, layout: Layout, box: int) -> float:
    """Share of what experts in other boxes take of tokens that is left if a token goes to each box once.

    A token has its experts drawn from all, without replacement, as a router does that is balanced.

    Examples:
        Of 8 experts out of 128 on two boxes 4 are in the other one, to which a token goes once, if at all:

        >>> from coppice.iteration.models import model_named
        >>> layout = Layout(data=16, expert=16, global_batch=16)
        >>> round(crossing_share(model_named("qwen3-30b-a3b"), layout, 8), 4)
        0.2492
    """
    inside = min(layout.expert, max(1, box // layout.tensor))
    boxes = layout.expert // inside
    if not model.experts:
        return 1.0
    others = model.experts - model.experts / boxes
    chosen = range(model.experts_per_token)
    missed = math.prod(max(0.0, others - each) / (model.experts - each) for each in chosen)
    return min(1.0, boxes * (1 - missed) / model.experts_per_token)


def context_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> tuple[float, float]:
    """Time that a forward and a backward pass of a layer wait for keys and values of other context-parallel ranks.

    They are gathered before a pass, and their gradients scattered after it; or blocks of them go around a ring while
    attention to the block before is computed (Liu et al., arXiv 2310.01889), sequences split so that each rank has as
    many scores, and what takes longer than that is waited for.
    """
    if layout.context == 1 or not model.share("*"):
        return 0.0, 0.0
    size = _HALF * layout.micro_batch * model.seq * model.key_value_width / layout.tensor
    whole = cluster.ring_seconds(size, layout.context, layout.tensor, rounds=1)
    if not layout.context_ring:
        return whole, 2 * whole
    hops = layout.context - 1
    forward, backward = (each / layout.context for each in attention_seconds(model, layout, cluster))
    return hops * max(0.0, whole / hops - forward), hops * max(0.0, 2 * whole / hops - backward)


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
    kinds = kinds_of(model, layout)
    activations = _HALF * work.tokens * model.hidden
    once = cluster.sum_seconds(activations, tensor, split=layout.sequence_parallel)
    summing = gathering = exchanged = 0.0
    for view, own, number in kinds:
        share = number / model.layers
        summing += share * sums_of(view, own) * once
        gathering += share * gathering_seconds(view, own, cluster)
        if view.experts:
            exchanged += share * (4 + 2 * repeats_routing(own)) * routing_seconds(view, own, cluster)
        first, then = context_seconds(view, own, cluster)
        exchanged += share * ((1 + (own.recompute is Recompute.FULL)) * first + then)
    sending = 2 * layout.chunks * hop_seconds(model, layout, cluster) if stages > 1 else 0.0
    layer = work.layer + summing + gathering + exchanged
    held, heads = model.layers / stages, 1
    if stages > 1 and (framework.balanced or model.layers % (stages * layout.chunks)):
        held, heads = _slowest(model.layers, stages, layer, work.head)
    others = model.layers * layer + work.head - held * layer - heads * work.head
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
