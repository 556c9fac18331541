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

__all__ = ["GivenStages", "agreed_stages"]


@dataclass(frozen=True)
class GivenStages:
    """Stages.

    Attributes:
        modules: Those that this process has.
        count: Number of all.
        tied: Weights that several stages have.
        sparse: Names of weights of the first stage whose rows go by themselves.
        settings: What this says to the policy.
    """

    modules: Mapping[int, nn.Module]
    count: int
    tied: tuple[TiedEnds, ...]
    sparse: tuple[str, ...]
    settings: Mapping[str, Any]

    @property
    def apart(self) -> bool:
        """Whether the policy has the embedding go by itself."""
        return bool(self.settings)

    def module(self, stage: int) -> nn.Module:
        """That of a stage.

        Raises:
            InputError: If this process has none.
        """
        if stage not in self.modules:
            msg = (
                f"expected the module of stage {stage} on its device, found those of {sorted(self.modules)}."
            )
            raise InputError(msg)
        return self.modules[stage]

    def apart_of(self, stage: int) -> list[str]:
        """Names of parameters of a stage whose gradients do not go with the others."""
        names = [name for ends in self.tied for number, name in ends if number == stage]
        return names + list(self.sparse if stage == 0 else ())


def agreed_stages(
    stages: Sequence[nn.Module] | Mapping[int, nn.Module],
    tied: Sequence[Sequence[tuple[int, str]]],
    layout: PipelineLayout,
    *,
    apart: bool,
) -> GivenStages:
    """The stages, as all ranks know them together.

    Args:
        stages: All, or those of this rank by number.
        tied: Weights that several stages have, beside those that are one object.
        layout: The ranks.
        apart: The policy has a class of traffic for the embedding.

    Raises:
        InputError: If there are stages without a module, or the policy has no place for a weight.
    """
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
        msg = f"expected stages from 0 on, each on a rank, found {known}."
        raise InputError(msg)
    ends: list[TiedEnds] = []
    for _, each, _ in said:
        ends += [one for one in map(tuple, each) if one not in ends]
    sparse: list[str] = next((names for keys, _, names in said if 0 in keys), [])
    settings: dict[str, Any] = {}
    if apart and ends:
        between = [sorted(stage for stage, _ in each) for each in ends]
        if between != [[0, count - 1]] or count == 1:
            msg = (
                f"expected one tied weight, of the first and the last stage, in an asynchronous pipeline, found stages "
                f"{between}."
            )
            raise InputError(msg)
        settings["tied"] = True
    elif sparse:
        settings["touched"] = None
    if settings.get("tied") and sparse:
        msg = f"expected a tied embedding with dense gradients, found sparse ones of {sparse[0]}: take sparse=False."
        raise InputError(msg)
    return GivenStages(modules, count, tuple(ends), tuple(sparse), settings)
