"""Times of operators on a device, of layers made of them, and workloads of gradient policies.

Theory. A matrix product runs at a share of the peak that falls with what its last wave of tiles leaves idle, and with
short inner dimensions; no faster than memory moves its operands. Attention runs at the share that its kernel reaches,
whether scores stay on the chip or not. Passes over activations run at the rate of memory. What a measured table of the
device has takes the place of these constants.

The backward pass of a product makes gradients of inputs and of weights, each a product of the same size; that of
attention and of passes makes gradients of inputs alone, as pipelines that split backward passes have it (Qi et al.,
ICLR 2024, table 1). A pass over a layer takes at least what the host needs to launch its kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from coppice.iteration.devices import KERNELS
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.machine import Cluster
from coppice.iteration.state_space import BACKWARD_SCAN, VECTOR_SHARE
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel
from coppice.iteration.workload.operators import (
    AttentionProducts,
    MatrixProduct,
    MemoryPasses,
    ModelLayer,
    Operator,
    StateScan,
)
from coppice.iteration.workload.transformers import transformer_row

_HALF = 2  # bytes of a value
_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.6))
"""Tiles of kernels for products: rows, columns, and the rate of full ones over that of the largest."""
TILE_POWER = 1.0
"""How strongly waves that are not full count: others may finish their tiles faster meanwhile. Above 1 a product of
fewer rows would take longer than one of more."""
LAUNCH_SECONDS = 4.6e-6
"""Seconds between the end of a kernel and the begin of the next."""
_ALIGNED = 64  # columns of rows of 128 bytes, which tensor cores are loaded with
MISALIGNED = 0.721
MISALIGNED_HEAD = 0.445
"""Share of their rate that products reach whose rows are not multiples of 128 bytes, and heads not of 16 bytes."""
HALF_SEQ, HALF_WIDTH, _HALF_WIDTH_UNFUSED = 257.0, 11.2, 64.0
"""Tokens of a sequence, and width of a head, with which attention reaches half of what long and wide ones reach."""
BACKWARD_SHARE = 0.766
"""Rate of the backward pass of attention over that of the forward pass."""
SCORE_PASSES = {"softmax": 3.36, "eager": 8.88}
"""Passes over scores that leave the chip, by what computes their softmax, mask and dropout."""
CAST_PASSES = 3.42
"""Passes over operands of 8 bits or fewer: their largest value, scaling, and the transposed copy."""
_FOUR_BYTES = {"V100": 1 / 8, "MI250X": 1 / 4}
"""Share of the 16-bit peak of matrix products of 4-byte elements, where it is not the half that TF32 is."""


@cache
def tile_share(m: int, n: int, processors: int) -> float:
    """Share of its rate that a product reaches whose result is cut into tiles, which processors take in waves.

    Examples:
        128 tiles of 256 x 128 would fill 108 processors once, and 20 of them a second time, so that smaller ones win:

        >>> round(tile_share(2048, 2048, 64), 2), round(tile_share(4096, 1024, 108), 2)
        (1.0, 0.76)
        >>> tile_share(100, 100, 0)
        1.0
    """
    if not processors:
        return 1.0
    best = 0.0
    for rows, columns, rate in _TILES:
        down, across = math.ceil(m / rows), math.ceil(n / columns)
        waves = math.ceil(down * across / processors)
        best = max(best, rate * m * n / (rows * columns * waves * processors))
    return best


def product_seconds(
    cluster: Cluster, m: float, n: float, k: float, *, parts: float = 1, precision: float | None = None
) -> float:
    """Seconds of a product of m x k and k x n, or of several of that size.

    A kernel deals tiles of the result over the processors of the GPU in waves, of which the last is rarely full; a
    tile takes a while to fill and drain its pipeline. At least it moves its operands and its result.

    Args:
        parts: How many such products, one after the other.
        precision: How much faster than with 16 bits; None: as the job has it.
    """
    narrow = cluster.precision if precision is None else precision
    if cluster.table is not None:
        return parts * 2 * m * n * k / (narrow * cluster.table.matrix_flops(m, n, k))
    constants, device = cluster.calibration, cluster.device
    share = constants.matrix_share * k / (k + constants.half_depth * math.sqrt(narrow))
    share *= cluster.clock_share
    share *= math.pow(tile_share(math.ceil(m), math.ceil(n), device.processors), TILE_POWER)
    if narrow > 1:
        share *= constants.narrow_share
    if n % _ALIGNED or k % _ALIGNED:
        share *= MISALIGNED
    moved = 2 * (m * k + k * n + m * n)
    return parts * (
        max(2 * m * n * k / (device.flops * narrow * share), moved / cluster.memory_rate) + LAUNCH_SECONDS
    )


def _attention_seconds(each: AttentionProducts, samples: float, cluster: Cluster, *, backward: bool) -> float:
    """Seconds of attention, whose kernels skip what is masked where scores stay on the chip."""
    constants, framework = cluster.calibration, cluster.framework
    flops, sequences = each.flops * samples, each.sequences * samples
    peak = cluster.device.flops * cluster.clock_share
    passes, times = 0.0, 1 + backward
    if not each.fused:
        passes = SCORE_PASSES[framework.softmax] * 2 * sequences * each.heads * each.seq**2
        passes *= (1 + backward / 2) / cluster.memory_rate
    if cluster.table is not None:
        measured = cluster.table.attention_flops(sequences, each.seq, each.heads, backward=backward)
        if measured:
            return times * (2 - (each.causal or not each.fused)) * flops / measured + passes
    if not each.fused:
        share = constants.unfused_share * each.width / (each.width + _HALF_WIDTH_UNFUSED)
        share *= MISALIGNED_HEAD if each.width % 8 else 1.0
        return times * flops / (peak * share) + passes
    shares = constants.attention_share
    share = shares.get(framework.attention, shares["flash-2"])
    share *= each.seq / (each.seq + HALF_SEQ) * each.width / (each.width + HALF_WIDTH)
    if backward:
        # Five products instead of two: scores again, and gradients of values, of scores, of queries and of keys.
        share *= BACKWARD_SHARE / 2.5
    return flops / (1 + each.causal) / (peak * share)


def roofline_seconds(flops: float, moved_bytes: float, element_bytes: float, cluster: Cluster) -> float:
    """Seconds of an operation of which no more is known than what it computes and moves, as a traced one.

    It takes its FLOPs at the share of the peak that large products reach, and at least its bytes at the rate of memory
    (Williams, Waterman, Patterson, CACM 2009). Elements of 4 bytes are multiplied as TF32.
    """
    peak = cluster.device.flops * cluster.calibration.matrix_share
    if element_bytes > 2:
        peak *= _FOUR_BYTES.get(cluster.device.name, 1 / 2)
    return max(flops / peak, moved_bytes / cluster.memory_rate)


@dataclass(frozen=True, kw_only=True)
class PassSeconds:
    """Times of the passes of an operator, or of a layer."""

    forward: float = 0.0  # Forward pass
    input_gradient: float = 0.0  # Gradients of its inputs
    weight_gradient: float = 0.0  # Gradients of its weights

    @property
    def backward(self) -> float:
        """Time of the backward pass."""
        return self.input_gradient + self.weight_gradient

    @property
    def whole(self) -> float:
        """Time of both passes."""
        return self.forward + self.backward

    def __add__(self, other: PassSeconds) -> PassSeconds:
        return PassSeconds(
            forward=self.forward + other.forward,
            input_gradient=self.input_gradient + other.input_gradient,
            weight_gradient=self.weight_gradient + other.weight_gradient,
        )

    def scaled(self, forward: float, backward: float) -> PassSeconds:
        """The passes so many times as slow."""
        return PassSeconds(
            forward=forward * self.forward,
            input_gradient=backward * self.input_gradient,
            weight_gradient=backward * self.weight_gradient,
        )


def operator_seconds(each: Operator, samples: float, cluster: Cluster) -> PassSeconds:
    """Times of an operator on one GPU.

    Examples:
        >>> from coppice.iteration.machine import box_of
        >>> product = MatrixProduct(rows=2048, n=4096, k=4096)
        >>> found = operator_seconds(product, 4, box_of("H100"))
        >>> f"{found.forward * 1e6:.0f} us", found.backward / found.forward
        ('454 us', 2.0)
    """
    if isinstance(each, MatrixProduct):
        rows = max(1.0, each.rows * samples / each.parts)
        once = product_seconds(cluster, rows, each.n, each.k, parts=each.parts, precision=each.precision)
        if cluster.precision > 1:
            once += CAST_PASSES * each.rows * samples * each.cast / cluster.memory_rate
        return PassSeconds(forward=once, input_gradient=once, weight_gradient=once * each.weights)
    if isinstance(each, MemoryPasses):
        once = each.moved_bytes * samples / cluster.memory_rate
        return PassSeconds(forward=once, input_gradient=each.backward * once)
    if isinstance(each, StateScan):
        # Mamba-2 multiplies matrices, in Triton; Mamba scans outside of tensor cores.
        share = VECTOR_SHARE if each.vector else cluster.calibration.attention_share.get("triton", 0.3)
        flops = cluster.device.flops * cluster.clock_share * share
        once = samples * (each.flops / flops + each.moved_bytes / cluster.memory_rate)
        return PassSeconds(forward=once, input_gradient=BACKWARD_SCAN * once)
    forward, backward = (
        _attention_seconds(each, samples, cluster, backward=backward) for backward in (False, True)
    )
    return PassSeconds(forward=forward, input_gradient=backward)


def launch_seconds(layers: Iterable[ModelLayer], cluster: Cluster) -> float:
    """What the host needs to launch the kernels of a forward pass over layers."""
    kernels = sum(each.kernels or len(each.operators) for each in layers)
    return cluster.host_seconds * kernels / KERNELS


def layer_seconds(
    parts: tuple[ModelLayer, ...], samples: float, cluster: Cluster, *, slower: float = 1.0
) -> PassSeconds:
    """Times of a layer, or of the parts of one, on one GPU.

    Args:
        slower: By what factor passes take longer, as GPUs stall.
    """
    found = PassSeconds()
    for part in parts:
        for each in part.operators:
            found += operator_seconds(each, samples, cluster)
    if not found.forward:
        return found
    least = launch_seconds(parts, cluster)
    behind = least * (2 if found.weight_gradient else 1)
    return found.scaled(
        max(slower, least / found.forward), max(slower, behind / found.backward if found.backward else 0.0)
    )


def repeated_seconds(
    parts: Iterable[ModelLayer], shares: Mapping[str, float], samples: float, cluster: Cluster
) -> float:
    """Forward time of shares of operators, by their names; what is not among them counts nothing."""
    return sum(
        shares[each.name] * operator_seconds(each, samples, cluster).forward
        for part in parts
        for each in part.operators
        if shares.get(each.name)
    )


_MEASURE_BYTES = 1e9


def layer_workload(
    model: Transformer | LayeredModel,
    cluster: Cluster,
    *,
    workers: int,
    samples: float,  # Samples of a batch of one of them
    # What a gradient all-reduce carries a second; None: a ring of the cluster
    bytes_per_second: float | None = None,
    message_seconds: float | None = None,  # What a sum takes by itself; None: a ring of the cluster
) -> LayerWorkload:
    """Workload of a data-parallel model, layer by layer, for gradient policies.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.iteration.workload.nets import resnet
        >>> from coppice.topology.presets import preset
        >>> found = layer_workload(resnet(50), cluster_of(preset("dgx-a100")), workers=8, samples=64)
        >>> found.layers, round(sum(found.bytes))
        (54, 102228128)
    """
    share = cluster.gradient_share
    once = cluster.ring_seconds(0.0, workers, 1, share=share)
    carried = cluster.ring_seconds(_MEASURE_BYTES, workers, 1, share=share) - once
    rate = _MEASURE_BYTES / carried if carried else cluster.device.memory_bytes_per_second
    if isinstance(model, LayeredModel):
        row, size = model.row, model.gradient_bytes
    else:
        row, size = transformer_row(model, cluster.framework), float(_HALF)
    forward, backward = [], []
    for layer in row:
        took = layer_seconds((layer,), samples, cluster)
        exchanged = cluster.exchange_seconds(layer.exchanged_bytes * samples, workers, 1)
        forward.append(took.forward + exchanged)
        backward.append(took.backward + exchanged)
    return LayerWorkload(
        forward=tuple(forward),
        backward=tuple(backward),
        bytes=tuple(size * (each.parameters - each.expert_parameters) for each in row),
        bytes_per_second=bytes_per_second or rate,
        message_seconds=once if message_seconds is None else message_seconds,
        workers=workers,
    )
