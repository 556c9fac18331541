"""Seconds of layers on a device, and the workload that policies of gradients take.

A product takes its operations at the rate of its size, which is that of the constants of the device or of its measured
table, and no less than its operands and result need from memory; passes over activations run at the rate of memory. The
backward pass computes gradients of inputs and of weights, each a product of the same size.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.iteration.devices import KERNELS
from coppice.iteration.estimate import Cluster
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.attention import transformer_row
from coppice.iteration.workload.model import LayeredModel, MatrixProduct, ModelLayer

_HALF = 2  # bytes of a value
_MEASURE_BYTES = 1e9


@dataclass(frozen=True, kw_only=True)
class LayerSeconds:
    """Seconds of the passes of a layer."""

    forward: float  # Forward pass
    input_gradient: float  # Gradients of its inputs
    weight_gradient: float  # Gradients of its weights

    @property
    def backward(self) -> float:
        """Backward pass."""
        return self.input_gradient + self.weight_gradient


def layer_seconds(
    layer: ModelLayer, samples: float, cluster: Cluster, *, causal: bool = True
) -> LayerSeconds:
    """Seconds of a layer on one GPU.

    Args:
        causal: Attention skips the half of the scores that is masked; rates of attention count it, so that without
            masks it takes twice as long.
    """
    products = sum(_product_seconds(each, samples, cluster) for each in layer.products)
    passes = layer.passed_bytes * samples / cluster.memory_rate
    scores = [0.0, 0.0]
    if layer.attention:
        heads, seq = layer.attention_shape
        for backward in (False, True):
            rate = cluster.attention_flops(samples, seq, heads, backward=backward)
            scores[backward] = (1 + backward) * (2 - causal) * layer.attention * samples / rate
    kernels = len(layer.products) + 2 * bool(layer.attention) + 1
    least = cluster.host_seconds * min(1.0, kernels / KERNELS)
    inputs = products + passes + scores[1]
    weights = products + passes if layer.parameters else 0.0
    # Passes back over activations move twice what they move forward: gradients beside values.
    return LayerSeconds(
        forward=max(products + passes + scores[0], least),
        input_gradient=max(inputs, least),
        weight_gradient=max(weights, least) if layer.products and layer.parameters else 0.0,
    )


def _product_seconds(product: MatrixProduct, samples: float, cluster: Cluster) -> float:
    """Seconds of a product for a batch."""
    rows = product.rows * samples
    seconds = (
        product.flops * samples / cluster.matrix_flops(max(1.0, rows / product.parts), product.n, product.k)
    )
    if cluster.table is not None:
        return seconds
    moved = _HALF * (rows * (product.n + product.k) + product.parts * product.n * product.k)
    return max(seconds, moved / cluster.memory_rate)


def layer_workload(
    model: Transformer | LayeredModel,
    cluster: Cluster,
    *,
    workers: int,
    samples: float,  # Samples of a batch of one of them
    # What a sum of gradients carries a second; None: a ring of the cluster
    bytes_per_second: float | None = None,
    message_seconds: float | None = None,  # What a sum takes by itself; None: a ring of the cluster
) -> LayerWorkload:
    """The workload of a model whose gradients all workers sum, layer by layer: what policies of gradients take.

    Examples:
        >>> from coppice.iteration.cluster import cluster_of
        >>> from coppice.iteration.workload.convolution import resnet
        >>> from coppice.topology.presets import preset
        >>> found = layer_workload(resnet(50), cluster_of(preset("dgx-a100")), workers=8, samples=64)
        >>> found.layers, round(sum(found.bytes))
        (54, 102228128)
    """
    share = cluster.calibration.gradient_share
    once = cluster.ring_seconds(0.0, workers, 1, share=share)
    carried = cluster.ring_seconds(_MEASURE_BYTES, workers, 1, share=share) - once
    rate = _MEASURE_BYTES / carried if carried else cluster.device.memory_bytes_per_second
    causal = True
    if isinstance(model, LayeredModel):
        row, size = model.row, model.gradient_bytes
    else:
        row, size, causal = transformer_row(model), float(_HALF), model.causal
    forward, backward = [], []
    for layer in row:
        took = layer_seconds(layer, samples, cluster, causal=causal)
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
