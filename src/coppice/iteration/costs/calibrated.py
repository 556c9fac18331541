"""Closed-form collective costs: rings at topology rates with constants fitted to measured iterations."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.costs.group import COLLECTIVES, CollectiveCost, CollectiveCosts, RankGroup
from coppice.iteration.machine import ROUNDS, Cluster


@dataclass(frozen=True)
class CalibratedCosts:
    """Collective costs by the cluster's ``ring_seconds``, ``exchange_seconds`` and ``send_seconds``.

    Examples:
        >>> from coppice.iteration.machine import cluster_of
        >>> from coppice.topology.presets import preset
        >>> costs = CalibratedCosts(cluster_of(preset("dgx-a100", boxes=4)))
        >>> found = costs.cost("all_reduce", 2**30, RankGroup(8, 1))
        >>> found.link, round(1e3 * found.seconds, 2)
        ('NVLink', 8.41)
    """

    cluster: Cluster  # The GPUs, their network, and the constants

    def cost(
        self, collective: str, size_bytes: float, group: RankGroup, *, gradients: bool = False
    ) -> CollectiveCost:
        """See :class:`coppice.iteration.costs.group.CollectiveCosts`."""
        if collective not in COLLECTIVES:
            raise InputError(f"expected one of {', '.join(COLLECTIVES)}, found {collective!r}.")
        if group.ranks == 1:
            return CollectiveCost(0.0)
        cluster = self.cluster.calibrated
        if collective == "send":
            seconds = cluster.send_seconds(size_bytes, group.stride, group.ranks)
        elif collective == "all_to_all":
            seconds = cluster.exchange_seconds(size_bytes, group.ranks, group.stride)
        else:
            rounds, share = ROUNDS[collective], cluster.gradient_share if gradients else 0.0
            seconds = cluster.ring_seconds(size_bytes, group.ranks, group.stride, rounds=rounds, share=share)
        loads = cluster.link_loads(collective, size_bytes, group, seconds)
        return CollectiveCost(seconds, max(loads, key=lambda link: loads[link], default=""), loads)


def costs_of(cluster: Cluster) -> CollectiveCosts:
    """Collective costs of a cluster: those it names, or calibrated rings."""
    return CalibratedCosts(cluster) if cluster.costs is None else cluster.costs
