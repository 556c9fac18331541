"""NetAgg: boxes beside switches add up for their racks, on ordinary switches.

NetAgg (CoNEXT 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from coppice.innetwork.models.case import AggregationCase
from coppice.innetwork.models.errors import float32_sum
from coppice.innetwork.models.estimate import AggregationEstimate, microseconds
from coppice.innetwork.models.unanswered import refuse_loss

__all__ = ["box_knee_gb_per_s", "netagg", "racks_share"]


def box_knee_gb_per_s(children: int, gb_per_s: Fraction) -> Fraction:
    """Rate from which on a box beside a switch is no bottleneck: R = m B.

    >>> box_knee_gb_per_s(8, Fraction(5, 4))
    Fraction(10, 1)
    """
    return children * gb_per_s


def racks_share(
    racks: Sequence[int],
    boxes: Sequence[bool],
    *,
    gb_per_s: Fraction,
    uplink_gb_per_s: Fraction,
    core: bool = True,
) -> Fraction:
    """Time for each byte of the tensor over racks of which only some have a box: 1 / (GB/s).

    A rack with a box sends one stream up, one without as many as it has workers; a box at the core, or else the link of
    the one that collects, takes what comes.

    Args:
        racks: Workers of each rack.
        boxes: Whether the rack has a box.
        gb_per_s: Rate of a worker's link.
        uplink_gb_per_s: Rate of a rack's link to the core.
        core: A box at the core adds up, at the rate of all uplinks.

    Examples:
        >>> rates = {"gb_per_s": Fraction(1), "uplink_gb_per_s": Fraction(2)}
        >>> [str(racks_share([8, 8], boxes, **rates)) for boxes in ([True, True], [True, False], [False, False])]
        ['1', '4', '4']
        >>> str(racks_share([8, 8], [True, True], **rates, core=False))
        '2'
    """
    streams = [1 if box else workers for workers, box in zip(racks, boxes, strict=True)]
    slowest = max([1 / gb_per_s, *(count / uplink_gb_per_s for count in streams)])
    return slowest if core else max(slowest, sum(streams) / gb_per_s)


def netagg(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """A box takes n streams and hands out n: max(x / B, n x / R); every tier has boxes.

    Examples:
        >>> case = {"workers": 8, "gb_per_s": Fraction(5, 4)}
        >>> [netagg(AggregationCase(**case, adding_gb_per_s=Fraction(r)), 10**9).gb_per_s for r in (5, 10, 20)]
        [0.625, 1.25, 1.25]
    """
    refuse_loss(case, "NetAgg", "TCP")
    rate = case.gb_per_s
    if case.adding_gb_per_s is not None:
        rate = min(rate, case.adding_gb_per_s / (case.workers * case.jobs))
    return AggregationEstimate(
        system="netagg",
        time_us=microseconds(size_bytes, float(rate)) + case.rtt_us * case.tiers,
        gb_per_s=float(rate),
        memory_bytes=None,
        error=float32_sum(case.workers),
        model="max(x/B, n x/R) + RTT",
        source="NetAgg, CoNEXT 2014",
        details={"box_knee_gb_per_s": float(box_knee_gb_per_s(case.workers, case.gb_per_s))},
    )
