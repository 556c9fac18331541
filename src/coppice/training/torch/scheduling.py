"""Entry of ``schedule(model, optimizer, policy=...)``: train under an overlap policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from coppice.arguments import shown
from coppice.errors import InputError
from coppice.iteration.policies.whole.centauri import Centauri
from coppice.iteration.policies.whole.lina import Lina
from coppice.iteration.policies.whole.operations import WholePolicy
from coppice.iteration.policies.whole.syndicate import Syndicate
from coppice.training.torch.core.agree import require_equal_arguments
from coppice.training.torch.core.optimizer import ScheduledOptimizer
from coppice.training.torch.core.streams import Streams
from coppice.training.torch.data_parallel.recorder import data_parallel_policy
from coppice.training.torch.data_parallel.schedule import OverlapSchedule
from coppice.training.torch.whole.lina import schedule_mixture
from coppice.training.torch.whole.schedule import schedule_whole_step


def schedule(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: str | WholePolicy = "bytescheduler",
    *,
    group: dist.ProcessGroup | None = None,
    tune: bool | str = False,
    trials: int | None = None,
    window: int = 5,
    network: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    recorded: int = 4,
    timeout_s: float = 600.0,
    unused: bool = False,
    servers: Sequence[str] | None = None,
    **settings: Any,
) -> tuple[nn.Module, ScheduledOptimizer]:
    """Train under an overlap policy: gradients are averaged over the ranks in its order.

    Both are the objects that were given: the model gets hooks and keeps its keys, the optimizer a class whose steps may
    come late. Works on any process group of torch; every rank calls this.

    Args:
        model: The model; its parameters become those of rank 0, as with DistributedDataParallel.
        optimizer: Its optimizer, of ``torch.optim`` (but ``LBFGS``) or another that updates each parameter by itself.
        policy: A policy that decides about gradients: ``ddp``, ``bytescheduler``, ``dear``, ``p3``, ``pace``,
            ``priority``, ``ooo``, ``tictac``, ``gradientflow``, ``poseidon``, ``jia``, ``mg-wfbp``, ``wfbp``,
            ``serial``; or ``lina``, for models with :class:`~coppice.training.torch.MixtureOfExperts`; or a plan
            of the whole step, ``centauri`` or ``syndicate``, for models of
            :class:`~coppice.training.torch.TensorParallelModule` parts.
        group: The ranks; None: all.
        tune: ``"simulation"``: take the settings that simulations of the recorded workload find best.
            ``"training"``: try settings while the training goes on, and keep those with which iterations are shortest.
            True: both, those that are best in simulations first. False: take those that are given.
        trials: Settings that are tried in training, for four windows each; None: as many as suit the policy.
        window: Iterations of a window.
        network: Bytes per second and seconds per message of an all-reduce; of plans of the whole step those of
            ``inside`` and ``between`` boxes by name; None: measured.
        recorded: Iterations that are recorded, 2 or more; the first is not timed.
        timeout_s: Longest wait for another rank.
        unused: Tensors may have no gradient in an iteration, others on each rank (``find_unused_parameters`` of
            DistributedDataParallel). What has none on any rank is not updated. Costs a small sum an iteration.
        servers: For ``p3`` and ``tictac``: addresses (``host:port``) of processes in
            :func:`~coppice.training.torch.serve_parameters`, which hold the parameters when iterations are recorded.
        settings: Options of the policy. Of plans of the whole step also ``data`` (the group of ranks with the same
            share; none needed where ranks share nothing), ``topology`` or ``ranks_of_box``, ``shard=True`` (every
            replica keeps a part of the weights of sections) and ``ahead`` (sections gathered ahead).

    Raises:
        InputError: If the policy, its options, the optimizer or the parameters do not fit.

    Examples:
        >>> import torch, torch.distributed as dist
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model, optimizer = schedule(model, optimizer, policy="ddp", network=(1e9, 1e-5))
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.flush()
        >>> dist.destroy_process_group()
    """
    if recorded < 2:
        raise InputError(
            f"expected 2 recorded iterations or more, found {recorded}: the first one is not timed."
        )
    if isinstance(optimizer, ScheduledOptimizer):
        raise InputError(
            "expected an optimizer that is not scheduled yet, found one that is: call optimizer.close() first."
        )
    if not isinstance(tune, bool) and tune not in ("simulation", "training"):
        raise InputError(f"expected `tune` True, False, 'simulation' or 'training', found {tune!r}.")
    for name, value in (("trials", trials), ("window", window)):
        if value is not None and value < 1:
            raise InputError(f"expected `{name}` of 1 or more, found {value}.")
    told: dict[str, object] = {"tune": tune, "trials": trials, "window": window, "network": network}
    told |= {"recorded": recorded, "unused": unused, "servers": servers}
    times: dict[str, Any] = {"network": network, "recorded": recorded, "timeout_s": timeout_s}
    whole = isinstance(policy, WholePolicy) or policy in (Centauri.name, Syndicate.name, Lina.name)
    if whole and (unused or servers is not None):
        raise InputError(
            f"expected neither `unused` nor `servers` with {policy}, found one: it sums every gradient in its order."
        )
    if isinstance(policy, WholePolicy) or policy in (Centauri.name, Syndicate.name):
        if group is not None or tune not in (False, "simulation"):
            found = "a group of some" if group is not None else f"`tune={tune!r}`"
            raise InputError(
                f"expected a plan of the whole step for all ranks, made by simulation, found {found}: leave it out."
            )
        name = policy if isinstance(policy, str) else policy.name
        require_equal_arguments({"policy": name, **told, **settings}, "schedule", group)
        return model, schedule_whole_step(model, optimizer, policy, **times, **settings)
    if isinstance(network, Mapping):
        raise InputError(
            f"expected `network` of {policy} as bytes per second and seconds per message, found figures by name."
        )
    if network is not None and not _is_network(network):
        raise InputError(
            "expected `network` as bytes per second above 0 and seconds per message of 0 or more, found "
            f"{shown(network)}: leave it out to have it measured."
        )
    if policy == Lina.name:
        require_equal_arguments({"policy": policy, **told, **settings}, "schedule", group)
        return model, schedule_mixture(model, optimizer, group=group, **times, **settings)
    made_policy = data_parallel_policy(policy, settings)
    told |= msgspec.structs.asdict(made_policy.settings)
    require_equal_arguments({"policy": made_policy.name, **told}, "schedule", group)
    made = OverlapSchedule(
        model,
        optimizer,
        made_policy,
        Streams(group),
        tuning=(tune, trials, window),
        network=network,
        recorded=recorded,
        timeout_s=timeout_s,
        unused=unused,
        servers=servers,
    )
    return model, made.optimizer


def _is_network(given: object) -> bool:
    """Whether figures are those of a network."""
    match given:
        case (int() | float() as rate, int() | float() as seconds):
            return 0 < rate < inf and 0 <= seconds < inf
    return False
