"""Poseidon's sufficient factors: send the gradient of a linear layer as the factors of its outer product.

The gradient of the weights of ``nn.Linear`` is that of its output, transposed, times its input: one outer product for
each row of them. Ranks gather the rows of all, and each rebuilds the sum by one matrix product. Whether that is so of
a layer is not guessed from the model: in recorded iterations the product must have been the gradient that autograd
made. Tied weights, layers that run twice, hooks on gradients and mixed precision fail that and go whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from coppice.errors import InputError
from coppice.iteration.step.plan import Message
from coppice.training.torch.core.agree import gathered
from coppice.training.torch.core.attached import ModuleAttachments
from coppice.training.torch.core.streams import used_here

_NEAR = 1e-3  # of the greatest element: what two orders of a sum may differ by, and no other gradient does

# torch 2.13 has new names and warns of the old ones.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class LinearFactors:
    """Factors of the linear layers of a model, captured in its backward pass.

    Args:
        model: The model.
        names: Names of its trained tensors.
        trained: The trained tensors.
        ranks: Number of ranks.
    """

    def __init__(
        self, model: nn.Module, names: Sequence[str], trained: Sequence[torch.Tensor], ranks: int
    ) -> None:
        self._names, self._trained, self._ranks = names, trained, ranks
        self._pairs: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._rows: dict[int, int] = {}
        self._whole: set[int] = set()
        self._samples = 0
        self._own: dict[int, torch.Tensor] = {}
        self._gathered: dict[int, torch.Tensor] = {}
        self._tensors: Sequence[int] = ()
        self.places: frozenset[int] = frozenset()
        """Tensors whose gradients are sent as factors."""
        places = {id(tensor): place for place, tensor in enumerate(trained)}
        self._hooks: dict[int, RemovableHandle] = {}
        self._attached = ModuleAttachments()
        for module in model.modules():
            place = places.get(id(module.weight)) if type(module) is nn.Linear else None
            if place is not None and place not in self._hooks:
                self._hooks[place] = module.register_forward_hook(self._watcher(place))
                self._attached.add(module, self._hooks[place])

    def _watcher(self, place: int) -> Callable[[nn.Module, Any, Any], None]:
        """Hook that keeps a layer's input until its output gradient is available."""

        def watch(_: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            if not inputs or not output.requires_grad:
                return
            given = inputs[0].detach()

            def keep(gradient: torch.Tensor) -> None:
                factors = (
                    gradient.detach().reshape(-1, gradient.shape[-1]),
                    given.reshape(-1, given.shape[-1]),
                )
                self._pairs.setdefault(place, []).append(factors)

            output.register_hook(keep)  # type: ignore[no-untyped-call]

        return watch

    def record(self, place: int, gradient: torch.Tensor | None) -> None:
        """Record whether a gradient was the product of one pair of factors."""
        pairs = self._pairs.pop(place, [])
        if place not in self._hooks:
            return
        if gradient is None or len(pairs) != 1 or any(factor.dtype != gradient.dtype for factor in pairs[0]):
            self._whole.add(place)
            return
        made, given = pairs[0]
        apart = (made.T @ given - gradient).abs().max()
        if not bool(apart <= _NEAR * gradient.abs().max()):
            self._whole.add(place)
        self._rows[place] = max(len(made), self._rows.get(place, 0))

    def agreed_rows(self, group: dist.ProcessGroup) -> dict[int, int]:
        """Rows of each layer that may use factors, where they are equal on all ranks."""
        own = {place: rows for place, rows in self._rows.items() if place not in self._whole}
        everyone = gathered(own, group)
        return {
            place: rows for place, rows in own.items() if all(other.get(place) == rows for other in everyone)
        }

    def adopt(self, messages: Iterable[Message], tensors: Sequence[int], samples: int) -> None:
        """Use a plan made from the recording; other layers are no longer captured."""
        self._tensors, self._samples = tensors, samples
        self.places = frozenset(
            tensors[layer] for each in messages if each.collective == "factors" for layer in each.gradients
        )
        for place in set(self._hooks).difference(self.places):
            self._hooks.pop(place).remove()
        self._pairs.clear()

    def take(self, place: int, *, made: bool = True) -> None:
        """Called when the gradient of a layer and its factors are available.

        Args:
            made: Whether this rank has a gradient; else its factors are 0.
        """
        pairs = self._pairs.pop(place, [])
        if not made:
            weights = self._trained[place]
            self._own[place] = weights.new_zeros(self._samples, sum(weights.shape))
            return
        rows = sum(len(each) for each, _ in pairs)
        if len(pairs) != 1 or rows > self._samples:
            raise InputError(
                f"expected one forward pass of {self._names[place]} with {self._samples} rows at most, as was "
                f"recorded, found {len(pairs)} with {rows}: begin with the largest batch, or take wfbp, which sends "
                "whole gradients."
            )
        behind, given = pairs[0]
        own = behind.new_zeros(
            self._samples, behind.shape[1] + given.shape[1]
        )  # fewer rows: the others add nothing
        torch.cat((behind, given), dim=1, out=own[:rows])
        self._own[place] = own

    @staticmethod
    def refuse_accumulation() -> None:
        """Refuse gradient accumulation, whose factors exceed the planned size."""
        raise InputError(
            "expected no optimizer.no_sync() where gradients are sent as factors, found it after iterations that were "
            "recorded without: take wfbp, which sends whole gradients."
        )

    def start(self, message: Message, group: dist.ProcessGroup) -> list[Any]:
        """All-gather the factors of a message."""
        works = []
        for layer in message.gradients:
            place = self._tensors[layer]
            own = self._own.pop(place)
            used_here([own])
            gathered = own.new_empty(self._ranks * len(own), own.shape[1])
            self._gathered[place] = gathered
            works.append(_all_gather_single(gathered, own, group=group, async_op=True))
        return works

    def finish(self, view: Callable[[int], torch.Tensor]) -> None:
        """Reconstruct averaged gradients after all messages."""
        used_here(self._gathered.values())
        for place, rows in self._gathered.items():
            wide = self._trained[place].shape[0]
            torch.mm(rows[:, :wide].T, rows[:, wide:], out=view(place)).mul_(1 / self._ranks)
        self._gathered = {}

    def close(self) -> None:
        """Stop capturing."""
        self._attached.remove()
