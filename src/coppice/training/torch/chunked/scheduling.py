"""``schedule(policy="centauri")`` and ``"syndicate"``: options of the policy, and those of carrying it out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.iteration.policies.whole.policy import WholePolicy
from coppice.topology.model import Topology
from coppice.training.torch.chunked.grids import MotifGroups
from coppice.training.torch.chunked.orders import whole_policy
from coppice.training.torch.chunked.whole import WholeSchedule
from coppice.training.torch.overlap.pending import ScheduledOptimizer


def schedule_whole_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: str | WholePolicy,  # `syndicate` or `centauri`, or such a policy
    *,
    # Bytes per second and seconds of a step on channels `inside` and `between`; None: measured
    network: Mapping[str, tuple[float, float]] | tuple[float, float] | None,
    recorded: int,  # Steps that are recorded. Three more tell what pieces cost.
    timeout_s: float,
    # The ranks that have the same share; None: all, if sections are not shared
    data: dist.ProcessGroup | None = None,
    # Ranks of a box, which fill boxes one after the other; None: as the topology says, or torchrun by
    # LOCAL_WORLD_SIZE
    ranks_of_box: int | None = None,
    topology: Topology | None = None,  # The network of the ranks, whose hosts are boxes
    # Every replica keeps a part of the weights of sections, gathered before they are used
    shard: bool = False,
    ahead: int = 1,  # Sections whose weights may be gathered before the one that computes is over
    **settings: Any,
) -> ScheduledOptimizer:
    """Train a model of :class:`ParallelSection` parts under a plan of the whole step."""
    if ahead < 0:
        raise InputError(f"expected weights gathered 0 sections ahead or more, found `ahead={ahead}`.")
    if isinstance(network, tuple):
        raise InputError(
            f"expected figures of the network for inside and between boxes, found one pair {network}: give "
            '`network={"inside": (bytes per second, seconds), "between": (...)}`.'
        )
    if ranks_of_box is None:
        given = None if topology is None else _ranks_of_box(topology)
        ranks_of_box = given or int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    made = WholeSchedule(
        model,
        optimizer,
        whole_policy(policy, settings),
        MotifGroups(ranks_of_box=ranks_of_box),
        data=data,
        network=network,
        recorded=recorded,
        timeout_s=timeout_s,
        shard=shard,
        ahead=ahead,
    )
    return made.optimizer


def _ranks_of_box(topology: Topology) -> int:
    """How many ranks every host has."""
    hosts = [int(topology.host[node]) for node in topology.rank_nodes]
    if len(hosts) != dist.get_world_size():
        raise InputError(f"expected a topology of {dist.get_world_size()} ranks, found one of {len(hosts)}.")
    counts = Counter(host if host >= 0 else -1 - rank for rank, host in enumerate(hosts))
    found = next(iter(counts.values()))
    runs = sum(a != b or a < 0 for a, b in zip(hosts, [None, *hosts], strict=False))
    if len(set(counts.values())) > 1 or runs != len(counts):
        raise InputError(
            "expected hosts of as many ranks each, one host after the other, found "
            f"{', '.join(map(str, counts.values()))} of them in another order or number: say `ranks_of_box`."
        )
    return found
