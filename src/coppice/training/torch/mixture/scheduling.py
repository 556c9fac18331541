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

__all__ = ["schedule_mixture"]


def schedule_mixture(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    group: Any,
    network: tuple[float, float] | None,
    recorded: int,
    timeout_s: float,
    pack_every: int | None = None,
    memory_bytes: float | None = None,
    topology: Any = None,
    **settings: Any,
) -> ScheduledOptimizer:
    """Train a model with experts as Lina does.

    Args:
        model: A model with layers of experts.
        optimizer: Its optimizer.
        group: The ranks; None: all.
        network: Bytes per second and seconds per message of an all-reduce; None: measured now.
        recorded: Iterations that are recorded.
        timeout_s: Longest wait for another rank.
        pack_every: Steps after which it is looked whether experts are to be packed; None: never.
        memory_bytes: What the experts of a rank may take in a layer, gradients and optimizer included; None: anything.
        topology: The network of the ranks, for whose links exchanges are planned by what goes from each rank to each;
            None: they go directly.
        settings: Options of the policy: ``micro_bytes``, ``token_pieces``.

    Raises:
        InputError: If an option or the model does not fit.
    """
    if pack_every is not None and pack_every < 1:
        msg = f"expected to look at experts every step or more steps, found `pack_every={pack_every}`."
        raise InputError(msg)
    if topology is not None and pack_every is not None:
        msg = (
            "expected exchanges that are planned for all ranks or packed experts, with which fewer ranks exchange, "
            "found `topology` and `pack_every`: leave one out."
        )
        raise InputError(msg)
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
