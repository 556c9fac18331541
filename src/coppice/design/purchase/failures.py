"""What failures cost: the bound of an iteration with some cables or hosts gone, over that of the whole network."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from random import Random

import numpy as np

from coppice.design.purchase.offers import Offer
from coppice.design.purchase.performance import bound_us
from coppice.design.purchase.request import TrainingWorkload
from coppice.errors import UnreachableError
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes, set_link_rate

__all__ = ["Slowdown", "slowdown"]


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """What a sample of failures does.

    Attributes:
        mean: Mean of the bound after over the bound before, of the samples that leave all ranks together.
        worst: The largest.
        cut_off: Share of the samples in which some rank cannot be reached any more.
    """

    mean: float
    worst: float
    cut_off: float


def slowdown(offer: Offer, workload: TrainingWorkload) -> Slowdown | None:
    """What the failures of a workload do to a network; None where it names none.

    A cable that fails takes one port's rate from its link, in both directions if it is full-duplex. Ranks of failed
    hosts leave their groups.
    """
    failures = workload.failures
    if not failures.links and not failures.hosts:
        return None
    before = _iteration(offer.topology, offer, workload, list(range(workload.ranks)))
    cables = _cables(offer, workload)
    ratios: list[float] = []
    for number in range(failures.samples):
        sample = Random(f"{offer.name} {number}")
        hosts = sorted(sample.sample(range(workload.hosts), failures.hosts))
        gone = {rank for host in hosts for rank in _ranks(host, workload)}
        alive = [rank for rank in range(workload.ranks) if rank not in gone]
        topology = offer.topology
        try:
            for src, dst in sample.sample(cables, min(failures.links, len(cables))):
                topology = _cut(
                    topology, offer.topology.node_ids[src], offer.topology.node_ids[dst], offer, workload
                )
            if gone:
                nodes = [offer.topology.node_ids[offer.topology.rank_nodes[rank]] for rank in sorted(gone)]
                topology = remove_nodes(topology, nodes)
            ratios.append(_iteration(topology, offer, workload, alive) / before)
        except UnreachableError:
            continue
    cut_off = 1 - len(ratios) / failures.samples
    if not ratios:
        return Slowdown(mean=float("inf"), worst=float("inf"), cut_off=cut_off)
    return Slowdown(mean=sum(ratios) / len(ratios), worst=max(ratios), cut_off=cut_off)


def _iteration(topology: Topology, offer: Offer, workload: TrainingWorkload, alive: list[int]) -> float:
    """Sum of the bounds of the slowest groups."""
    new = {rank: place for place, rank in enumerate(alive)}
    total = 0.0
    for use in workload.collectives:
        groups = [[new[rank] for rank in group if rank in new] for group in use.groups(workload.ranks)]
        times = [bound_us(topology, use, group, relays=offer.relays) for group in groups if len(group) > 1]
        total += use.count * max(times, default=0.0)
    return total


def _ranks(host: int, workload: TrainingWorkload) -> range:
    return range(host * workload.ranks_per_host, (host + 1) * workload.ranks_per_host)


def _cables(offer: Offer, workload: TrainingWorkload) -> list[tuple[int, int]]:
    """A pair of ends for every cable of the network; links inside of hosts do not fail."""
    topology = offer.topology
    inside = (topology.host[topology.src] == topology.host[topology.dst]) & (topology.host[topology.src] >= 0)
    one_way = offer.graph is not None and not offer.graph.bidirectional
    found = []
    for link in np.flatnonzero(~inside).tolist():
        src, dst = int(topology.src[link]), int(topology.dst[link])
        if one_way or src < dst:
            rate = Fraction(int(topology.capacity[link]), topology.denominator)
            found += [(src, dst)] * max(1, round(rate / workload.gb_per_s))
    return found


def _cut(topology: Topology, src: str, dst: str, offer: Offer, workload: TrainingWorkload) -> Topology:
    """The topology without one cable between two nodes."""
    one_way = offer.graph is not None and not offer.graph.bidirectional
    for a, b in ((src, dst),) if one_way else ((src, dst), (dst, src)):
        link = topology.link_index.get((topology.node_index[a], topology.node_index[b]))
        if link is not None:
            rate = Fraction(int(topology.capacity[link]), topology.denominator)
            topology = set_link_rate(topology, a, b, max(Fraction(0), rate - workload.gb_per_s), one_way=True)
    return topology
