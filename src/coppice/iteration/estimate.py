"""The time of an iteration of a transformer on boxes of GPUs, part by part, in closed form.

Theory. A micro-batch takes each layer the time of its matrix products (at the share of the peak that their tokens
allow), of attention, and of passes over activations at the rate of memory; at least what the host needs to launch them.
The backward pass takes twice as long, and what is recomputed once more. Tensor parallelism sums the activations of a
layer over its ranks four times, six times where all is recomputed: rings, inside a box or across boxes, where the
groups of a box share its NICs. In a pipeline of p devices with v chunks each the slowest stage, which is the last one
with the head, runs all m micro-batches, and the others fill and drain it in (p - 1) / v of their time. Replicas sum
their gradients at the end; ZeRO-3 gathers parameters and scatters gradients for each layer of each micro-batch.

Not modelled: sums that run beside computation (of gradients beside the last backward pass, of ZeRO-3, of sequence
parallelism), trouble of allocators, stragglers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coppice.iteration.devices import Calibration, Device
from coppice.iteration.measured.table import DeviceTable
from coppice.iteration.pipeline.graph import StageTimes
from coppice.iteration.transformer import Layout, Recompute, Shard, Transformer

__all__ = ["Cluster", "Estimate", "estimate", "stage_times"]

_HALF = 2  # bytes of an element of activations, parameters and gradients
_STATES = 30  # bytes that Adam reads and writes for a parameter, its 32-bit states and copy included
_SCORES = 7  # passes over the scores of attention that are not fused, two bytes each
_LOSS = 12  # passes over the scores of words, forward and backward
_PASSES = 10  # passes over the activations of a layer beside its matrix products: norms, residuals, dropout


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Boxes of GPUs on a network that is no bottleneck by itself.

    Attributes:
        device: The GPUs.
        nic_bytes_per_second: What the NICs of a box send together, in one direction.
        calibration: What was measured on such GPUs.
        precision: How much faster than with 16 bits matrix products are in the precision of the job.
        table: What such a GPU reached when it was measured, which takes the place of constants of the calibration.
    """

    device: Device
    nic_bytes_per_second: float
    calibration: Calibration
    precision: float = 1.0
    table: DeviceTable | None = None

    def matrix_flops(self, m: float, n: float, k: float) -> float:
        """Operations a second of a product of m x k and k x n."""
        if self.table is not None:
            return self.precision * self.table.matrix_flops(m, n, k)
        share = self.calibration.matrix_share * m / (m + self.calibration.half_tokens)
        return self.device.flops * self.precision * share

    def attention_flops(self, sequences: float, seq: float, heads: float, *, backward: bool = False) -> float:
        """Operations a second of attention, counted in full."""
        measured = 0.0
        if self.table is not None:
            measured = self.table.attention_flops(sequences, seq, heads, backward=backward)
        return measured or self.device.flops * self.calibration.attention_share

    @property
    def host_seconds(self) -> float:
        """What a pass over a layer takes at least."""
        return self.calibration.host_seconds

    @property
    def memory_rate(self) -> float:
        """Bytes per second of passes over memory."""
        if self.table is not None:
            return self.table.memory_rate
        return self.device.memory_bytes_per_second * self.calibration.memory_share

    def ring_seconds(
        self, size_bytes: float, ranks: int, stride: int, *, rounds: int = 2, share: float = 0.0
    ) -> float:
        """Seconds in which groups of ranks at a stride gather or scatter (1 round) or sum (2 rounds) so many bytes.

        All groups do so at once; those of a box share its NICs.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            ranks: Ranks of a group.
            stride: Distance of its ranks.
            rounds: 1 or 2.
            share: Share of the rate of NICs; 0: that of all communication but gradients.
        """
        if ranks == 1:
            return 0.0
        constants = self.calibration
        moved = rounds * (ranks - 1) / ranks * size_bytes
        hops = rounds * (ranks - 1)
        inside = min(ranks, max(1, self.device.box // stride))
        near = moved / (self.device.link_bytes_per_second * constants.near_share)
        if inside == ranks:
            return constants.near_seconds * math.log2(ranks) + near
        groups = self.device.box / inside
        far = moved * groups / (self.nic_bytes_per_second * (share or constants.far_share))
        waits = constants.near_seconds * math.log2(inside) + constants.far_seconds * hops
        return waits + max(near if inside > 1 else 0.0, far)

    def exchange_seconds(self, size_bytes: float, ranks: int, stride: int) -> float:
        """Seconds of an all-to-all in which each rank gives an equal share of so many bytes to each of its group.

        All groups at a stride do so at once. What stays in a box crosses its links, the rest the NICs that its GPUs
        share; both at the same time.

        Args:
            size_bytes: Bytes of the whole buffer of a rank.
            ranks: Ranks of a group.
            stride: Distance of its ranks.
        """
        if ranks == 1 or not size_bytes:
            return 0.0
        constants = self.calibration
        inside = min(ranks, max(1, self.device.box // stride))
        near = size_bytes * (inside - 1) / ranks / (self.device.link_bytes_per_second * constants.near_share)
        waits = constants.near_seconds * math.log2(ranks)
        if inside == ranks:
            return waits + near
        far = size_bytes * (ranks - inside) / ranks * self.device.box
        far /= self.nic_bytes_per_second * constants.far_share
        return waits + constants.far_seconds * (ranks - inside) + max(near, far)

    def send_seconds(self, size_bytes: float, stride: int) -> float:
        """Seconds in which every GPU sends so many bytes to one at a distance."""
        constants = self.calibration
        if stride < self.device.box:
            return constants.near_seconds + size_bytes / (
                self.device.link_bytes_per_second * constants.near_share
            )
        rate = self.nic_bytes_per_second * constants.far_share / self.device.box
        return constants.near_seconds + constants.far_seconds + size_bytes / rate


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Where the time of an iteration goes, in seconds on the slowest device.

    Attributes:
        compute: Passes of its layers.
        head: The output layer and the loss, on the last stage.
        tensor: Sums of activations of tensor parallelism.
        sends: Activations between stages.
        bubble: Filling and draining the pipeline.
        gradients: Sums over replicas that computation does not hide.
        optimizer: The step.
        flops: Operations of a forward and backward pass of all GPUs, nothing recomputed.
        peak: Operations a second of all GPUs, by the data sheet.
        exchange: All-to-alls: tokens that go to experts, rows of embedding tables.
    """

    compute: float
    head: float
    tensor: float
    sends: float
    bubble: float
    gradients: float
    optimizer: float
    flops: float
    peak: float
    exchange: float = 0.0

    @property
    def seconds(self) -> float:
        """The iteration."""
        parts = (
            self.compute,
            self.head,
            self.tensor,
            self.sends,
            self.bubble,
            self.gradients,
            self.optimizer,
            self.exchange,
        )
        return sum(parts)

    @property
    def mfu(self) -> float:
        """Model FLOP/s utilisation: the share of the peak that operations of the model make up."""
        return self.flops / self.seconds / self.peak


def estimate(model: Transformer, layout: Layout, cluster: Cluster) -> Estimate:
    """The time of an iteration.

    Args:
        model: The transformer.
        layout: How the job lies on the GPUs.
        cluster: The GPUs and their network.
    """
    work = _Work.of(model, layout, cluster)
    tensor, count = layout.tensor, layout.micro_batches
    held = model.layers / layout.pipeline
    replicas = layout.data * layout.context
    sums = 4 + 2 * (layout.recompute is Recompute.FULL)
    activations = _HALF * work.tokens * model.hidden
    summing = sums * cluster.ring_seconds(activations, tensor, 1)
    gathering = _gathering(model, layout, cluster)
    sending = 0.0
    if layout.pipeline > 1:
        sending = 2 * layout.chunks * cluster.send_seconds(activations / tensor, tensor * replicas)
    stage = held * (work.layer + summing + gathering) + sending
    own = (model.layer_parameters * held + model.vocab * model.hidden) / tensor
    gradients = 0.0
    if layout.shard is not Shard.ZERO3:
        share = cluster.calibration.gradient_share
        gradients = cluster.ring_seconds(_HALF * own, replicas, tensor, share=share)
    stepped = own / (replicas if layout.shard is not Shard.NONE else 1)
    return Estimate(
        compute=count * held * work.layer,
        head=count * work.head,
        tensor=count * held * summing,
        sends=count * sending,
        bubble=(layout.pipeline - 1) * stage / layout.chunks,
        gradients=gradients + count * held * gathering,
        optimizer=_STATES * stepped / cluster.memory_rate,
        flops=3 * model.forward_flops(layout.global_batch),
        peak=layout.gpus * cluster.device.flops,
    )


def stage_times(model: Transformer, layout: Layout, cluster: Cluster) -> StageTimes:
    """The times of the stages of a job, for the simulation of its pipeline in any order.

    The head is on the last stage; the gradients of a stage are summed over replicas by themselves.
    """
    work = _Work.of(model, layout, cluster)
    stages = layout.pipeline * layout.chunks
    held = model.layers / stages
    activations = _HALF * work.tokens * model.hidden
    summing = cluster.ring_seconds(activations, layout.tensor, 1)
    again = 2 * (layout.recompute is Recompute.FULL)
    gathering = _gathering(model, layout, cluster)
    forward = [held * (work.forward + 2 * summing + gathering / 3)] * stages
    backward = [held * (work.backward + (2 + again) * summing + gathering * 2 / 3)] * stages
    forward[-1] += work.head / 3
    backward[-1] += 2 * work.head / 3
    replicas = layout.data * layout.context
    reduction = [0.0] * stages
    if layout.shard is not Shard.ZERO3:
        share = cluster.calibration.gradient_share
        sizes = [_HALF * model.layer_parameters * held / layout.tensor] * stages
        for end in {0, stages - 1}:
            sizes[end] += _HALF * model.vocab * model.hidden / layout.tensor
        reduction = [cluster.ring_seconds(size, replicas, layout.tensor, share=share) for size in sizes]
    return StageTimes(
        forward=forward,
        backward=backward,
        transfer=cluster.send_seconds(activations / layout.tensor, layout.tensor * replicas)
        if stages > 1
        else 0.0,
        reduction=reduction,
    )


@dataclass(frozen=True)
class _Work:
    """What a GPU computes for a micro-batch.

    Attributes:
        tokens: Its tokens.
        forward: Seconds of the forward pass of a layer.
        backward: Seconds of its backward pass, with what is computed again.
        head: Seconds of the output layer and the loss, forward and backward.
    """

    tokens: float
    forward: float
    backward: float
    head: float

    @property
    def layer(self) -> float:
        """Seconds of a layer, forward and backward."""
        return self.forward + self.backward

    @classmethod
    def of(cls, model: Transformer, layout: Layout, cluster: Cluster) -> _Work:
        """By the share of the peak that matrix products, attention and passes over memory reach."""
        constants, memory = cluster.calibration, cluster.memory_rate
        tokens = layout.micro_batch * model.seq / layout.context
        own = tokens / layout.tensor
        matrices = cluster.device.flops * cluster.precision * constants.matrix_share
        matrices *= tokens / (tokens + constants.half_tokens)
        products = 2 * own * model.layer_parameters / matrices
        attention = 4 * own * model.seq * model.hidden / (cluster.device.flops * constants.attention_share)
        if not layout.fused_attention:
            attention += _SCORES * own * model.heads * model.seq * _HALF / memory
        norms = _PASSES * model.hidden * (own if layout.sequence_parallel else tokens)
        passes = (norms + 4 * own * model.ffn) * _HALF / memory
        once = products + attention + passes
        forward, backward = (max(each, constants.host_seconds) for each in (once, 2 * once))
        again = {Recompute.NONE: 0.0, Recompute.SELECTIVE: attention, Recompute.FULL: forward}
        words = own * model.vocab
        return cls(
            tokens=tokens,
            forward=forward,
            backward=backward + again[layout.recompute],
            head=6 * words * model.hidden / matrices + _LOSS * words * _HALF / memory,
        )


def _gathering(model: Transformer, layout: Layout, cluster: Cluster) -> float:
    """What gathering the four matrices of a layer twice and scattering its gradients takes: nothing hides it."""
    if layout.shard is not Shard.ZERO3:
        return 0.0
    size = _HALF * model.layer_parameters / layout.tensor / 4
    share = cluster.calibration.gradient_share
    replicas = layout.data * layout.context
    return 3 * 4 * cluster.ring_seconds(size, replicas, layout.tensor, rounds=1, share=share)
