"""The stages that ranks have been given, agreed upon by all: how many, which weights are tied, which go by rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.training.torch.pipelines.layout import PipelineLayout
from coppice.training.torch.pipelines.shared import TiedEnds, sparse_names, tied_ends


@dataclass(frozen=True)
class StageModules:
    """Stages."""

    modules: Mapping[int, nn.Module]  # Those that this process has
    count: int  # Number of all
    tied: tuple[TiedEnds, ...]  # Weights that several stages have
    sparse: tuple[str, ...]  # Names of weights of the first stage whose rows go by themselves
    settings: Mapping[str, Any]  # What this says to the policy

    @property
    def apart(self) -> bool:
        """Whether the policy has the embedding go by itself."""
        return bool(self.settings)

    def module(self, stage: int) -> nn.Module:
        """That of a stage."""
        if stage not in self.modules:
            raise InputError(
                f"expected the module of stage {stage} on its device, found those of {sorted(self.modules)}."
            )
        return self.modules[stage]

    def apart_of(self, stage: int) -> list[str]:
        """Names of parameters of a stage whose gradients do not go with the others."""
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
    """The stages, as all ranks know them together."""
    modules = dict(stages) if isinstance(stages, Mapping) else dict(enumerate(stages))
    own = (
        sorted(modules),
        tied_ends(modules, tied),
        sparse_names(modules[0]) if 0 in modules and apart else [],
    )
    said: list[Any] = [None] * dist.get_world_size(layout.everyone)
    dist.all_gather_object(said, own, group=layout.everyone)
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
