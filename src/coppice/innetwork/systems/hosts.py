"""Baselines without the network's help: rings, trees and parameter servers of hosts.

The formulas are those of "When In-Network Computing Meets Distributed ML" (Zhu et al., IEEE Network 2024). A hop from
one host to another goes up to the switch and down again, so its latency is the round trip of the other models.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, log2

from coppice.innetwork.systems.estimate import AggregationCase, AggregationEstimate, float32_sum, microseconds

_SOURCE = "Zhu et al., IEEE Network 2024"


def ring_share(workers: int) -> Fraction:
    """Bytes on a worker's link each way for each byte of the tensor, in a ring: 2 (n - 1) / n.

    Also the gain of an aggregating switch, where each byte crosses it once each way.

    Examples:
        >>> [str(ring_share(n)) for n in (2, 4, 8, 64)], float(ring_share(64))
        (['1', '3/2', '7/4', '63/32'], 1.96875)
    """
    return Fraction(2 * (workers - 1), workers)


def parameter_server_share(workers: int) -> Fraction:
    """Bytes on a single server's link for each byte of the tensor, both ways one after the other: 2 n.

    >>> parameter_server_share(8)
    Fraction(16, 1)
    """
    return Fraction(2 * workers)


def ring(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate a ring of hosts: 2 (n - 1) / n x x / B + 2 (n - 1) hops.

    Examples:
        >>> from fractions import Fraction
        >>> ring(AggregationCase(workers=8, gb_per_s=Fraction(25, 2)), 10**9).gb_per_s
        7.142857142857143
    """
    share, hops = ring_share(case.workers), 2 * (case.workers - 1)
    return _by_hosts(
        case, size_bytes, "ring", case.gb_per_s / share, hops, "2(n-1)/n x/B + 2(n-1) RTT", share
    )


def host_tree(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate a pipelined binary tree of hosts: an inner host's link carries two streams each way, B / 2.

    Examples:
        >>> from fractions import Fraction
        >>> host_tree(AggregationCase(workers=8, gb_per_s=Fraction(25, 2)), 10**9).gb_per_s
        6.25
    """
    hops = 2 * ceil(log2(case.workers))
    return _by_hosts(
        case, size_bytes, "tree", case.gb_per_s / 2, hops, "2 x/B + 2 ceil(log2 n) RTT", Fraction(2)
    )


def parameter_server(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate one parameter server that all push to, and then pull from: 2 n x / B_ps.

    Examples:
        >>> from fractions import Fraction
        >>> parameter_server(AggregationCase(workers=8, gb_per_s=Fraction(16)), 10**9).gb_per_s
        1.0
    """
    rate = min(case.gb_per_s / 2, case.server / parameter_server_share(case.workers))
    return _by_hosts(case, size_bytes, "ps", rate, 2, "2n x/B_ps + 2 RTT", Fraction(1))


def sharded_parameter_server(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate parameter servers sharded over the workers' hosts: 2 (n - 1) x / (n B), as a ring, in two hops.

    Examples:
        >>> from fractions import Fraction
        >>> sharded_parameter_server(AggregationCase(workers=4, gb_per_s=Fraction(3)), 10**9).gb_per_s
        2.0
    """
    share = ring_share(case.workers)
    return _by_hosts(case, size_bytes, "sharded-ps", case.gb_per_s / share, 2, "2(n-1)/n x/B + 2 RTT", share)


def _by_hosts(
    case: AggregationCase,
    size_bytes: int,
    system: str,
    rate: Fraction,
    hops: int,
    model: str,
    share: Fraction,
) -> AggregationEstimate:
    return AggregationEstimate(
        system=system,
        time_us=microseconds(size_bytes, float(rate)) + hops * case.rtt_us * case.tiers,
        gb_per_s=float(rate),
        memory_bytes=None,
        error=float32_sum(case.workers),
        model=model,
        source=_SOURCE,
        link_bytes=share,
    )


YARDSTICKS: dict[str, Callable[[AggregationCase, int], AggregationEstimate]] = {
    "ring": ring,
    "sharded-ps": sharded_parameter_server,
    "tree": host_tree,
    "ps": parameter_server,
}
