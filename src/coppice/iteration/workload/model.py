"""Interface of models: size, FLOPs, and layers with computation, memory traffic and communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """Product of a sample's activations (rows x k) with weights (k x n)."""

    rows: float  # Rows for a sample: tokens, or places of a picture
    n: float  # Columns of the weights
    k: float  # Rows of the weights
    parts: float = 1  # Matrices of this size that shard the rows: experts, groups of a convolution

    @property
    def flops(self) -> float:
        """FLOPs, two per multiply-add."""
        return 2 * self.rows * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class ModelLayer:
    """A layer, per sample."""

    name: str  # Its name
    kind: str  # `attention`, `mlp`, `experts`, `embedding`, `head`, `convolution`, `tables` or `interaction`
    # Its matrix products; a convolution is one (its patches times its kernels)
    products: tuple[MatrixProduct, ...] = ()
    attention: float = 0.0  # Operations of scores and context of attention
    attention_shape: tuple[float, float] = (1, 1)  # Heads and tokens of them
    passed_bytes: float = 0.0  # Bytes that passes over activations beside products read and write, forward
    activation_bytes: float = 0.0  # Bytes that the backward pass needs
    parameters: float = 0.0  # Weights
    # Those of them that are of experts or tables, which are not copied to every replica
    expert_parameters: float = 0.0
    exchanged_bytes: float = 0.0  # Bytes that all-to-alls of a rank carry forward, and as many backward

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass, two per multiply-add."""
        return sum(each.flops for each in self.products) + self.attention


class TrainingModel(Protocol):
    """Interface of models for estimates, steps and policies."""

    @property
    def sample(self) -> str:
        """Unit of the batch size."""
        ...

    @property
    def parameters(self) -> float:
        """Number of parameters."""
        ...

    def forward_flops(self, samples: float, /) -> float:
        """FLOPs of a forward pass by batch size, two per multiply-add."""
        ...


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
