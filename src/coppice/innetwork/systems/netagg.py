"""NetAgg: middleboxes attached to ordinary switches aggregate for their racks.

NetAgg (CoNEXT 2014).
"""

from __future__ import annotations

from fractions import Fraction

from coppice.innetwork.systems.estimate import (
    AggregationCase,
    AggregationEstimate,
    SwitchProtocol,
    float32_sum,
    microseconds,
    refuse_loss,
)


def box_knee_gb_per_s(children: int, gb_per_s: Fraction) -> Fraction:
    """Rate at which a middlebox stops being a bottleneck: R = m B.

    >>> box_knee_gb_per_s(8, Fraction(5, 4))
    Fraction(10, 1)
    """
    return children * gb_per_s


def racks_share(
    racks: int,
    workers: int,
    with_boxes: int,
    *,
    gb_per_s: Fraction,
    uplink_gb_per_s: Fraction,  # Rate of a rack's link to the core
    box_gb_per_s: Fraction | None = None,  # What a box takes in; None: any rate
) -> Fraction:
    """Time for each byte of the tensor, in 1 / (GB/s), over racks of which only some have a box.

    A rack with a box sends one stream up, one without as many as it has workers; the box at the core takes what comes.

    Examples:
        >>> rates = {"gb_per_s": Fraction(1), "uplink_gb_per_s": Fraction(2)}
        >>> [str(racks_share(2, 8, boxes, **rates)) for boxes in (2, 1, 0)]
        ['1', '4', '4']
        >>> [str(racks_share(2, 8, boxes, **rates, box_gb_per_s=Fraction(2))) for boxes in (2, 1, 0)]
        ['4', '9/2', '8']
    """
    streams = with_boxes + (racks - with_boxes) * workers
    widest = 1 if with_boxes == racks else workers
    times = [1 / gb_per_s, widest / uplink_gb_per_s]
    if box_gb_per_s is not None:
        times += [streams / box_gb_per_s, (workers if with_boxes else 0) / box_gb_per_s]
    return max(times)


def netagg(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate NetAgg: a box takes n streams and sends n, max(x / B, n x / R); some racks may have no box.

    Examples:
        >>> case = {"workers": 8, "gb_per_s": Fraction(5, 4)}
        >>> [netagg(AggregationCase(**case, adding_gb_per_s=Fraction(r)), 10**9).gb_per_s for r in (5, 10, 20)]
        [0.625, 1.25, 1.25]
        >>> case = {"workers": 16, "racks": 2, "gb_per_s": Fraction(1), "uplink_gb_per_s": Fraction(2)}
        >>> [netagg(AggregationCase(**case, racks_with_boxes=boxes), 10**9).gb_per_s for boxes in (2, 1)]
        [1.0, 0.25]
    """
    refuse_loss(case, "NetAgg", "TCP")
    rate = case.gb_per_s
    box = None if case.adding_gb_per_s is None else case.adding_gb_per_s / case.jobs
    if case.racks > 1:
        each = case.workers // case.racks
        rate = 1 / racks_share(
            case.racks,
            each,
            case.racks if case.racks_with_boxes is None else case.racks_with_boxes,
            gb_per_s=rate,
            uplink_gb_per_s=each * rate if case.uplink_gb_per_s is None else case.uplink_gb_per_s,
            box_gb_per_s=box,
        )
    elif box is not None:
        rate = min(rate, box / case.workers)
    return AggregationEstimate(
        system="netagg",
        time_us=microseconds(size_bytes, float(rate)) + case.rtt_us * max(case.tiers, min(case.racks, 2)),
        gb_per_s=float(rate),
        memory_bytes=None,
        error=float32_sum(case.workers),
        model="max(x/B, n x/R) + RTT" if case.racks == 1 else "max(x/B, m x/U, m x/R) + 2 RTT",
        source="NetAgg, CoNEXT 2014",
        details={"box_knee_gb_per_s": float(box_knee_gb_per_s(case.workers, case.gb_per_s))},
    )


NETAGG = SwitchProtocol(
    name="netagg",
    title="boxes beside switches that merge the requests of applications on their way to a master",
    source="after the design of NetAgg, CoNEXT 2014; packets and reliability are Coppice's",
    key="request",
    numbers="int32 that wraps around, float32; sum, minimum, maximum, the k largest",
    reliability="streams with selective acknowledgements; bits of the workers in a sum; past dead boxes to the next",
    result_path="from the master down the tree of boxes",
    sizing="min(rate of the link, rate of the box / children)",
    values=256,
    most_workers=32,
)
