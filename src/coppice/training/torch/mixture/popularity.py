"""Which experts tokens take from layer to layer, recorded, and what they will take in the next one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType

import torch
from torch import nn

from coppice.errors import InputError
from coppice.iteration.policies.whole.lina_inference import PathPopularity
from coppice.training.torch.attached import ModuleAttachments
from coppice.training.torch.mixture.layer import MixtureOfExperts, mixture_layers

_UNIT = 2**20
"""Estimates are told in parts of a token, whole numbers, so that their sum is the same on all ranks."""


class ExpertPaths:
    """The experts that tokens took, layer by layer, learned from batches that run within it.

    Each rank learns from its own tokens. Layers count in the order in which they run, and a token is at the same place
    in all of them. Of two experts of a token the first one is on its path, and both may follow a path.

    Args:
        model: A model with layers of experts.
        length: Layers of a path, at most.

    Raises:
        InputError: If the model has no such layers.

    Source: Lina (ATC 2023), section 5.

    Examples:
        >>> model = nn.Sequential(*(MixtureOfExperts(4, lambda: nn.Linear(4, 4), experts=2) for _ in range(2)))
        >>> paths = ExpertPaths(model)
        >>> with paths, torch.no_grad():
        ...     out = model(torch.randn(8, 4))
        >>> sum(paths.estimated([[0], [1]], 1)) == 2 * 2**20
        True
    """

    def __init__(self, model: nn.Module, *, length: int = 3) -> None:
        self._model = model
        self._layers = mixture_layers(model)
        if not self._layers:
            raise InputError(
                "expected a model with layers of experts (MixtureOfExperts), found none: there is nothing to learn."
            )
        self.length = length
        self.order: list[MixtureOfExperts] = []
        self._first: dict[int, int] = {}
        # An expert of a layer has a number of its own, another one as a second choice, and each choice a table.
        self._experts = sum(layer.layout.experts for layer in self._layers.values())
        self._tables = [
            PathPopularity(experts=2 * self._experts, length=length)
            for _ in range(max(layer.top for layer in self._layers.values()))
        ]
        self._taken: list[torch.Tensor] = []
        self._ran: list[MixtureOfExperts] = []
        self._attached = ModuleAttachments()

    def __enter__(self) -> ExpertPaths:
        """Learn from now on."""
        for layer in self._layers.values():
            self._attached.behind(layer, self._layer_ends)
        self._attached.before(self._model, self._model_starts)
        self._attached.behind(self._model, self._model_ends)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Learn no longer."""
        del kind, error, trace
        self._attached.remove()

    def place(self, layer: MixtureOfExperts) -> int:
        """Number of a layer among those that ran.

        Raises:
            InputError: If it did not.
        """
        for number, each in enumerate(self.order):
            if each is layer:
                return number
        raise InputError(
            f"expected layers of which paths were recorded, found another ({layer.label}): record a batch first."
        )

    def estimated(self, paths: Sequence[Sequence[int]], layer: int) -> list[int]:
        """Tokens that each expert of a layer will get, in parts of 2^-20.

        Args:
            paths: For each token the experts that it took in the layers before it, all of them or the last ones.
            layer: Number of the layer.
        """
        known: dict[tuple[int, ...], int] = {}
        for path in paths:
            known[tuple(path)] = known.get(tuple(path), 0) + 1
        first, own = self._first[layer], self.order[layer].layout.experts
        found = [0] * own
        for path, count in known.items():
            starts = [self._first[layer - len(path) + at] for at in range(len(path))]
            taken = [start + each for start, each in zip(starts, path, strict=True)]
            for choice, table in enumerate(self._tables[: self.order[layer].top]):
                begin = first + (self._experts if choice else 0)
                part = table.estimate([taken])[begin : begin + own]
                total = sum(part)
                for expert, share in enumerate(part):
                    found[expert] += round(count * _UNIT * share / total) if total else count * _UNIT // own
        return found

    def _model_starts(self, *_: object) -> None:
        self._taken, self._ran = [], []

    def _layer_ends(self, layer: nn.Module, *_: object) -> None:
        assert isinstance(layer, MixtureOfExperts)
        assert layer.taken is not None
        self._taken.append(layer.taken.cpu())
        self._ran.append(layer)

    def _model_ends(self, *_: object) -> None:
        if not self.order:
            self.order = self._ran
            sizes = [layer.layout.experts for layer in self.order]
            self._first = dict(enumerate(itertools.accumulate([0, *sizes[:-1]])))
        alike = len({len(each) for each in self._taken}) == 1
        if not alike or [id(each) for each in self._ran] != [id(each) for each in self.order]:
            raise InputError(
                f"expected layers that all run once, in one order and on the same tokens, found "
                f"{[len(each) for each in self._taken]} tokens in {len(self._ran)} layers."
            )
        firsts = torch.tensor([self._first[at] for at in range(len(self.order))])
        paths = (torch.stack([each[:, 0] for each in self._taken], dim=1) + firsts).tolist()
        for path in paths:
            self._tables[0].observe(path)
        for at, taken in enumerate(self._taken):
            for table, second in zip(self._tables[1:], taken.t()[1:].tolist(), strict=False):
                for path, expert in zip(paths, second, strict=True):
                    number = self._experts + self._first[at] + expert
                    table.observe([*path[max(0, at - self.length) : at], number])
