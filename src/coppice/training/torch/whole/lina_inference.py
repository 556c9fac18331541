"""Lina's inference: replicate popular experts before their layer runs, predicted from previous layers.

As soon as the gate of a layer is known, ranks estimate how popular each expert of the next layer will be, place its
replicas (the functions of the simulated policy decide) and start to send their weights, while this layer exchanges
tokens. When the true gate is known and its most popular experts are other ones, experts are placed again. The tokens
of an expert, of all ranks, are split evenly over its replicas.

Which experts tokens take from layer to layer is recorded while the model trains.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.iteration.policies.whole.lina_inference import (
    ExpertPlacement,
    PathPopularity,
    place_experts,
    second_phase,
)
from coppice.training.torch.core.agree import lost_rank
from coppice.training.torch.core.attached import ModuleAttachments
from coppice.training.torch.whole.mixture.exchanges import TASK, PipelinedExperts
from coppice.training.torch.whole.mixture.layer import (
    ExpertRoutes,
    MixtureOfExperts,
    mixture_layers,
    routed_rows,
)

_UNIT = 2**20
"""Estimates are told in parts of a token, whole numbers, so that their sum is the same on all ranks."""


class ExpertPaths:
    """Statistics of expert choices by layer, learned from batches within its context.

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
        """Index of a layer in execution order.

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
        """Predicted token share of each expert of a layer, in parts of 2^-20.

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


@dataclass(frozen=True)
class PlacedExperts:
    """An expert placement in the form that tokens and weights need."""

    placement: ExpertPlacement  # What was decided
    experts: tuple[tuple[int, ...], ...] = field(init=False)  # For each device its experts, each once

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "experts", tuple(tuple(dict.fromkeys(own)) for own in self.placement.devices)
        )

    @property
    def places(self) -> int:
        """Largest number of experts on a device."""
        return max(1, *(len(own) for own in self.experts))

    def assigned(
        self, chosen: torch.Tensor, before: torch.Tensor, totals: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Device and local index of each choice of a rank.

        Of n tokens of an expert with r replicas, the i-th of all ranks goes to replica i r / n.

        Args:
            before: Tokens of each expert on the ranks before this one.
            totals: Tokens of each expert on all ranks.
        """
        replicas = self.placement.replicas
        width = max(replicas)
        table = torch.zeros(2, len(replicas), width, dtype=torch.long)
        filled = [0] * len(replicas)
        for device, own in enumerate(self.placement.devices):
            for expert in own:
                place = self.experts[device].index(expert)
                table[:, expert, filled[expert]] = torch.tensor([device, place])
                filled[expert] += 1
        table = table.to(chosen.device)
        order = torch.argsort(chosen, stable=True)
        counts = torch.bincount(chosen, minlength=len(replicas))
        first = torch.cumsum(counts, 0) - counts
        rank = torch.empty_like(chosen)
        rank[order] = torch.arange(len(chosen), device=chosen.device) - first[chosen[order]]
        number = before[chosen] + rank
        own_replicas = torch.tensor(replicas, device=chosen.device)[chosen]
        replica = number * own_replicas // totals[chosen].clamp(min=1)
        return table[0, chosen, replica], table[1, chosen, replica]


class ReplicatedExperts:
    """Run a model's experts in inference with popular ones replicated; needs recorded batches.

    While it is there, forward passes without gradients go by it, on all ranks of the layers' group; those with
    gradients run as before. Weights of replicas are taken when they are placed: call :meth:`refresh` when the model
    has trained on.

    Args:
        paths: What was recorded of the model.
        most: How many of the most popular experts must be as estimated; else experts are placed again.
        group: The ranks, those of the layers; None: all.

    Examples:
        >>> model = MixtureOfExperts(4, lambda: nn.Linear(4, 4), experts=2)
        >>> with ExpertPaths(model) as paths, torch.no_grad():
        ...     plain = model(torch.ones(3, 4))
        >>> inference = ReplicatedExperts(paths)
        >>> with torch.no_grad():
        ...     bool(torch.allclose(model(torch.ones(3, 4)), plain))
        True
        >>> inference.close()
    """

    def __init__(self, paths: ExpertPaths, *, most: int = 2, group: Any = None) -> None:
        if most < 1 or not paths.order:
            raise InputError(
                f"expected recorded paths and an expert or more to compare, found {len(paths.order)} layers and "
                f"`most={most}`: run a batch within ExpertPaths first."
            )
        self._paths, self._most = paths, most
        self._joined = dist.is_available() and dist.is_initialized()
        self._group = group if group is not None or not self._joined else dist.group.WORLD
        self._ranks = dist.get_process_group_ranks(self._group) if self._joined else [0]
        self._weights_group = (
            dist.new_group(
                self._ranks,
                backend=dist.get_backend(self._group),
                use_local_synchronization=len(self._ranks) < dist.get_world_size(),
            )
            if len(self._ranks) > 1
            else None
        )
        self.placed: dict[str, PlacedExperts] = {}  # What the last forward pass had, by the name of the layer
        self.replanned: list[str] = []  # Names of the layers that it placed again
        self.loads: dict[str, list[int]] = {}  # Rows that each rank had to do, by the name of the layer
        self._taken: list[torch.Tensor] = []
        self.refresh()
        for layer in paths.order:
            layer.director = self

    def refresh(self) -> None:
        """Drop the weights of replicas."""
        self._held: dict[int, dict[int, nn.Module]] = {}
        self._holders: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._coming: dict[int, _Transfer] = {}
        self._next: dict[int, PlacedExperts] = {}

    def close(self) -> None:
        """Restore plain execution."""
        for layer in self._paths.order:
            layer.director = None

    @torch.no_grad()
    def mixed(self, layer: MixtureOfExperts, tokens: torch.Tensor, routes: ExpertRoutes) -> torch.Tensor:
        """See :meth:`ExpertDirector.mixed`."""
        number = self._paths.place(layer)
        if not number:
            self._taken, self.replanned = [], []
        self._taken.append(routes.experts[:, 0])
        counts = self._counts(layer, routes)
        totals = counts.sum(dim=0)
        estimated = self._next.pop(number, None)
        true = totals.tolist()
        if estimated is None:
            placed = PlacedExperts(place_experts(true, len(self._ranks)))
        else:
            placement = second_phase(estimated.placement, true, most=self._most)
            placed = estimated if placement is estimated.placement else PlacedExperts(placement)
            if placed is not estimated:
                self.replanned.append(layer.label)
        self._finish(number, layer)
        if placed is not estimated:
            self._fetch(number, layer, placed)
            self._finish(number, layer)
        if number + 1 < len(self._paths.order):
            self._estimate(number + 1, layer)
        self.placed[layer.label] = placed
        before = counts[: layer.rank].sum(dim=0)
        return self._run(number, layer, tokens, routes, placed, (before, totals))

    def _run(
        self,
        number: int,
        layer: MixtureOfExperts,
        tokens: torch.Tensor,
        routes: ExpertRoutes,
        placed: PlacedExperts,
        popularity: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Exchange tokens, and run this rank's experts."""
        flat, kept = routes.experts.reshape(-1), routes.kept.reshape(-1)
        devices, places = torch.zeros_like(flat), torch.zeros_like(flat)
        devices[kept], places[kept] = placed.assigned(flat[kept], *popularity)
        rows = routed_rows(
            devices.view_as(routes.experts),
            places.view_as(routes.experts),
            routes.kept,
            pieces=layer.pieces,
            shape=(len(self._ranks), placed.places),
        )
        group = self._group if len(self._ranks) > 1 else None
        received = layer.received_counts(rows.counts, group)
        load = torch.tensor([int(received.sum())], device=tokens.device)
        self.loads[layer.label] = self._gathered(load).flatten().tolist()
        held = self._held.get(number, {})
        own = [
            layer.experts[str(expert)] if str(expert) in layer.experts else held[expert]
            for expert in placed.experts[layer.rank]
        ]

        def run(place: int, given: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
            del parameters
            found: torch.Tensor = own[place](given)
            return found

        experts = PipelinedExperts(
            exchanges=layer.exchanges,
            group=group,
            sent=rows.counts.cpu(),
            received=received,
            run=run,
            names=[[] for _ in range(placed.places)],
            scale=1.0,
            label=layer.label,
        )
        return layer.combined(tokens, routes, rows, lambda given: experts(given, []))

    def _counts(self, layer: MixtureOfExperts, routes: ExpertRoutes) -> torch.Tensor:
        """Tokens of each rank for each expert."""
        own = torch.bincount(routes.experts[routes.kept], minlength=layer.layout.experts)
        return self._gathered(own)

    def _gathered(self, own: torch.Tensor) -> torch.Tensor:
        if len(self._ranks) == 1:
            return own[None]
        found = [torch.empty_like(own) for _ in self._ranks]
        try:
            dist.all_gather(found, own, group=self._group)
        except RuntimeError as error:
            raise lost_rank(error, TASK) from error
        return torch.stack(found)

    def _estimate(self, number: int, layer: MixtureOfExperts) -> None:
        """First phase for the next layer: place its experts, and start to send their weights."""
        paths = torch.stack(self._taken[-self._paths.length :], dim=1).tolist()
        own = torch.tensor(self._paths.estimated(paths, number), device=self._taken[0].device)
        popularity = self._gathered(own).sum(dim=0).tolist()
        self._next[number] = PlacedExperts(place_experts(popularity, len(self._ranks)))
        del layer
        self._fetch(number, self._paths.order[number], self._next[number])

    def _fetch(self, number: int, layer: MixtureOfExperts, placed: PlacedExperts) -> None:
        """Start to send weights to ranks with new experts."""
        before = self._holders.get(number, tuple(() for _ in self._ranks))
        self._holders[number] = placed.experts
        held = self._held.setdefault(number, {})
        wanted = set(placed.experts[layer.rank])
        for expert in [each for each in held if each not in wanted]:
            del held[expert]
        operations: list[dist.P2POp] = []
        kept: list[torch.Tensor] = []
        coming: dict[int, nn.Module] = {}
        template = next(iter(layer.experts.values()))
        for rank, experts in enumerate(placed.experts):
            for expert in experts:
                if expert in layer.layout.own(rank) or expert in before[rank]:
                    continue
                home = layer.layout.home(expert, rank)
                if home == layer.rank:
                    for tensor in _tensors(layer.experts[str(expert)]):
                        kept.append(tensor.detach().contiguous())
                        operations.append(
                            dist.P2POp(dist.isend, kept[-1], self._ranks[rank], self._weights_group)
                        )
                elif rank == layer.rank:
                    coming[expert] = copy.deepcopy(template).requires_grad_(requires_grad=False)
                    operations += [
                        dist.P2POp(dist.irecv, tensor.data, self._ranks[home], self._weights_group)
                        for tensor in _tensors(coming[expert])
                    ]
        works = dist.batch_isend_irecv(operations) if operations else []
        self._coming[number] = _Transfer(works, coming, kept)

    def _finish(self, number: int, layer: MixtureOfExperts) -> None:
        """Wait for a layer's weights."""
        transfer = self._coming.pop(number, None)
        if transfer is None:
            return
        for work in transfer.works:
            try:
                work.wait()
            except RuntimeError as error:
                raise lost_rank(error, TASK) from error
        self._held.setdefault(number, {}).update(transfer.coming)
        for module in transfer.coming.values():
            module.train(layer.training)


@dataclass(frozen=True)
class _Transfer:
    """Weights in transfer."""

    works: Sequence[Any]  # What is waited for
    coming: dict[int, nn.Module]  # Experts that this rank gets
    kept: list[torch.Tensor]  # What it sends


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
