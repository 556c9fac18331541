"""Gradients of a stage, one after the other in flat memory, so that contiguous parts of them can be summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import torch

from coppice.errors import InputError


class StageGradients:
    """Gradients of some tensors, those of one type in a row.

    Args:
        tensors: The tensors, by name.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self.flats: list[torch.Tensor] = []  # The rows
        self.views: dict[str, torch.Tensor] = {}  # For each name its gradient's place
        of_type: dict[torch.dtype, list[str]] = {}
        for name, tensor in tensors.items():
            of_type.setdefault(tensor.dtype, []).append(name)
        for kind, names in of_type.items():
            count = sum(tensors[name].numel() for name in names)
            flat = torch.zeros(count, dtype=kind, device=tensors[names[0]].device)
            place = 0
            for name in names:
                tensor = tensors[name]
                self.views[name] = flat[place : place + tensor.numel()].view(tensor.shape)
                place += tensor.numel()
            self.flats.append(flat)

    @property
    def bytes(self) -> int:
        """Bytes of all."""
        return sum(flat.numel() * flat.element_size() for flat in self.flats)

    def collect(self, stage: int) -> None:
        """Have all gradients in their places; autograd adds to them there from the second iteration on."""
        for name, view in self.views.items():
            tensor = self._tensors[name]
            if tensor.grad is None:
                raise InputError(
                    f"expected a gradient for every trained parameter of stage {stage}, found none of {name}: freeze "
                    "what is not used."
                )
            if tensor.grad.layout is not torch.strided:
                raise InputError(
                    f"expected dense gradients, found a sparse one of {name} of stage {stage}: take sparse=False, or "
                    "`order='trirace'` for an embedding of the first stage."
                )
            if tensor.grad.data_ptr() != view.data_ptr():
                view.copy_(tensor.grad)
                tensor.grad = view

    def zero(self) -> None:
        """Begin again."""
        for flat in self.flats:
            flat.zero_()

    def part(self, low: Fraction, high: Fraction) -> list[torch.Tensor]:
        """A contiguous part of each row.

        Args:
            low: Share of the row at which it begins.
        """
        cut = [flat[int(low * flat.numel()) : int(high * flat.numel())] for flat in self.flats]
        return [each for each in cut if each.numel()]

    def load(self, values: Sequence[torch.Tensor]) -> None:
        """Take values over."""
        with torch.no_grad():
            for flat, value in zip(self.flats, values, strict=True):
                flat.copy_(value)
