"""Collective times for torch's overlap scheduler, from simulation costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from coppice.errors import CheckError
from coppice.iteration.costs.calibrated import costs_of
from coppice.iteration.costs.group import CollectiveCosts, RankGroup
from coppice.iteration.costs.profile import PROFILED, collective_seconds, groups_of
from coppice.iteration.layout import Layout
from coppice.iteration.machine import Cluster, cluster_of
from coppice.topology.model import Topology

RuntimeEstimation = Callable[[Any, int | None], float | None]


def runtime_estimation(
    costs: Topology | Cluster | CollectiveCosts, *, layout: Layout | None = None
) -> RuntimeEstimation:
    """A function for ``custom_runtime_estimation`` of ``torch._inductor.config.aten_distributed_optimizations``.

    It tells milliseconds of collectives over groups of ranks at equal distances, and leaves everything else to torch.
    Take ``compute_estimator="analytical"`` with it, as with ``"benchmark"`` torch keeps on disk what an estimator said
    and asks no other one, and give limits of memory: with both None torch's scheduler fails.

    Args:
        costs: A topology whose name tells the GPUs, a cluster, or what collectives cost.
        layout: How the job lies on the GPUs: its groups that sum gradients have a rate of their own, as measured.

    Raises:
        CheckError: If this torch keeps what is needed elsewhere; it is private there.
        InputError: As :func:`coppice.iteration.machine.cluster_of`.
    """
    try:
        from torch._inductor.fx_passes.profile_guided_estimation import _get_collective_info
    except ImportError:
        raise CheckError(
            f"expected a torch with estimates from profiles (2.13), found {torch.__version__}: take another one."
        ) from None
    if isinstance(costs, Topology):
        costs = cluster_of(costs)
    known = costs_of(costs) if isinstance(costs, Cluster) else costs
    groups = groups_of(layout) if layout is not None else {}

    def estimate(node: Any, override_size: int | None = None) -> float | None:
        collective = _collective_of(str(node.target))
        info = None if collective is None else _get_collective_info(node)
        if collective is None or info is None:
            return None
        _, ranks, elements, kind = info
        steps = {after - before for before, after in itertools.pairwise(sorted(ranks))}
        if len(steps) != 1:
            return 0.0 if len(ranks) == 1 else None
        value = node.meta.get("val")
        width = value.element_size() if isinstance(value, torch.Tensor) else _WIDTHS.get(kind, 4)
        size = elements * width if override_size is None else max(override_size, width)
        group = RankGroup(len(ranks), steps.pop())
        gradients = groups.get(group, False)
        return 1e3 * collective_seconds(known, collective, size, group, gradients=gradients)

    return estimate


_WIDTHS = {"Float": 4, "BFloat16": 2, "Half": 2, "Long": 8, "Double": 8}


def _collective_of(target: str) -> str | None:
    """The collective that a node starts."""
    if "c10d" not in target or "wait" in target:
        return None
    return next((name for name in PROFILED if name in target), None)
