"""Convolutional nets layer by layer: ResNet (He et al., CVPR 2016) and VGG (Simonyan and Zisserman, ICLR 2015).

Sizes are those of torchvision: ResNet strides in the 3 x 3 convolutions of its blocks. A convolution is the product of
its patches with its kernels; what follows it (normalisation, activation, addition, pooling) are passes over what it
gives. Training keeps what a convolution reads and, where it is normalised, what it gives; activations work in place.
Activations have 16 bits; weights, gradients and momentum 32 (automatic mixed precision).
"""

from __future__ import annotations

from coppice.iteration.workload.model import LayeredModel, MatrixProduct, ModelLayer

_HALF = 2  # bytes of a value
_RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_VGGS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def resnet(depth: int, *, side: int = 224, classes: int = 1000) -> LayeredModel:
    """A ResNet of bottleneck blocks.

    Args:
        depth: 50, 101 or 152.
        side: Height and width of a picture.

    Examples:
        Multiply-adds counted once, as the paper does, are half of the operations.

        >>> found = resnet(50)
        >>> f"{found.parameters:,}", round(found.forward_flops(1) / 2e9, 2)
        ('25,557,032', 4.09)
    """
    row = [_convolution("conv1", 3, 64, 7, side // 2)]
    size, width = side // 4, 64
    for stage, blocks in enumerate(_RESNETS[depth]):
        inner = 64 << stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            before, size = size, size // 2 if stage and not block else size
            row.append(_convolution(f"{name}.conv1", width, inner, 1, before))
            row.append(_convolution(f"{name}.conv2", inner, inner, 3, size))
            row.append(_convolution(f"{name}.conv3", inner, 4 * inner, 1, size))
            if not block:
                row.append(_convolution(f"{name}.downsample", width, 4 * inner, 1, size))
            width = 4 * inner
    row.append(_linear("fc", width, classes))
    return LayeredModel(name=f"resnet-{depth}", row=tuple(row))


def vgg(depth: int, *, side: int = 224, classes: int = 1000) -> LayeredModel:
    """A VGG net without normalisation.

    Args:
        depth: 16 or 19.
        side: Height and width of a picture.

    Examples:
        >>> found = vgg(19)
        >>> f"{found.parameters:,}", round(found.forward_flops(1) / 2e9, 1)
        ('143,667,240', 19.6)
    """
    row, width, size = [], 3, side
    for stage, count in enumerate(_VGGS[depth]):
        for each in range(count):
            outer = min(512, 64 << stage)
            row.append(_convolution(f"conv{stage + 1}.{each + 1}", width, outer, 3, size, normalised=False))
            width = outer
        size //= 2
    width *= size * size
    for number, outer in enumerate((4096, 4096, classes)):
        row.append(_linear(f"fc{number + 1}", width, outer))
        width = outer
    return LayeredModel(name=f"vgg-{depth}", row=tuple(row))


def _convolution(
    name: str, inner: int, outer: int, kernel: int, size: int, *, normalised: bool = True
) -> ModelLayer:
    """A convolution that gives size x size values a channel, and what follows it."""
    places = size * size
    given = _HALF * places * outer
    weights = kernel * kernel * inner * outer
    # Normalisation reads twice and writes once, an activation reads and writes; both keep one copy each.
    return ModelLayer(
        name=name,
        kind="convolution",
        products=(MatrixProduct(rows=places, n=outer, k=kernel * kernel * inner),),
        passed_bytes=given * (5 if normalised else 2),
        kept_bytes=given * (2 if normalised else 1),
        parameters=weights + (2 * outer if normalised else outer),
    )


def _linear(name: str, inner: int, outer: int) -> ModelLayer:
    """A layer in which everything is joined."""
    return ModelLayer(
        name=name,
        kind="mlp",
        products=(MatrixProduct(rows=1, n=outer, k=inner),),
        passed_bytes=2 * _HALF * outer,
        kept_bytes=_HALF * outer,
        parameters=inner * outer + outer,
    )
