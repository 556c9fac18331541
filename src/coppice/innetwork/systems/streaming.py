"""A switch that adds frames as they stream through: queues absorb the skew of workers, pauses replace loss.

Liu et al., a scalable and fully pipelined switch for all-reduce (AllReduce-Switch, IEEE TCAS-I 2021); the timing is
derived.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, log2

from coppice.innetwork.systems.case import AggregationCase, SwitchProtocol, refuse_loss
from coppice.innetwork.systems.estimate import AggregationEstimate, float32_sum, microseconds
from coppice.innetwork.systems.windows import ValueFrame


def fifo_bytes(workers: int, *, gb_per_s: Fraction, skew_us: float) -> int:
    """Bytes of all ports' queues: what arrives while the last worker is late, n x skew x B.

    >>> fifo_bytes(8, gb_per_s=Fraction(5, 4), skew_us=10)
    100000
    """
    return ceil(workers * float(gb_per_s) * 1000 * skew_us)


def streaming(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate the streaming switch: x / B as long as the adders take all ports, n B <= bus x clock.

    Examples:
        >>> case = {"workers": 8, "gb_per_s": Fraction(5, 4)}
        >>> from coppice.innetwork.systems.hosts import ring
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


STREAMING = SwitchProtocol(
    name="streaming",
    title="queues of frames at the ports of a switch, whose heads are added in stream",
    source="the idea of Liu et al. (AllReduce-Switch), IEEE TCAS-I 2021; frames are ours",
    key="place in the sequence of the port",
    numbers="int32 that wraps around and float32, in the order of the ports",
    reliability="in sequence only; full queues pause their senders; what is missing is sent again from there on",
    result_path="to all ports, from the root of the switches down",
    sizing="min(rate of the link, window x frame / round trip), while ports x rate <= width of the bus x clock",
    values=256,
    most_workers=1024,
)
