"""Closed-form collective costs: rings at topology rates with constants fitted to measured iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.costs.group import COLLECTIVES, CollectiveCost, CollectiveCosts, RankGroup, crossing
from coppice.iteration.machine import Cluster

ROUNDS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
"""Times that the ring of a collective goes around."""


@dataclass(frozen=True)
class CalibratedCosts:
    """Collective costs by the cluster's ``ring_seconds``, ``exchange_seconds`` and ``send_seconds``.

    Examples:
        >>> from coppice.iteration.boxes import cluster_of
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
        loads = link_loads(cluster, collective, size_bytes, group, seconds)
        return CollectiveCost(seconds, max(loads, key=lambda link: loads[link], default=""), loads)


def link_loads(
    cluster: Cluster,
    collective: str,
    size_bytes: float,
    group: RankGroup,
    seconds: float,
    *,
    once: float | None = None,
) -> Mapping[str, float]:
    """Share of the time for which links inside boxes and NICs are busy at full rate.

    Args:
        size_bytes: Bytes of the whole buffer of a rank.
        seconds: Time that the collective takes.
        once: Of an all-to-all the share of what leaves a box that does, where nothing goes to a box more than once, and
            fans out there; None: all.
    """
    if group.ranks == 1 or not (size_bytes and seconds and math.isfinite(seconds)):
        return {}
    if cluster.costs is not None:
        return cluster.costs.cost(collective, size_bytes, group).loads
    box, out = cluster.device.box, crossing(group.ranks, group.stride, cluster.device.box)
    inside = min(group.ranks, max(1, box // group.stride))
    if collective == "send":
        near, far = float(group.stride < box), float(out.sends)
    elif collective == "all_to_all":
        fans_out = once is not None and inside < group.ranks
        near = (inside - 1) / (inside if fans_out else group.ranks)
        far = out.exchanged * (1.0 if once is None else once)
    else:
        moved = ROUNDS[collective] * (group.ranks - 1) / group.ranks
        near, far = moved * (inside > 1), moved * out.groups
    busy = {
        "NVLink": near * size_bytes / cluster.device.link_bytes_per_second if near else 0.0,
        "NIC": far * size_bytes / cluster.nic_bytes_per_second if far else 0.0,
    }
    return {name: min(1.0, used / seconds) for name, used in busy.items() if used}


def costs_of(cluster: Cluster) -> CollectiveCosts:
    """Collective costs of a cluster: those it names, or calibrated rings."""
    return CalibratedCosts(cluster) if cluster.costs is None else cluster.costs
