"""Closed-form iteration time of a transformer on boxes of GPUs, by component.

Theory. A micro-batch takes each layer the time of its matrix products (at the share of the peak that the size of
their results allows), of attention, and of passes over activations at the rate of memory; at least what the host needs
to launch them. The backward pass takes twice as long, and what is recomputed once more. Tensor parallelism sums the
activations of a layer over its ranks four times, six times where all is recomputed: rings, inside a box or across
boxes, where the groups of a box share its NICs. Stages send each other shares of activations, which ranks of a
tensor-parallel group gather where they do not keep shares. In a pipeline of p devices with v chunks each the slowest
stage, which is the last one with the head if all have as many layers, runs all m micro-batches, and the others fill and
drain it in 1 / v of their time. Replicas sum their gradients at the end; ZeRO-3 gathers parameters and scatters
gradients for each layer of each micro-batch. A GPU that stalls stops all of them, so that passes take longer the more
GPUs there are.

Not modelled: sums that run beside computation (of gradients beside the last backward pass, of ZeRO-3, of sequence
parallelism), trouble of allocators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from coppice.iteration.costs.crossing import crossing
from coppice.iteration.costs.group import CollectiveCosts, RankGroup
from coppice.iteration.devices import Calibration, Device
from coppice.iteration.measured.table import DeviceTable
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Defaults of a training framework."""

    gradient_bytes: int = 2  # Bytes of an element of the gradients that replicas sum
    # What ZeRO scatters and gathers goes tensor by tensor instead of in large buckets
    by_tensor: bool = False
    # Stages get layers so that the slowest is quickest, the head counted; otherwise as many each
    balanced: bool = False
    # ZeRO-3 gathers parameters once more for what is computed again, copies what it gathers, and sums whole
    # gradients of which each replica keeps its share; otherwise it gathers twice and scatters sums
    regathers: bool = False


MEGATRON = Framework()
"""Megatron-LM: 16-bit gradients in buckets, as many layers on each stage."""

NANOTRON = Framework(gradient_bytes=4, by_tensor=True, balanced=True)
"""nanotron: gradients are kept in 32 bits, ZeRO-1 exchanges each tensor, blocks are dealt to stages by their cost."""

DEEPSPEED_2021 = Framework(by_tensor=True, regathers=True)
"""DeepSpeed when ZeRO-3 was new."""


_HALF = 2  # bytes of an element of activations, parameters and gradients
OPTIMIZER_BYTES = 30
"""What Adam reads and writes for a parameter, its 32-bit states and copy included."""
_SCORES = 7  # passes over the scores of attention that are not fused, two bytes each
_LOSS = 12  # passes over the scores of words, forward and backward
_COPIES = 4  # passes over what is gathered into a list of parts and put together from them
_PASSES = 8  # passes over the activations of a layer beside its matrix products: norms, residuals, dropout


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Boxes of GPUs on a non-blocking network."""

    device: Device  # The GPUs
    nic_bytes_per_second: float  # What the NICs of a box send together, in one direction
    calibration: Calibration  # What was measured on such GPUs
    # How much faster than with 16 bits matrix products are in the precision of the job
    precision: float = 1.0
    # What such a GPU reached when it was measured, which takes the place of constants of the calibration
    table: DeviceTable | None = None
    shares_nics: bool = False  # A box has fewer NICs than GPUs
    # What a GPU sends directly to GPUs outside of its group in a box, by ranks and stride of the group
    apart: tuple[tuple[tuple[int, int], float], ...] = ()
    # Where the times of collectives come from; None: rings by formula and calibration
    costs: CollectiveCosts | None = None

    @property
    def calibrated(self) -> Cluster:
        """The same cluster with closed-form collectives."""
        return self if self.costs is None else replace(self, costs=None)

    def matrix_flops(self, m: float, n: float, k: float) -> float:
        """FLOP/s of an (m x k) by (k x n) matrix product."""
        if self.table is not None:
            return self.precision * self.table.matrix_flops(m, n, k)
        side = math.sqrt(m * n)
        share = self.calibration.matrix_share * side / (side + self.calibration.half_tokens)
        return self.device.flops * self.precision * share

    def attention_flops(self, sequences: float, seq: float, heads: float, *, backward: bool = False) -> float:
        """FLOP/s of attention, with masked scores counted."""
        measured = 0.0
        if self.table is not None:
            measured = self.table.attention_flops(sequences, seq, heads, backward=backward)
        return measured or self.device.flops * self.calibration.attention_share

    @property
    def host_seconds(self) -> float:
        """CPU launch time of a pass over a layer."""
        return self.calibration.host_seconds

    @property
    def memory_rate(self) -> float:
        """Memory bandwidth in bytes per second."""
        if self.table is not None:
            return self.table.memory_rate
        return self.device.memory_bytes_per_second * self.calibration.memory_share

    def near_rate(self, ranks: int, stride: int) -> float:
        """Rate of a GPU to its neighbours in the box, in bytes per second."""
        own = self.device.link_bytes_per_second - dict(self.apart).get((ranks, stride), 0.0)
        return own * self.calibration.near_share

    def ring_seconds(
        self, size_bytes: float, ranks: int, stride: int, *, rounds: int = 2, share: float = 0.0
    ) -> float:
        """Time of concurrent ring all-gathers or reduce-scatters (1 round) or all-reduces (2 rounds).

        All groups do so at once; those of a box share its NICs. Where GPUs share NICs, a group with some GPUs of a box
        has one at most at each of them: its ring comes in there and leaves from the GPU of another, the way of which to
        that NIC crosses the processors of the box, at half the rate.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            rounds: 1 or 2.
            share: Share of the rate of NICs; 0: that of all communication but gradients.
        """
        if ranks == 1:
            return 0.0
        if self.costs is not None:
            name = "all_reduce" if rounds == 2 else "all_gather"
            return self.costs.cost(name, size_bytes, RankGroup(ranks, stride), gradients=share > 0).seconds
        constants, hops = self.calibration, rounds * (ranks - 1)
        moved = hops / ranks * size_bytes
        inside = min(ranks, max(1, self.device.box // stride))
        near = moved / self.near_rate(inside, stride)
        groups = crossing(ranks, stride, self.device.box).groups
        if not groups:
            return constants.near_seconds + near
        if self.shares_nics and 1 < inside < self.device.box:
            groups *= 2
        far = moved * groups / (self.nic_bytes_per_second * (share or constants.far_share))
        waits = (constants.near_seconds if inside > 1 else 0.0) + constants.far_seconds * hops
        return waits + max(near if inside > 1 else 0.0, far)

    def sum_seconds(self, size_bytes: float, ranks: int, *, split: bool) -> float:
        """Time of all-reduces in groups of adjacent ranks.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            split: By a reduce-scatter and an all-gather, as sequence parallelism does; rings take as long.
        """
        if self.costs is None or not split or ranks == 1:
            return self.ring_seconds(size_bytes, ranks, 1)
        names = ("reduce_scatter", "all_gather")
        return sum(self.costs.cost(name, size_bytes, RankGroup(ranks, 1)).seconds for name in names)

    def exchange_seconds(self, size_bytes: float, ranks: int, stride: int) -> float:
        """Time of a balanced all-to-all.

        All groups at a stride do so at once. What stays in a box crosses its links, the rest the NICs that its GPUs
        share; both at the same time.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
        """
        if ranks == 1 or not size_bytes:
            return 0.0
        if self.costs is not None:
            return self.costs.cost("all_to_all", size_bytes, RankGroup(ranks, stride)).seconds
        constants = self.calibration
        inside = min(ranks, max(1, self.device.box // stride))
        near = size_bytes * (inside - 1) / ranks / self.near_rate(inside, stride)
        out = crossing(ranks, stride, self.device.box)
        if not out.groups:
            return constants.near_seconds + near
        far = size_bytes * out.exchanged / (self.nic_bytes_per_second * constants.far_share)
        return constants.near_seconds + constants.far_seconds * out.outside + max(near, far)

    def send_seconds(self, size_bytes: float, stride: int, ranks: int = 2) -> float:
        """Time of concurrent sends of all ranks to their successors in strided groups."""
        if self.costs is not None:
            return self.costs.cost("send", size_bytes, RankGroup(ranks, stride)).seconds
        constants = self.calibration
        near = size_bytes / self.near_rate(2, stride) if stride < self.device.box else 0.0
        sends = crossing(ranks, stride, self.device.box).sends
        if not sends:
            return constants.near_seconds + near
        far = size_bytes * sends / (self.nic_bytes_per_second * constants.far_share)
        return constants.near_seconds + constants.far_seconds + max(near, far)


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


def estimate(
    model: Transformer, layout: Layout, cluster: Cluster, framework: Framework = MEGATRON
) -> Estimate:
    """Estimate the iteration time.

    Args:
        layout: How the job lies on the GPUs.
        framework: What the layout does not say.
    """
    work = LayerWork.of(model, layout, cluster)
    tensor, count, stages = layout.tensor, layout.micro_batches, layout.pipeline
    replicas = layout.data * layout.context
    sums = 4 + 2 * (layout.recompute is Recompute.FULL)
    activations = _HALF * work.tokens * model.hidden
    summing = sums * cluster.sum_seconds(activations, tensor, split=layout.sequence_parallel)
    gathering = gathering_seconds(model, layout, cluster, framework)
    sending = 2 * layout.chunks * hop_seconds(model, layout, cluster) if stages > 1 else 0.0
    mixed = model.expert_layers / model.layers
    routing = mixed * sums * routing_seconds(model, layout, cluster)
    again = layout.recompute is Recompute.FULL
    exchanged = routing + (3 + again) * context_seconds(model, layout, cluster)
    layer = work.layer + summing + gathering + exchanged
    held, heads = model.layers / stages, 1
    if stages > 1 and (framework.balanced or model.layers % (stages * layout.chunks)):
        held, heads = _slowest(model.layers, stages, layer, work.head)
    others = model.layers * layer + work.head - held * layer - heads * work.head
    own = (model.dense_parameters / stages + model.vocab * model.hidden) / tensor
    routed = model.routed_parameters / stages / tensor / layout.expert
    gradients = 0.0
    if layout.shard is not Shard.ZERO3:
        share = cluster.calibration.gradient_share
        messages = 1.0
        if framework.by_tensor and layout.shard is Shard.ZERO1:
            messages = _tensors(model) * model.layers / stages
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
        optimizer=OPTIMIZER_BYTES * stepped / cluster.memory_rate,
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


def _tensors(model: Transformer) -> int:
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
        """Estimate by the efficiency of matrix products, attention and memory-bound operations."""
        memory = cluster.memory_rate
        tokens = layout.micro_batch * model.seq / layout.context
        own = tokens / layout.tensor
        products = products_seconds(model, tokens, layout.tensor, cluster)
        products += _routed_seconds(model, layout, cluster, tokens) if model.experts else 0.0
        sequences, heads = layout.micro_batch / layout.context, model.heads / layout.tensor
        scores = 4 * own * model.seq * model.query_width
        if layout.fused_attention and not model.causal:
            scores *= 2  # rates count scores that are masked, and not computed
        attention = scores / cluster.attention_flops(sequences, model.seq, heads)
        behind = 2 * scores / cluster.attention_flops(sequences, model.seq, heads, backward=True)
        if not layout.fused_attention:
            unfused = _SCORES * own * model.heads * model.seq * _HALF / memory
            attention, behind = attention + unfused, behind + 2 * unfused
        norms = _PASSES * model.hidden * (own if layout.sequence_parallel else tokens)
        passes = (norms + 4 * own * model.mlp_width) * _HALF / memory
        stalls = 1 + cluster.calibration.stall_share * layout.gpus / 1000
        once, twice = (products + attention + passes) * stalls, (2 * (products + passes) + behind) * stalls
        forward, backward = (max(each, cluster.host_seconds) for each in (once, twice))
        again = {Recompute.NONE: 0.0, Recompute.SELECTIVE: attention * stalls, Recompute.FULL: forward}
        words = own * model.vocab * (model.scored_tokens or model.seq) / model.seq
        rate = cluster.matrix_flops(tokens, model.vocab / layout.tensor, model.hidden)
        return cls(
            tokens=tokens,
            forward=forward,
            backward=backward + again[layout.recompute],
            head=(6 * words * model.hidden / rate + _LOSS * words * _HALF / memory) * stalls,
            recompute=again[layout.recompute],
        )


def products_seconds(model: Transformer, tokens: float, tensor: int, cluster: Cluster) -> float:
    """Forward time of a layer's matrix products on one tensor-parallel rank.

    Those of experts that tokens are sent to are not among them.
    """
    heads = model.query_width + 2 * model.kv_width
    mlp = model.dense_parameters / model.layers - model.attention_parameters
    up = mlp * (model.mlp_matrices - 1) / model.mlp_matrices
    wide = model.ffn * (model.mlp_matrices - 1)
    products = (  # weights, and columns of the result on a rank
        (model.hidden * heads, heads / tensor, model.hidden),
        (model.hidden * model.query_width, model.hidden, model.query_width / tensor),
        (up, wide / tensor, model.hidden),
        (mlp - up, model.hidden, model.ffn / tensor),
    )
    return sum(
        2 * tokens * weights / tensor / cluster.matrix_flops(tokens, columns, inner)
        for weights, columns, inner in products
    )


def _routed_seconds(model: Transformer, layout: Layout, cluster: Cluster, tokens: float) -> float:
    """Time of the experts' matrix products, with padded slots and few tokens per expert."""
    used = model.expert_layers / model.layers * model.experts_per_token * model.expert_parameters
    rows = max(1.0, tokens * model.routed_share * layout.expert / model.experts)
    width = (model.expert_ffn or model.ffn) / layout.tensor
    slots = 2 * tokens / layout.tensor * used * (model.capacity_factor or 1.0)
    return slots / cluster.matrix_flops(rows, width, model.hidden)


def routing_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """Time of one all-to-all between expert-parallel ranks per micro-batch."""
    tokens = layout.micro_batch * model.seq / layout.context
    size = _HALF * tokens * model.routed_share * model.hidden / layout.tensor
    return cluster.exchange_seconds(size, layout.expert, layout.tensor)


def context_seconds(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """Time to gather a layer's keys and values between context-parallel ranks.

    Scattering their gradients takes as long. Nothing hides either: attention that goes around the ring with the keys
    (Liu et al., arXiv 2310.01889) would.
    """
    size = 2 * _HALF * layout.micro_batch * model.seq * model.kv_width / layout.tensor
    return cluster.ring_seconds(size, layout.context, layout.tensor, rounds=1)


def gathering_seconds(
    model: Transformer, layout: Layout, cluster: Cluster, framework: Framework = MEGATRON
) -> float:
    """Exposed ZeRO-3 time of a layer: parameter all-gather and gradient reduce-scatter."""
    if layout.shard is not Shard.ZERO3:
        return 0.0
    size = _HALF * (model.dense_parameters + model.routed_parameters) / model.layers / layout.tensor
    rounds = 3 + framework.regathers * (1 + (layout.recompute is Recompute.FULL))
    messages = _tensors(model) if framework.by_tensor else 4
    share = cluster.calibration.gradient_share
    replicas = layout.data * layout.context
    once = messages * cluster.ring_seconds(size / messages, replicas, layout.tensor, rounds=1, share=share)
    copied = _COPIES * size / cluster.memory_rate if framework.regathers else 0.0
    return rounds * (once + copied)
