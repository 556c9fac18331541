"""Separately reduced gradients of a stage: tied weights, and sparse embedding rows.

What stages have of them, and how many stages there are, all ranks agree upon first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.training.torch.core.agree import gathered
from coppice.training.torch.pipelined.channels import PipelineLayout
from coppice.training.torch.pipelined.stage import TrainedStage

TiedEnds = tuple[tuple[int, str], ...]
"""Stages, and names of a parameter in them, that are one weight."""


def tied_ends(stages: Mapping[int, nn.Module], tied: Sequence[Sequence[tuple[int, str]]]) -> list[TiedEnds]:
    """Weights shared by stages: those named, and parameters that are one object in several modules.

    Such an object is taken apart: each stage gets a parameter of its own, as it would on another machine.
    """
    found = [tuple((int(stage), str(name)) for stage, name in ends) for ends in tied]
    for ends in found:
        for stage, name in ends:
            known = stages.get(stage)
            if known is not None and name not in dict(known.named_parameters()):
                raise InputError(
                    f"expected tied parameters that stages have, found no {name!r} in stage {stage}."
                )
    where: dict[int, list[tuple[int, str]]] = {}
    shared: dict[int, nn.Parameter] = {}
    for stage, module in sorted(stages.items()):
        for name, parameter in module.named_parameters():
            where.setdefault(id(parameter), []).append((stage, name))
            shared[id(parameter)] = parameter
    for key, ends_of in where.items():
        if len(ends_of) > 1:
            if tuple(ends_of) not in found and shared[key].requires_grad:
                found.append(tuple(ends_of))
            for stage, _ in ends_of[1:]:
                _own(stages[stage], shared[key])
    return found


def _own(module: nn.Module, shared: nn.Parameter) -> None:
    """Give a module its own parameter in place of a shared one."""
    own = nn.Parameter(shared.detach().clone(), requires_grad=shared.requires_grad)
    for part in module.modules():
        for name, parameter in part._parameters.items():  # noqa: SLF001 (a module shares under several names)
            if parameter is shared:
                part._parameters[name] = own  # noqa: SLF001


def sparse_names(module: nn.Module) -> list[str]:
    """Names of embedding weights with sparse gradients."""
    return [
        f"{prefix}.weight" if prefix else "weight"
        for prefix, part in module.named_modules()
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse and part.weight.requires_grad
    ]


class TiedWeights:
    """A weight shared by stages, whose gradients add up.

    Args:
        ends: Where it is.
        devices: Devices of the stages.
        layout: The ranks.
        stages: Stages of this device.
    """

    def __init__(
        self,
        ends: TiedEnds,
        devices: Iterable[int],
        layout: PipelineLayout,
        stages: Mapping[int, TrainedStage],
    ) -> None:
        self.ends, self._layout = ends, layout
        self.own = [(stages[stage], name) for stage, name in ends if stage in stages]
        self.first = ends[0][0] in stages
        owners = sorted(set(devices))
        self._group = layout.of_devices(owners)
        if not self.own:
            return
        source = layout.rows[0][owners[0]]
        for stage, name in self.own:
            tensor = stage.parameters[name].detach()
            dist.broadcast(tensor, src=source, group=self._group)
            stage.refresh()
        tensor = self.own[0][0].parameters[self.own[0][1]]
        versions = range(len(self.own[0][0].gradients))
        self._flats = [torch.zeros_like(tensor).flatten() for _ in versions]

    def collect(self, iteration: int) -> None:
        """Add the gradients of this device."""
        flat = self._flat(iteration)
        flat.zero_()
        for stage, name in self.own:
            gradient = stage.leaf(name, iteration).grad
            if gradient is None or gradient.layout is not torch.strided:
                raise InputError(
                    f"expected a dense gradient of the tied parameter {name} of stage {stage.number}, found none."
                )
            flat.add_(gradient.flatten(), alpha=1 / self._layout.replicas)

    def start(self, iteration: int, low: Fraction, high: Fraction) -> list[Any]:
        """All-reduce a part over all owners."""
        flat = self._flat(iteration)
        part = flat[int(low * flat.numel()) : int(high * flat.numel())]
        return [dist.all_reduce(part, group=self._group, async_op=True)] if part.numel() else []

    def place(self, stage: TrainedStage, iteration: int) -> None:
        """Store the sum where a stage's optimizer reads it."""
        for each, name in self.own:
            if each is stage:
                leaf = stage.leaf(name, iteration)
                leaf.grad = self._flat(iteration).view(leaf.shape).clone()

    def take(self, stage: TrainedStage, iteration: int) -> None:
        """Take the sum from where :meth:`place` stored it."""
        for each, name in self.own:
            if each is stage and (gradient := stage.leaf(name, iteration).grad) is not None:
                self._flat(iteration).copy_(gradient.flatten())

    def gradient(self, iteration: int) -> torch.Tensor:
        """The sum."""
        return self._flat(iteration)

    def _flat(self, iteration: int) -> torch.Tensor:
        return self._flats[iteration % len(self._flats)]


class SparseRows:
    """Sparse embedding gradients: touched rows, all-gathered with their indices.

    Args:
        stage: Its stage.
        name: Its weight.
        group: The replicas.
        replicas: Their number.
    """

    def __init__(self, stage: TrainedStage, name: str, group: dist.ProcessGroup, replicas: int) -> None:
        self._stage, self._name, self._group, self._replicas = stage, name, group, replicas
        # Share of rows that this rank touched, by iteration, as long as it is recorded
        self.touched: list[float] = []

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        tensor = self._stage.parameters[self._name]
        return tensor.numel() * tensor.element_size()

    def start(self, iteration: int) -> list[Any]:
        """Exchange row counts, then rows."""
        leaf = self._stage.leaf(self._name, iteration)
        gradient = leaf.grad
        if gradient is None or gradient.layout is torch.strided:
            raise InputError(
                f"expected a sparse gradient of {self._name} of stage {self._stage.number}, found none."
            )
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        self.touched.append(len(rows) / len(leaf))
        count = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.zeros_like(count) for _ in range(self._replicas)]
        dist.all_gather(counts, count, group=self._group)
        most = max(int(each) for each in counts)
        padded_rows = rows.new_zeros(most)
        padded_values = values.new_zeros((most, *values.shape[1:]))
        padded_rows[: len(rows)], padded_values[: len(rows)] = rows, values
        all_rows = [torch.empty_like(padded_rows) for _ in counts]
        all_values = [torch.empty_like(padded_values) for _ in counts]
        dist.all_gather(all_rows, padded_rows, group=self._group)
        dist.all_gather(all_values, padded_values, group=self._group)
        lengths = [int(each) for each in counts]
        numbers = torch.cat([each[:length] for each, length in zip(all_rows, lengths, strict=True)])
        summed = torch.cat([each[:length] for each, length in zip(all_values, lengths, strict=True)])
        leaf.grad = torch.sparse_coo_tensor(
            numbers[None], summed / self._replicas, leaf.shape, check_invariants=False
        ).coalesce()
        return []


@dataclass(frozen=True)
class StageModules:
    """Modules of the stages on this rank, and facts about all stages."""

    modules: Mapping[int, nn.Module]  # Those that this process has
    count: int  # Number of all
    tied: tuple[TiedEnds, ...]  # Weights that several stages have
    sparse: tuple[str, ...]  # Names of weights of the first stage whose rows go by themselves
    settings: Mapping[str, Any]  # What this says to the policy

    @property
    def apart(self) -> bool:
        """Whether the embedding is reduced separately."""
        return bool(self.settings)

    def module(self, stage: int) -> nn.Module:
        """Module of a stage."""
        if stage not in self.modules:
            raise InputError(
                f"expected the module of stage {stage} on its device, found those of {sorted(self.modules)}."
            )
        return self.modules[stage]

    def apart_of(self, stage: int) -> list[str]:
        """Names of a stage's parameters with separately reduced gradients."""
        names = [name for ends in self.tied for number, name in ends if number == stage]
        return names + list(self.sparse if stage == 0 else ())


def agreed_stages(
    stages: Sequence[nn.Module] | Mapping[int, nn.Module],  # All, or those of this rank by number
    # Weights that several stages have, beside those that are one object
    tied: Sequence[Sequence[tuple[int, str]]],
    layout: PipelineLayout,
    *,
    apart: bool,  # The policy has a class of traffic for the embedding
) -> StageModules:
    """Stages as agreed by all ranks."""
    modules = dict(stages) if isinstance(stages, Mapping) else dict(enumerate(stages))
    own = (
        sorted(modules),
        tied_ends(modules, tied),
        sparse_names(modules[0]) if 0 in modules and apart else [],
    )
    said = gathered(own, layout.everyone)
    known = sorted({stage for keys, _, _ in said for stage in keys})
    count = len(known)
    if known != list(range(count)) or not count:
        raise InputError(f"expected stages from 0 on, each on a rank, found {known}.")
    ends: list[TiedEnds] = []
    for _, each, _ in said:
        ends += [one for one in map(tuple, each) if one not in ends]
    sparse: list[str] = next((names for keys, _, names in said if 0 in keys), [])
    settings: dict[str, Any] = {}
    if apart and ends:
        between = [sorted(stage for stage, _ in each) for each in ends]
        if between != [[0, count - 1]] or count == 1:
            raise InputError(
                f"expected one tied weight, of the first and the last stage, in an asynchronous pipeline, found stages "
                f"{between}."
            )
        settings["tied"] = True
    elif sparse:
        settings["touched"] = None
    if settings.get("tied") and sparse:
        raise InputError(
            f"expected a tied embedding with dense gradients, found sparse ones of {sparse[0]}: take sparse=False."
        )
    return StageModules(modules, count, tuple(ends), tuple(sparse), settings)
