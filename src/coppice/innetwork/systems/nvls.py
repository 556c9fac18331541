"""NVLS and NVLSTree: NVLink switches that reduce what they load from all GPUs, and multicast stores to all.

NCCL's kernels of that name: each GPU reduces its 1/n of the tensor by one read and spreads it by one write.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, log2

from coppice.errors import InputError
from coppice.innetwork.systems.estimate import (
    AggregationCase,
    AggregationEstimate,
    float32_sum,
    microseconds,
    refuse_loss,
)
from coppice.innetwork.systems.hosts import ring_share


def nvls_share(gpus: int) -> Fraction:
    """Bytes on a GPU's link each way for each byte of the tensor: 1 + 1 / n, its own shard once more.

    >>> nvls_share(8)
    Fraction(9, 8)
    """
    return 1 + Fraction(1, gpus)


def nvls_gain(gpus: int) -> Fraction:
    """Speedup over a ring: 2 (n - 1) / (n + 1).

    >>> [round(float(nvls_gain(n)), 3) for n in (4, 8, 16)]
    [1.2, 1.556, 1.765]
    """
    return ring_share(gpus) / nvls_share(gpus)


def nvls(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate NVLS, all GPUs on one NVLink switch: (1 + 1/n) x / B.

    Examples:
        >>> nvls(AggregationCase(workers=8, gb_per_s=Fraction(450)), 10**9).gb_per_s
        400.0
    """
    refuse_loss(case, "NVLS", "NVLink's links")
    if case.boxes > 1 < case.gpus:
        raise InputError(
            f"expected all GPUs on one NVLink switch, found {case.boxes} boxes: see `nvls-tree`."
        )
    rate = case.gb_per_s / nvls_share(case.workers)
    return AggregationEstimate(
        system="nvls",
        time_us=microseconds(size_bytes, float(rate)) + 2 * case.rtt_us,
        gb_per_s=float(rate),
        memory_bytes=None,
        error=float32_sum(case.workers),
        model="(1+1/n) x/B + 2 RTT",
        source="NCCL 2.30",
        link_bytes=nvls_share(case.workers),
    )


def double_tree_share(boxes: int) -> Fraction:
    """Bytes on a box's NICs each way for each byte: three streams in one tree of half the bytes, one in the other.

    Args:
        boxes: Boxes; two and three have no box with two below it and one above.

    Examples:
        >>> [str(double_tree_share(m)) for m in (2, 3, 4, 100)]
        ['1', '3/2', '2', '2']
    """
    return {2: Fraction(1), 3: Fraction(3, 2)}.get(boxes, Fraction(2))


def nvls_tree(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate NVLSTree, NVLS in boxes and a double binary tree across: max((1 + 1/k) x / B_i, 2 x / (nics B)).

    Examples:
        >>> case = AggregationCase(workers=32, gpus=8, nics=8, gb_per_s=Fraction(50), box_gb_per_s=Fraction(450))
        >>> nvls_tree(case, 10**9).gb_per_s
        200.0
    """
    refuse_loss(case, "NVLS", "NVLink's links")
    if case.gpus == 1 or case.box_gb_per_s is None:
        raise InputError(
            "expected boxes of GPUs on NVLink switches, found none: give `gpus` of a box and `box_gb_per_s`."
        )
    inside = case.box_gb_per_s / nvls_share(case.gpus)
    across = case.gb_per_s * min(case.nics, case.gpus) / double_tree_share(case.boxes)
    rate = min(inside, across) if case.boxes > 1 else inside
    hops = 2 + 2 * ceil(log2(case.boxes))
    return AggregationEstimate(
        system="nvls-tree",
        time_us=microseconds(size_bytes, float(rate)) + hops * case.rtt_us,
        gb_per_s=float(rate),
        memory_bytes=None,
        error=float32_sum(case.workers),
        model="max((1+1/k) x/B_i, 2x/(nics B)) + (2+2 log2 boxes) RTT",
        source="NCCL 2.30",
    )
