"""Camdoop: servers of a 3D torus forward and add, along six trees that share no link.

Camdoop (NSDI 2012); the closed forms are derived.
"""

from __future__ import annotations

from fractions import Fraction
from math import cbrt

from coppice.errors import InputError
from coppice.innetwork.systems.estimate import (
    AggregationCase,
    AggregationEstimate,
    SwitchProtocol,
    float32_sum,
    microseconds,
    refuse_loss,
)

_TREES = 6


def torus_side(workers: int) -> int:
    """Side k of a torus of k^3 servers, 3 or more.

    >>> torus_side(27)
    3
    """
    side = round(cbrt(workers))
    if side < 3 or side**3 != workers:
        raise InputError(
            f"expected the workers of a 3D torus, 27, 64, 125, ..., found {workers}: Camdoop needs one."
        )
    return side


def reduce_share(workers: int, *, aggregating: bool = True) -> Fraction:
    """Share of the tensor on each of the root's six links in a reduction: 1 / 6, and (n - 1) / 6 where no hop adds.

    >>> reduce_share(27), reduce_share(27, aggregating=False)
    (Fraction(1, 6), Fraction(13, 3))
    """
    return Fraction(1 if aggregating else workers - 1, _TREES)


def camdoop(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate Camdoop: a reduction to one server and a broadcast from it, pipelined, x / 3 on each of six links.

    Six trees of n - 1 links take all but six of the 6 n directed links, and the broadcast takes the same links the
    other way round: what the reduction and the broadcast put on a link adds up to 2 x / 6.

    Examples:
        >>> case = AggregationCase(workers=27, gb_per_s=Fraction(1, 8), rtt_us=0)
        >>> camdoop(case, 10**9).gb_per_s
        0.375
    """
    refuse_loss(case, "Camdoop", "its links")
    side = torus_side(case.workers)
    rate = case.gb_per_s / (2 * reduce_share(case.workers))
    hops = 2 * 3 * (side - 1)
    return AggregationEstimate(
        system="camdoop",
        time_us=microseconds(size_bytes, float(rate)) + hops * case.rtt_us / 2,
        gb_per_s=float(rate),
        memory_bytes=None,
        error=float32_sum(case.workers),
        model="2 x/(6B) + 6(k-1) hops of RTT/2",
        source="Camdoop, NSDI 2012",
        link_bytes=2 * reduce_share(case.workers),
        details={"reduce_gb_per_s": float(case.gb_per_s / reduce_share(case.workers))},
    )


CAMDOOP = SwitchProtocol(
    name="camdoop",
    title="servers that add what they pass on, hop by hop along several trees",
    source="Costa et al., NSDI 2012; frames are ours",
    key="tree and chunk; of pairs, the key",
    numbers="int32 that wraps around and float32, in the order of the children; pairs merged by sorted keys",
    reliability="credit and repetition on every link; trees are rebuilt, and chunks sent again from the first missing",
    result_path="down the trees",
    sizing="rate of the link x trees, while slots x chunk covers a round trip of one hop",
    values=256,
    most_workers=1024,
)
