"""``schedule(policy="lina")``: options of the policy, and those of carrying it out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from coppice.errors import InputError
from coppice.iteration.policies.whole.lina import Lina
from coppice.training.torch.mixture.exchanges import all_to_all
from coppice.training.torch.mixture.packing import Packing
from coppice.training.torch.mixture.schedule import MixtureSchedule
from coppice.training.torch.mixture.skewed import PlannedExchange
from coppice.training.torch.overlap.pending import ScheduledOptimizer


def schedule_mixture(
    model: nn.Module,  # A model with layers of experts
    optimizer: torch.optim.Optimizer,
    *,
    group: Any,  # The ranks; None: all
    # Bytes per second and seconds per message of an all-reduce; None: measured now
    network: tuple[float, float] | None,
    recorded: int,
    timeout_s: float,
    # Steps after which it is looked whether experts are to be packed; None: never
    pack_every: int | None = None,
    # What the experts of a rank may take in a layer, gradients and optimizer included; None: anything
    memory_bytes: float | None = None,
    # The network of the ranks, for whose links exchanges are planned by what goes from each rank to each;
    # None: they go directly
    topology: Any = None,
    **settings: Any,
) -> ScheduledOptimizer:
    """Train a model with experts as Lina does.

    Args:
        settings: Options of the policy: ``micro_bytes``, ``token_pieces``.
    """
    if pack_every is not None and pack_every < 1:
        raise InputError(
            f"expected to look at experts every step or more steps, found `pack_every={pack_every}`."
        )
    if topology is not None and pack_every is not None:
        raise InputError(
            "expected exchanges that are planned for all ranks or packed experts, with which fewer ranks exchange, "
            "found `topology` and `pack_every`: leave one out."
        )
    made = MixtureSchedule(
        model,
        optimizer,
        Lina.of(**settings),
        group,
        network=network,
        recorded=recorded,
        timeout_s=timeout_s,
        packing=None if pack_every is None else Packing(pack_every, memory_bytes),
        exchange=all_to_all if topology is None else PlannedExchange(topology),
    )
    return made.optimizer
