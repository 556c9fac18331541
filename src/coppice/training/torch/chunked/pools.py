"""Gradients of some parameters in a row, whose mean is taken."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.training.torch.chunked.templates import CollectiveBuffers


class GradientPool:
    """Gradients side by side; what is of another type than the first is converted on its way.

    Args:
        parameters: The parameters.
        ranks: The mean is over so many.
        shared: It is over the ranks with the same share of sections, not over all.
        padded: Elements of the row at least.

    Examples:
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> pool = GradientPool([weight], 2)
        >>> weight.grad = torch.tensor([2.0, 4.0])
        >>> pool.fill()
        >>> pool.flat
        tensor([1., 2.])
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], ranks: int, *, shared: bool = True, padded: int = 0
    ) -> None:
        self._parameters, self._ranks, self.shared = list(parameters), ranks, shared
        kind = torch.float32
        for each in parameters:
            kind = torch.promote_types(kind, each.dtype) if each.dtype == torch.float64 else kind
        if parameters and all(each.dtype == parameters[0].dtype for each in parameters):
            kind = parameters[0].dtype
        sizes = [each.numel() for each in parameters]
        device = parameters[0].device if parameters else None
        self.flat = torch.zeros(max(sum(sizes), padded), dtype=kind, device=device)
        self._views = [
            view.view(each.shape)
            for view, each in zip(torch.split(self.flat[: sum(sizes)], sizes), parameters, strict=True)
        ]

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The parameters."""
        return self._parameters

    def buffers(self, group: dist.ProcessGroup | None) -> CollectiveBuffers:
        """The mean as a collective of a group; None: of all ranks."""
        return CollectiveBuffers("all_reduce", self.flat, group=group)

    def fill(self) -> None:
        """Take the gradients over, divided by the number of ranks."""
        self._take(self._parameters)

    def _take(self, tensors: Sequence[torch.Tensor]) -> None:
        for parameter, view in zip(tensors, self._views, strict=True):
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse:
                found = "none" if gradient is None else "a sparse one"
                raise InputError(
                    f"expected dense gradients of all trained parameters, found {found} of one of shape "
                    f"{list(parameter.shape)}: freeze what is not used (requires_grad=False)."
                )
            if gradient.dtype == view.dtype:
                torch.mul(gradient, 1 / self._ranks, out=view)
            else:
                view.copy_(gradient)
                view.mul_(1 / self._ranks)

    def hand_out(self) -> None:
        """The mean becomes the gradient."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)
