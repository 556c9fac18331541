"""Convolutional nets and recommendation models, by name.

Convolutional nets are AlexNet in its one-column form (Krizhevsky, arXiv 1404.5997), DenseNet (Huang et al., CVPR
2017), Inception-v3 (Szegedy et al., CVPR 2016) without its auxiliary classifier, Inception-v4 (Szegedy et al., AAAI
2017), ResNet (He et al., CVPR 2016) and VGG (Simonyan and Zisserman, ICLR 2015), with the sizes of torchvision, and of
timm for Inception-v4: ResNet strides in the 3 x 3 convolutions of its blocks. A convolution is the product of its
patches with its kernels; what follows it (normalisation, activation, addition, pooling) are passes over what it gives.
Training keeps what a convolution reads and, where it is normalised, what it gives; activations work in place.
Activations have 16 bits; weights, gradients and momentum 32 (automatic mixed precision).

The deep learning recommendation model (DLRM; Naumov et al., arXiv 1906.00091) is two MLPs, and tables of embeddings.
MLPs are copied to every GPU, tables sharded: a GPU looks up its tables for the batch of all and gets the rows of its
own samples from all others, an all-to-all forward and one backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from coppice.iteration.workload.operators import MatrixProduct, MemoryPasses, ModelLayer


@dataclass(frozen=True, kw_only=True)
class LayeredModel:
    """Sequential model: a convolutional net, or a recommendation model; replicas split its batch."""

    name: str  # Its name
    row: tuple[ModelLayer, ...]  # Its layers, the one nearest to the input first
    sample: str = "image"  # What a batch counts
    weight_bytes: float = 4.0  # Bytes of a weight
    gradient_bytes: float = 4.0  # Bytes of a gradient
    state_bytes: float = 4.0  # Bytes of states of the optimizer for a weight
    table_state_bytes: float = 4.0  # Bytes of states of the optimizer for a weight of a table

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.row)

    @property
    def parameters(self) -> float:
        """Number of parameters."""
        return sum(each.parameters for each in self.row)

    @property
    def table_parameters(self) -> float:
        """Parameters of embedding tables, which replicas shard."""
        return sum(each.expert_parameters for each in self.row)

    def forward_flops(self, samples: float) -> float:
        """FLOPs of a forward pass, two per multiply-add."""
        return samples * sum(each.flops for each in self.row)


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
            row.append(_convolution(f"{name}.conv2", inner, inner, 3, size, strided=before != size))
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


def alexnet(*, classes: int = 1000) -> LayeredModel:
    """AlexNet in one column, for pictures of 224 x 224.

    Examples:
        >>> found = alexnet()
        >>> f"{found.parameters:,}", round(found.forward_flops(1) / 2e9, 2)
        ('61,100,840', 0.71)
    """
    sizes = ((64, 11, 55), (192, 5, 27), (384, 3, 13), (256, 3, 13), (256, 3, 13))
    row, width = [], 3
    for number, (outer, kernel, size) in enumerate(sizes):
        row.append(_convolution(f"conv{number + 1}", width, outer, kernel, size, normalised=False))
        width = outer
    width *= 6 * 6
    for number, outer in enumerate((4096, 4096, classes)):
        row.append(_linear(f"fc{number + 1}", width, outer))
        width = outer
    return LayeredModel(name="alexnet", row=tuple(row))


_Branch = Sequence[tuple[int, int | tuple[int, int], int]]
"""Convolutions in turn: channels given, kernel, and height and width of what is given."""


def inception_v3(*, classes: int = 1000) -> LayeredModel:
    """Inception-v3 for pictures of 299 x 299, branch by branch.

    Examples:
        >>> found = inception_v3()
        >>> f"{found.parameters:,}", round(found.forward_flops(1) / 2e9, 2)
        ('23,834,568', 5.71)
    """
    row, width = [], 3
    for number, (outer, kernel, size) in enumerate(
        ((32, 3, 149), (32, 3, 147), (64, 3, 147), (80, 1, 73), (192, 3, 71))
    ):
        row.append(_convolution(f"stem.{number + 1}", width, outer, kernel, size, strided=not number))
        width = outer
    for number, (branches, passed) in enumerate(_mixed_blocks()):
        given = width if passed else 0
        for branch, convolutions in enumerate(branches):
            inner = width
            for place, (outer, shape, size) in enumerate(convolutions):
                name = f"mixed{number + 1}.{branch + 1}.{place + 1}"
                strided = passed and place + 1 == len(convolutions)
                row.append(_convolution(name, inner, outer, shape, size, strided=strided))
                inner = outer
            given += inner
        # The last blocks fork a branch once more, so that two convolutions read what one gave.
        for branch, (inner, outer, shapes) in enumerate(_FORKS if number >= len(_PLAIN) + 1 else ()):
            for place, shape in enumerate(shapes):
                name = f"mixed{number + 1}.fork{branch + 1}.{place + 1}"
                row.append(_convolution(name, inner, outer, shape, 8))
                given += outer
            given -= inner
        width = given
    row.append(_linear("fc", width, classes))
    return LayeredModel(name="inception-v3", row=tuple(row))


_PLAIN = (32, 64, 64, None, 128, 160, 160, 192)
"""Blocks before the last reduction: channels behind the pool, none for a reduction, channels of factorised branches."""
_FORKS = ((384, 384, ((1, 3), (3, 1))), (384, 384, ((1, 3), (3, 1))))


def _mixed_blocks() -> list[tuple[Sequence[_Branch], bool]]:
    """Branches of each block, and whether a pool passes on all that it reads."""
    found: list[tuple[Sequence[_Branch], bool]] = []
    for number, inner in enumerate(_PLAIN):
        if inner is None:
            found.append(([[(384, 3, 17)], [(64, 1, 35), (96, 3, 35), (96, 3, 17)]], True))
        elif number < 3:
            twice = [(64, 1, 35), (96, 3, 35), (96, 3, 35)]
            found.append(([[(64, 1, 35)], [(48, 1, 35), (64, 5, 35)], twice, [(inner, 1, 35)]], False))
        else:
            once: _Branch = [(inner, 1, 17), (inner, (1, 7), 17), (192, (7, 1), 17)]
            long: _Branch = [
                *((inner, 1, 17), (inner, (7, 1), 17), (inner, (1, 7), 17), (inner, (7, 1), 17)),
                (192, (1, 7), 17),
            ]
            found.append(([[(192, 1, 17)], once, long, [(192, 1, 17)]], False))
    down: _Branch = [(192, 1, 17), (192, (1, 7), 17), (192, (7, 1), 17), (192, 3, 8)]
    found.append(([[(192, 1, 17), (320, 3, 8)], down], True))
    last: Sequence[_Branch] = [[(320, 1, 8)], [(384, 1, 8)], [(448, 1, 8), (384, 3, 8)], [(192, 1, 8)]]
    return [*found, (last, False), (last, False)]


def inception_v4(*, classes: int = 1000) -> LayeredModel:
    """Inception-v4 for pictures of 299 x 299, branch by branch.

    Examples:
        >>> found = inception_v4()
        >>> f"{found.parameters:,}", round(found.forward_flops(1) / 2e9, 2)
        ('42,679,816', 12.25)
    """
    row, width = [], 3
    for number, (outer, size) in enumerate(((32, 149), (32, 147), (64, 147))):
        row.append(_convolution(f"stem.{number + 1}", width, outer, 3, size, strided=not number))
        width = outer
    for number, (branches, passed, pooled) in enumerate(_fourth_blocks()):
        given = width if passed else 0
        for branch, (convolutions, fork) in enumerate(branches):
            inner = width
            for place, (outer, shape, size) in enumerate(convolutions):
                name = f"mixed{number + 1}.{branch + 1}.{place + 1}"
                strided = pooled and place + 1 == len(convolutions)
                row.append(_convolution(name, inner, outer, shape, size, strided=strided))
                inner = outer
            # The last blocks fork two branches, so that two convolutions read what one gave.
            for place, outer in enumerate(fork):
                name = f"mixed{number + 1}.{branch + 1}.fork{place + 1}"
                row.append(_convolution(name, inner, outer, (1, 3), 8))
            given += sum(fork) or inner
        width = given
    row.append(_linear("fc", width, classes))
    return LayeredModel(name="inception-v4", row=tuple(row))


def _fourth_blocks() -> list[tuple[Sequence[tuple[_Branch, tuple[int, ...]]], bool, bool]]:
    """Branches of blocks of Inception-v4 with their forks, whether a pool passes on all, and whether they stride."""
    plain: tuple[int, ...] = ()

    def block(*branches: _Branch) -> Sequence[tuple[_Branch, tuple[int, ...]]]:
        return [(each, plain) for each in branches]

    wide: _Branch = [(64, 1, 73), (64, (1, 7), 73), (64, (7, 1), 73), (96, 3, 71)]
    long: _Branch = [(192, 1, 17), (192, (7, 1), 17), (224, (1, 7), 17), (224, (7, 1), 17), (256, (1, 7), 17)]
    first = block(
        [(96, 1, 35)], [(64, 1, 35), (96, 3, 35)], [(64, 1, 35), (96, 3, 35), (96, 3, 35)], [(96, 1, 35)]
    )
    second = block([(384, 1, 17)], [(192, 1, 17), (224, (1, 7), 17), (256, (7, 1), 17)], long, [(128, 1, 17)])
    third: Sequence[tuple[_Branch, tuple[int, ...]]] = [
        ([(256, 1, 8)], plain),
        ([(384, 1, 8)], (256, 256)),
        ([(384, 1, 8), (448, (3, 1), 8), (512, (1, 3), 8)], (256, 256)),
        ([(256, 1, 8)], plain),
    ]
    down: _Branch = [(256, 1, 17), (256, (1, 7), 17), (320, (7, 1), 17), (320, 3, 8)]
    return [
        (block([(96, 3, 73)]), True, True),
        (block([(64, 1, 73), (96, 3, 71)], wide), False, False),
        (block([(192, 3, 35)]), True, True),
        *[(first, False, False)] * 4,
        (block([(384, 3, 17)], [(192, 1, 35), (224, 3, 35), (256, 3, 17)]), True, True),
        *[(second, False, False)] * 7,
        (block([(192, 1, 17), (192, 3, 8)], down), True, True),
        *[(third, False, False)] * 3,
    ]


_DENSENETS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}


def densenet(depth: int, *, classes: int = 1000) -> LayeredModel:
    """A DenseNet of bottleneck layers that add 32 channels each, for pictures of 224 x 224.

    Args:
        depth: 121, 169 or 201.
        classes: Kinds of pictures.

    Examples:
        >>> found = densenet(201)
        >>> f"{found.parameters:,}", round(found.forward_flops(1) / 2e9, 2)
        ('20,013,928', 4.29)
    """
    row, width, size = [_convolution("conv0", 3, 64, 7, 112)], 64, 56
    for block, layers in enumerate(_DENSENETS[depth]):
        for layer in range(layers):
            name = f"block{block + 1}.{layer + 1}"
            row.append(_prepared(f"{name}.conv1", width, 128, 1, size))
            row.append(_prepared(f"{name}.conv2", 128, 32, 3, size))
            width += 32
        if block + 1 < len(_DENSENETS[depth]):
            row.append(_prepared(f"transition{block + 1}", width, width // 2, 1, size))
            width, size = width // 2, size // 2
    last = _linear("fc", width, classes)
    row.append(replace(last, parameters=last.parameters + 2 * width))
    return LayeredModel(name=f"densenet-{depth}", row=tuple(row))


def _prepared(name: str, inner: int, outer: int, kernel: int, size: int) -> ModelLayer:
    """Convolution behind the normalisation and the activation of what it reads, which is kept twice."""
    bare = _convolution(name, inner, outer, kernel, size, normalised=False)
    read = _HALF * size * size * inner
    return replace(
        bare,
        operators=(bare.operators[0], MemoryPasses(moved_bytes=5 * read)),
        activation_bytes=2 * read,
        parameters=bare.parameters - outer + 2 * inner,
    )


def _convolution(
    name: str,
    inner: int,
    outer: int,
    kernel: int | tuple[int, int],
    size: int,
    *,
    normalised: bool = True,
    strided: bool = False,
) -> ModelLayer:
    """Convolution with output of size x size per channel, and the operations after it."""
    places = size * size
    area = kernel * kernel if isinstance(kernel, int) else kernel[0] * kernel[1]
    given = _HALF * places * outer
    weights = area * inner * outer
    # Normalisation reads twice and writes once, an activation reads and writes; both keep one copy each.
    return ModelLayer(
        name=name,
        kind="convolution",
        operators=(
            MatrixProduct(
                rows=places,
                n=outer,
                k=area * inner,
                kernel=0 if strided or not isinstance(kernel, int) else kernel,
            ),
            MemoryPasses(moved_bytes=given * (5 if normalised else 2)),
        ),
        activation_bytes=given * (2 if normalised else 1),
        parameters=weights + (2 * outer if normalised else outer),
    )


def _linear(name: str, inner: int, outer: int) -> ModelLayer:
    """Fully connected layer."""
    return ModelLayer(
        name=name,
        kind="mlp",
        operators=(MatrixProduct(rows=1, n=outer, k=inner), MemoryPasses(moved_bytes=2 * _HALF * outer)),
        activation_bytes=_HALF * outer,
        parameters=inner * outer + outer,
    )


_FLOAT = 4  # bytes of a value
_CRITEO = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
    *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
"""Rows of the tables of MLPerf's data set (Criteo, a terabyte), of which 40 million at most are kept."""


def dlrm(
    *,
    dense: int = 13,  # Numbers that a sample has beside its categories
    # Widths of the MLP over them; the last is the width of embeddings
    bottom: Sequence[int] = (512, 256, 128),
    # Widths of the MLP over the products of embeddings with each other
    top: Sequence[int] = (1024, 1024, 512, 256, 1),
    rows: Sequence[int] = _CRITEO,
    lookups: int = 1,  # Rows that a sample looks up in each table
) -> LayeredModel:
    """A recommendation model; by default that of MLPerf.

    Examples:
        >>> found = dlrm()
        >>> round(found.table_parameters / 1e9, 2), f"{found.parameters - found.table_parameters:,.0f}"
        (24.03, '2,368,897')
    """
    width, tables = bottom[-1], len(rows)
    vectors = tables + 1
    pairs = vectors * (vectors - 1) // 2
    looked = _FLOAT * tables * width
    row = [
        ModelLayer(
            name="tables",
            kind="tables",
            operators=(MemoryPasses(moved_bytes=looked * (lookups + 1), backward=1.0),),
            activation_bytes=looked,
            parameters=sum(rows) * width,
            expert_parameters=sum(rows) * width,
            exchanged_bytes=looked,
        ),
        *_mlp("bottom", (dense, *bottom)),
        ModelLayer(
            name="interaction",
            kind="interaction",
            operators=(
                MatrixProduct(rows=vectors, n=vectors, k=width, weights=False),
                MemoryPasses(moved_bytes=_FLOAT * (vectors * width + 2 * pairs), backward=1.0),
            ),
            activation_bytes=_FLOAT * (vectors * width + pairs),
        ),
        *_mlp("top", (width + pairs, *top)),
    ]
    return LayeredModel(
        name="dlrm", row=tuple(row), sample="sample", state_bytes=0.0, table_state_bytes=_FLOAT / width
    )


def _mlp(name: str, widths: Sequence[int]) -> list[ModelLayer]:
    """Layers of an MLP."""
    return [
        ModelLayer(
            name=f"{name}.{number}",
            kind="mlp",
            operators=(
                MatrixProduct(rows=1, n=outer, k=inner),
                MemoryPasses(moved_bytes=2 * _FLOAT * outer),
            ),
            activation_bytes=_FLOAT * outer,
            parameters=inner * outer + outer,
        )
        for number, (inner, outer) in enumerate(itertools.pairwise(widths))
    ]


LAYERED_MODELS: Mapping[str, Callable[[], LayeredModel]] = {
    "alexnet": alexnet,
    "densenet-121": lambda: densenet(121),
    "densenet-169": lambda: densenet(169),
    "densenet-201": lambda: densenet(201),
    "inception-v3": inception_v3,
    "inception-v4": inception_v4,
    "resnet-50": lambda: resnet(50),
    "resnet-101": lambda: resnet(101),
    "resnet-152": lambda: resnet(152),
    "vgg-16": lambda: vgg(16),
    "vgg-19": lambda: vgg(19),
    "dlrm": dlrm,
}
"""Models that are sequential models, made when they are asked for."""
