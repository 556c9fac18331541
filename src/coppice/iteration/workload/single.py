"""Workloads that train with 32 bits, as frameworks did before tensor cores.

Products run at the peak of 32-bit operations by data sheet, passes move values of 4 bytes, gradients have 4 bytes.
Convolutions of 3 x 3 with stride 1 are made as Winograd's F(2 x 2, 3 x 3), which multiplies 2.25 times less often
(Lavin and Gray, CVPR 2016), and kernels for 32 bits have tiles small enough that no wave of processors counts. Shares
of peaks are the general ones of :class:`~coppice.iteration.devices.Calibration`; nothing is fitted to such GPUs.
"""

from __future__ import annotations

from dataclasses import replace

from coppice.iteration.devices import Calibration, single_precision
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.machine import box_of
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel
from coppice.iteration.workload.operators import MatrixProduct, ModelLayer, Operator
from coppice.iteration.workload.times import layer_workload

_WINOGRAD = 2.25
"""Multiplications of a convolution of 3 x 3 over those of Winograd's algorithm for 2 x 2 results."""
_TRANSFORMED = 3  # height of its kernels
_BYTES = 4.0


def single_workload(
    model: Transformer | LayeredModel,
    device: str,
    *,
    workers: int,
    samples: float,
    bytes_per_second: float,
    message_seconds: float = 0.0,
) -> LayerWorkload:
    """Workload of a data-parallel model that is trained with 32 bits.

    Args:
        model: The model.
        device: Name of the GPUs.
        workers: Number of GPUs.
        samples: Samples of a batch of one of them.
        bytes_per_second: What a gradient message carries a second.
        message_seconds: What it takes by itself.

    Examples:
        >>> from coppice.iteration.workload.nets import resnet
        >>> found = single_workload(resnet(50), "P100", workers=8, samples=64, bytes_per_second=1e9)
        >>> round(64 / found.compute_seconds)
        196
    """
    cluster = box_of(device)
    sheet = replace(single_precision(cluster.device), processors=0)
    cluster = replace(cluster, device=sheet, calibration=Calibration())
    if isinstance(model, LayeredModel):
        model = replace(model, row=tuple(map(_transformed, model.row)))
    found = layer_workload(
        model,
        cluster,
        workers=workers,
        samples=samples,
        bytes_per_second=bytes_per_second,
        message_seconds=message_seconds,
    )
    size = model.gradient_bytes if isinstance(model, LayeredModel) else 2.0
    return replace(found, bytes=tuple(_BYTES / size * each for each in found.bytes), element_bytes=_BYTES)


def _transformed(layer: ModelLayer) -> ModelLayer:
    """A layer whose convolutions of 3 x 3 multiply as Winograd's do."""

    def shorter(each: Operator) -> Operator:
        if isinstance(each, MatrixProduct) and each.kernel == _TRANSFORMED:
            return replace(each, k=each.k / _WINOGRAD)
        return each

    return replace(layer, operators=tuple(map(shorter, layer.operators)))
