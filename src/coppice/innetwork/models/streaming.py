"""A switch that adds frames as they stream through, with queues for the skew of workers and pauses instead of loss.

Liu et al., a scalable and fully pipelined switch for all-reduce (AllReduce-Switch, IEEE TCAS-I 2021); the timing is
derived.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, log2

from coppice.innetwork.models.case import AggregationCase
from coppice.innetwork.models.errors import float32_sum
from coppice.innetwork.models.estimate import AggregationEstimate, microseconds
from coppice.innetwork.models.frames import ValueFrame
from coppice.innetwork.models.unanswered import refuse_loss


def fifo_bytes(workers: int, *, gb_per_s: Fraction, skew_us: float) -> int:
    """Queues of all ports: what arrives while the last worker is late, n x skew x B.

    >>> fifo_bytes(8, gb_per_s=Fraction(5, 4), skew_us=10)
    100000
    """
    return ceil(workers * float(gb_per_s) * 1000 * skew_us)


def streaming(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Reach x / B as frames leave it, while the adders take all ports: n B <= bus x clock.

    Examples:
        >>> case = {"workers": 8, "gb_per_s": Fraction(5, 4)}
        >>> from coppice.innetwork.models.hosts import ring
        >>> round(ring(AggregationCase(**case), 1).gb_per_s / 1.25, 3)
        0.571
        >>> round(streaming(AggregationCase(**case), 1).gb_per_s / 1.25, 3)
        0.926
        >>> round(streaming(AggregationCase(**case, adding_gb_per_s=Fraction(5)), 1).gb_per_s / 1.25, 3)
        0.463
    """
    refuse_loss(case, "a switch of streaming adders", "pauses")
    frame = ValueFrame(values=case.values or 256)
    rate = case.gb_per_s
    if case.adding_gb_per_s is not None:
        rate = min(rate, case.adding_gb_per_s / case.workers)
    rate *= frame.efficiency
    return AggregationEstimate(
        system="streaming",
        time_us=microseconds(size_bytes, float(rate)) + case.rtt_us * case.tiers + case.skew_us,
        gb_per_s=float(rate),
        memory_bytes=fifo_bytes(case.workers, gb_per_s=case.gb_per_s, skew_us=case.skew_us) * case.jobs,
        error=float32_sum(case.workers, depth=ceil(log2(case.workers))),
        model="x/min(B, A/n) 4k/(4k+82) + RTT + skew; queues n skew B",
        source="Liu et al., IEEE TCAS-I 2021",
        link_bytes=1 / frame.efficiency,
    )
