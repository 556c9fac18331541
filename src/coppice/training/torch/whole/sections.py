"""Sections of a tensor-parallel model: split along the batch, all-reduced over ranks, weight gradients deferrable.

A section is ``x + sum over ranks of inner(norm(x))``: the attention, or the perceptron, of a layer whose matrices are
cut by columns and then by rows (Megatron). Its forward pass ends with an all-reduce of activations, its backward pass
with one of gradients before ``norm``. Gradients of the weights of linear layers need not be there for either: they are
computed when the plan says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode


class SectionExecutor(Protocol):
    """Executor of sections under a plan."""

    def section(self, section: TensorParallelModule, x: torch.Tensor) -> torch.Tensor:
        """All-reduced inner outputs."""


class PartedWeights(Protocol):
    """Weights sharded over the replicas."""

    def call(self, x: torch.Tensor) -> torch.Tensor:
        """Inner layers on gathered weights."""

    def evaluated(self, x: torch.Tensor) -> torch.Tensor:
        """Inner layers outside of a plan."""


class TensorParallelModule(nn.Module):
    """``x + sum over ranks of inner(norm(x)) + bias``; rows of ``x``, along its first dimension, are independent.

    Args:
        inner: This rank's share of the layers; its parameters are those of this rank alone.
        norm: What comes before, alike on all ranks.
        bias: What is added to the sum, alike on all ranks.
        group: The ranks that share the layers; None: this rank has them whole.
        residual: Add ``x``.

    Examples:
        >>> section = TensorParallelModule(nn.Linear(4, 4), norm=nn.LayerNorm(4))
        >>> section(torch.ones(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        inner: nn.Module,
        *,
        norm: nn.Module | None = None,
        bias: nn.Parameter | None = None,
        group: dist.ProcessGroup | None = None,
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.inner, self.norm, self.bias = inner, norm, bias
        self.group, self.residual = group, residual
        self.executor: SectionExecutor | None = None
        self.weights: PartedWeights | None = None

    def __getstate__(self) -> dict[str, Any]:
        """State of copies, without the schedule."""
        return {**vars(self), "executor": None, "weights": None}

    def computed(self, h: torch.Tensor) -> torch.Tensor:
        """Inner layers on gathered weights."""
        found: torch.Tensor = self.inner(h) if self.weights is None else self.weights.call(h)
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run under a plan while training if there is one, else with plain all-reduces."""
        if self.executor is not None and self.training and torch.is_grad_enabled():
            found = self.executor.section(self, x)
        else:
            h = x if self.norm is None else self.norm(x)
            inner = self.inner if self.weights is None else self.weights.evaluated
            found = inner(h if self.group is None else _Copied.apply(h, self.group))  # type: ignore[no-untyped-call]
            if self.group is not None:
                found = _Summed.apply(found, self.group)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            found = found + self.bias
        return x + found if self.residual else found


class _Copied(torch.autograd.Function):
    """Identity with all-reduced gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(found, group=ctx.group)
        return found, None


class _Summed(torch.autograd.Function):
    """All-reduce with identity gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        del ctx
        found = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(found, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0], None


class WeightProduct(NamedTuple):
    """Deferred weight gradient: output gradient times input."""

    weight: torch.Tensor
    x: torch.Tensor
    gradient: torch.Tensor

    def compute(self) -> torch.Tensor:
        """Compute the product."""
        rows = self.gradient.flatten(0, -2) if self.gradient.dim() > 1 else self.gradient[None]
        x = self.x.flatten(0, -2) if self.x.dim() > 1 else self.x[None]
        return rows.t().matmul(x.to(rows.dtype)).to(self.weight.dtype)


class DeferredWeights(TorchFunctionMode):
    """Context in which linear layers defer their weight gradients.

    Args:
        products: Where they are left, when the backward pass has come by.
    """

    def __init__(self, products: list[WeightProduct]) -> None:
        super().__init__()
        self._products = products

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Intercept linear layers with trained weights."""
        del types
        given = kwargs or {}
        if func is nn.functional.linear:
            x, weight, bias = (
                *args,
                *(given[key] for key in ("input", "weight", "bias") if key in given),
                None,
            )[:3]
            if weight.requires_grad and x.requires_grad and weight.dim() == 2:
                return _DeferredLinear.apply(x, weight.detach(), bias, [weight], self._products)  # type: ignore[no-untyped-call]
        return func(*args, **given)


class _DeferredLinear(torch.autograd.Function):
    """Linear layer whose weight gradient is deferred."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        owner: list[torch.Tensor],
        products: list[WeightProduct],
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.owner, ctx.products = owner, products
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        gradient = gradients[0]
        ctx.products.append(WeightProduct(ctx.owner[0], x, gradient))
        of_x = gradient.matmul(weight.to(gradient.dtype)).to(x.dtype)
        of_bias = None
        if ctx.needs_input_grad[2]:
            of_bias = gradient.sum(dim=tuple(range(gradient.dim() - 1)))
        return of_x, None, of_bias, None, None
