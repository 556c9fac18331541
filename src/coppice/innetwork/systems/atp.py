"""ATP: jobs share a switch's slots first come, first served; what finds none is added at a parameter server.

ATP (NSDI 2021); the share is derived.
"""

from __future__ import annotations

from math import expm1, log1p

from coppice.innetwork.systems.estimate import (
    AggregationCase,
    AggregationEstimate,
    SwitchProtocol,
    fixed_point,
    microseconds,
)
from coppice.innetwork.systems.switchml import slot_run
from coppice.innetwork.systems.windows import ATP_BYTES, ValueFrame

_SLOTS = 40_000
"""Aggregators of its switch."""

_WINDOW = 100
"""Packets up to which the window of a worker grows."""


def aggregated_share(packets: int, slots: int) -> float:
    """Expected share of the packets in flight that find their hashed slot free (derived).

    Of P tags that hash into S slots S (1 - (1 - 1/S)^P) hold one.

    Args:
        packets: Tags in flight, of all jobs.

    Examples:
        >>> aggregated_share(1, 10), round(aggregated_share(1000, 1000), 3), round(aggregated_share(10_000, 100), 3)
        (1.0, 0.632, 0.01)
    """
    if slots == 1:
        return 1 / packets
    return min(1.0, -slots * expm1(packets * log1p(-1 / slots)) / packets)


def atp(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate ATP: a share q of the packets is added in the switch, the rest at the server, which also gets every sum.

    A sum goes to the server, and its answer comes back through the switch: two round trips for a packet of the window.
    Each link carries the tensor once each way, the server's (q + (1 - q) n) times in: max(x/B, (q + (1-q) n) x/B_ps).

    Examples:
        >>> from fractions import Fraction
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2))
        >>> [round(8 * atp(each, 10**9).gb_per_s) for each in (case, AggregationCase(
        ...     workers=8, gb_per_s=Fraction(25, 2), slots=100, jobs=10))]
        [16, 10]
    """
    frame = ValueFrame(values=case.values or 62, overhead_bytes=ATP_BYTES)
    slots = _SLOTS if case.slots is None else case.slots
    share = aggregated_share(_WINDOW * case.jobs, slots)
    window = AggregationCase(
        workers=case.workers,
        gb_per_s=case.gb_per_s,
        rtt_us=2 * case.rtt_us,
        tiers=case.tiers,
        slots=_WINDOW,
        loss=case.loss,
        timeout_us=case.timeout_us,
        pass_us=case.pass_us,
        recirculation_gb_per_s=case.recirculation_gb_per_s,
    )
    run = slot_run(window, size_bytes, frame, passes=2)
    at_server = share + (1 - share) * case.workers
    server = float(case.server * frame.efficiency) / at_server
    slower = max(1.0, run.gb_per_s / server)
    return AggregationEstimate(
        system="atp",
        time_us=max(
            run.time_us, microseconds(size_bytes, server) * run.slowdown + 2 * case.rtt_us * case.tiers
        ),
        gb_per_s=run.gb_per_s / slower,
        memory_bytes=slots * (frame.payload_bytes + 10),
        error=fixed_point(case.workers),
        model="max(x/B, (q+(1-q)n) x/B_ps), q = S(1-(1-1/S)^P)/P; window 100, 2 RTT",
        source="ATP, NSDI 2021",
        link_bytes=1 / frame.efficiency,
        details={"aggregated_share": share, "slowdown_by_loss": run.slowdown},
    )


ATP = SwitchProtocol(
    name="atp",
    title="slots that all jobs share as far as they go; a server merges what found none",
    source="Lao et al., NSDI 2021; packets of in-ATP/ATP",
    key="slot, application and number of the chunk",
    numbers="int32 that sticks at the ends; float32 as fixed point of 10^6, and as floats at the server beyond it",
    reliability="what is sent again takes partial sums along to the server, which merges by bitmap; congestion marked",
    result_path="from the server, multicast through the switches, which frees the slots",
    sizing="min(rate of the link, window x packet / round trip to the server); n times the server's link without slots",
    values=62,
    most_workers=32,
)
