"""What every model offers: its size, its operations, and its layers with what they compute, move, keep and send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["LayeredModel", "MatrixProduct", "ModelLayer", "TrainingModel"]


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """A product of the activations of a sample with weights: rows x k and k x n.

    Attributes:
        rows: Rows for a sample: tokens, or places of a picture.
        n: Columns of the weights.
        k: Rows of the weights.
        parts: Matrices of this size that share out the rows: experts, groups of a convolution.
    """

    rows: float
    n: float
    k: float
    parts: float = 1

    @property
    def flops(self) -> float:
        """Operations, two a multiply-add."""
        return 2 * self.rows * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class ModelLayer:
    """A layer, for a sample.

    Attributes:
        name: Its name.
        kind: ``attention``, ``mlp``, ``experts``, ``embedding``, ``head``, ``convolution``, ``tables`` or
            ``interaction``.
        products: Its matrix products; a convolution is one (its patches times its kernels).
        attention: Operations of scores and context of attention.
        attention_shape: Heads and tokens of them.
        passed_bytes: Bytes that passes over activations beside products read and write, forward.
        kept_bytes: Bytes that the backward pass needs.
        parameters: Weights.
        expert_parameters: Those of them that are of experts or tables, which are not copied to every replica.
        exchanged_bytes: Bytes that all-to-alls of a rank carry forward, and as many backward.
    """

    name: str
    kind: str
    products: tuple[MatrixProduct, ...] = ()
    attention: float = 0.0
    attention_shape: tuple[float, float] = (1, 1)
    passed_bytes: float = 0.0
    kept_bytes: float = 0.0
    parameters: float = 0.0
    expert_parameters: float = 0.0
    exchanged_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """Operations of the forward pass, two a multiply-add."""
        return sum(each.flops for each in self.products) + self.attention


class TrainingModel(Protocol):
    """What a model offers to estimates, steps and policies."""

    @property
    def sample(self) -> str:
        """What a batch counts: sequence, image, or sample."""
        ...

    @property
    def parameters(self) -> float:
        """Weights of the model."""
        ...

    def forward_flops(self, samples: float, /) -> float:
        """Operations of a forward pass of so many samples, two a multiply-add."""
        ...


@dataclass(frozen=True, kw_only=True)
class LayeredModel:
    """A model that is a row of layers: a convolutional net, or a recommendation model. Replicas split its batch.

    Attributes:
        name: Its name.
        row: Its layers, the one nearest to the input first.
        sample: What a batch counts.
        weight_bytes: Bytes of a weight.
        gradient_bytes: Bytes of a gradient.
        state_bytes: Bytes of states of the optimizer for a weight.
        table_state_bytes: Bytes of states of the optimizer for a weight of a table.
    """

    name: str
    row: tuple[ModelLayer, ...]
    sample: str = "image"
    weight_bytes: float = 4.0
    gradient_bytes: float = 4.0
    state_bytes: float = 4.0
    table_state_bytes: float = 4.0

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.row)

    @property
    def parameters(self) -> float:
        """Weights."""
        return sum(each.parameters for each in self.row)

    @property
    def table_parameters(self) -> float:
        """Weights of tables, which replicas share out among themselves."""
        return sum(each.expert_parameters for each in self.row)

    def forward_flops(self, samples: float) -> float:
        """Operations of a forward pass, two a multiply-add."""
        return samples * sum(each.flops for each in self.row)
