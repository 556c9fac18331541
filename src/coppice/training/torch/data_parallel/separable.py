"""Layers whose backward pass splits into independent input and weight gradients.

One is the gradient of the input, which the layer before waits for; the other that of each parameter. Both are made of
the gradient of the output by the kernels that autograd itself calls, on the same operands, so that they are its
gradients bit for bit. A layer is known by its exact class: a subclass may compute otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

Kept = Sequence[torch.Tensor]
"""Tensors that a backward pass needs; the first are the operands."""


class SeparableLayer(Protocol):
    """Split backward pass of one class of modules."""

    # Names of its parameters whose gradients can be made apart; autograd makes the last of them first
    parameters: tuple[str, ...]

    def takes(self, given: torch.Tensor) -> bool:
        """Whether autograd would treat the input as this layer does."""

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Output, and the tensors saved for backward."""

    def input_gradient(self, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        """Gradient of the input."""

    def parameter_gradient(self, name: str, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        """Gradient of a parameter."""


def separable_layer(module: Any) -> SeparableLayer | None:
    """Separable layer of a module; None: its backward pass is not split."""
    kind = type(module)
    if kind is nn.Linear:
        return _Product(module)
    if kind in _CONVOLUTIONS and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        return _Convolution(module)
    if kind is nn.LayerNorm and module.weight is not None:
        return _Normalization(module)
    if kind is nn.Embedding and module.max_norm is None and not module.sparse:
        return _EmbeddingRows(module)
    return None


def _lowered(device: torch.device, *operands: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Operands as autocast passes them to matrix products and convolutions."""
    if not torch.is_autocast_enabled(device.type):
        return operands
    kind = torch.get_autocast_dtype(device.type)
    return tuple(
        each if each is None or not each.is_floating_point() or each.dtype == torch.float64 else each.to(kind)
        for each in operands
    )


def _detached(module: nn.Module, name: str) -> torch.Tensor | None:
    """Detached parameter that still shares its version counter."""
    parameter = getattr(module, name)
    return None if parameter is None else parameter.detach()


def _those_of(module: nn.Module, *names: str) -> tuple[str, ...]:
    """Names of a module's own parameters."""
    return tuple(name for name in names if getattr(module, name, None) is not None)


class _Product:
    """``nn.Linear``."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.parameters = _those_of(module, "weight", "bias")

    def takes(self, given: torch.Tensor) -> bool:
        return given.dim() >= 2 and given.is_floating_point()  # autograd has another way for a vector

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        weight, bias = _detached(self._module, "weight"), _detached(self._module, "bias")
        rows, matrix, offset = _lowered(given.device, given, weight, bias)
        assert rows is not None
        assert matrix is not None
        with torch.autocast(given.device.type, enabled=False):
            return functional.linear(rows, matrix, offset), (rows, matrix)

    def input_gradient(self, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        rows, matrix = kept
        return gradient.reshape(-1, gradient.shape[-1]).mm(matrix).view(rows.shape)

    def parameter_gradient(self, name: str, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        flat = gradient.reshape(-1, gradient.shape[-1])
        if name == "bias":
            return flat.sum(0)
        return flat.t().mm(kept[0].reshape(-1, kept[0].shape[-1]))


class _Convolution:
    """``nn.Conv1d``, ``2d``, ``3d`` and their transposes, with zero padding."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.parameters = _those_of(module, "bias", "weight")

    def takes(self, given: torch.Tensor) -> bool:
        return given.dim() == len(self._module.kernel_size) + 2 and given.is_floating_point()

    @property
    def _settings(self) -> tuple[Any, ...]:
        own = self._module
        return own.stride, own.padding, own.dilation, own.transposed, own.output_padding, own.groups

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        weight, bias = _detached(self._module, "weight"), _detached(self._module, "bias")
        images, kernel, offset = _lowered(given.device, given, weight, bias)
        assert images is not None
        assert kernel is not None
        with torch.autocast(given.device.type, enabled=False):
            return torch.convolution(images, kernel, offset, *self._settings), (images, kernel)

    def input_gradient(self, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        return self._backward(kept, gradient, 0)

    def parameter_gradient(self, name: str, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        return self._backward(kept, gradient, 2 if name == "bias" else 1)

    def _backward(self, kept: Kept, gradient: torch.Tensor, which: int) -> torch.Tensor:
        images, kernel = kept
        wanted = [place == which for place in range(3)]
        sizes = None if self._module.bias is None else list(self._module.bias.shape)
        made = torch.ops.aten.convolution_backward(gradient, images, kernel, sizes, *self._settings, wanted)
        found: torch.Tensor = made[which]
        return found


class _Normalization:
    """``nn.LayerNorm``; unsplit under autocast."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.parameters = _those_of(module, "bias", "weight")

    def takes(self, given: torch.Tensor) -> bool:
        return given.is_floating_point() and not torch.is_autocast_enabled(given.device.type)

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        own = self._module
        weight, bias = _detached(own, "weight"), _detached(own, "bias")
        assert weight is not None
        output, mean, deviation = torch.native_layer_norm(
            given, list(own.normalized_shape), weight, bias, own.eps
        )
        return output, (given, weight, mean, deviation, *([] if bias is None else [bias]))

    def input_gradient(self, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        return self._backward(kept, gradient, 0)

    def parameter_gradient(self, name: str, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        return self._backward(kept, gradient, 2 if name == "bias" else 1)

    def _backward(self, kept: Kept, gradient: torch.Tensor, which: int) -> torch.Tensor:
        given, weight, mean, deviation, *bias = kept
        made = torch.ops.aten.native_layer_norm_backward(
            gradient,
            given,
            list(self._module.normalized_shape),
            mean,
            deviation,
            weight,
            bias[0] if bias else None,
            [place == which for place in range(3)],
        )
        found: torch.Tensor = made[which]
        return found


class _EmbeddingRows:
    """``nn.Embedding`` with dense gradients."""

    parameters: tuple[str, ...] = ("weight",)

    def __init__(self, module: Any) -> None:
        self._module = module

    def takes(self, given: torch.Tensor) -> bool:
        return not given.is_floating_point()

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        weight = _detached(self._module, "weight")
        assert weight is not None
        return functional.embedding(given, weight), (given,)

    def input_gradient(self, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        del gradient
        return torch.zeros_like(kept[0])  # never asked for: indices have none

    def parameter_gradient(self, name: str, kept: Kept, gradient: torch.Tensor) -> torch.Tensor:
        del name
        own = self._module
        padding = -1 if own.padding_idx is None else own.padding_idx
        made: torch.Tensor = torch.ops.aten.embedding_dense_backward(
            gradient, kept[0], own.num_embeddings, padding, own.scale_grad_by_freq
        )
        return made


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
