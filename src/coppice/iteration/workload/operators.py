"""Operators of a layer: matrix products, attention, scans of states, and passes over activations; and layers of them.

An operator says what it computes and moves for one sample; what that takes on a device is for
:mod:`coppice.iteration.workload.times` to say. So a layer of a convolutional net and one of a transformer that many
GPUs share are the same to everything above: a name, a row of operators, weights, and bytes kept and exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """Product of a sample's activations (rows x k) with weights (k x n)."""

    rows: float  # Rows for a sample: tokens, or places of a picture
    n: float  # Columns of the weights
    k: float  # Rows of the weights
    name: str = "product"  # What it makes
    parts: float = 1  # Matrices of this size that share out the rows: experts, groups of a convolution
    weights: bool = True  # The second operand has gradients of its own; otherwise both are activations
    cast: float = 0.0  # Values for a row that are cast where the job multiplies with 8 bits or fewer
    # How much faster than with 16 bits it is, where the precision of the job does not say
    precision: float | None = None
    kernel: int = 0  # Height of a square kernel, of a convolution with stride 1; 0: something else

    @property
    def flops(self) -> float:
        """FLOPs, two per multiply-add."""
        return 2 * self.rows * self.n * self.k


@dataclass(frozen=True, kw_only=True)
class AttentionProducts:
    """Scores, softmax and context of attention."""

    flops: float  # FLOPs of scores and context, none halved for masks
    sequences: float  # Sequences of a sample on this GPU
    seq: float  # Tokens whose scores a token has
    heads: float  # Heads on this GPU
    width: float  # Of a head
    causal: bool = True  # A token sees only those before it
    fused: bool = True  # Scores stay on the chip
    name: str = "attention"


@dataclass(frozen=True, kw_only=True)
class StateScan:
    """Scan of the states of a state-space layer along a sequence."""

    flops: float  # FLOPs
    moved_bytes: float  # Bytes that it reads and writes
    vector: bool = False  # It runs on 32-bit units, not on tensor cores (Mamba)
    name: str = "scan"


@dataclass(frozen=True, kw_only=True)
class MemoryPasses:
    """What reads and writes activations and computes next to nothing: norms, activation functions, permutations."""

    moved_bytes: float  # Bytes that the forward pass reads and writes
    name: str = "passes"
    backward: float = 2.0  # How many times as many the backward pass does: gradients beside values
    flops: float = 0.0


Operator = MatrixProduct | AttentionProducts | StateScan | MemoryPasses


@dataclass(frozen=True, kw_only=True)
class ModelLayer:
    """A layer, per sample."""

    name: str  # Its name
    kind: str  # `attention`, `mlp`, `experts`, `states`, `embedding`, `head`, `convolution`, `tables`, `interaction`
    operators: tuple[
        Operator, ...
    ] = ()  # In their order; a convolution is a product of its patches and its kernels
    kernels: float = 0.0  # Kernels of its forward pass that the host launches; 0: one for each operator
    activation_bytes: float = 0.0  # Bytes that the backward pass needs
    parameters: float = 0.0  # Weights
    # Those of them that are of experts or tables, which are not copied to every replica
    expert_parameters: float = 0.0
    exchanged_bytes: float = 0.0  # Bytes that all-to-alls of a rank carry forward, and as many backward

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass, two per multiply-add."""
        return sum(each.flops for each in self.operators)

    @property
    def products(self) -> list[MatrixProduct]:
        """Its matrix products."""
        return [each for each in self.operators if isinstance(each, MatrixProduct)]
