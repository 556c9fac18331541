"""SHARP: aggregation trees of InfiniBand switches, for small messages (v1), one stream (v2) or several (v3).

NVIDIA SHARP, as NCCL's CollNet uses it; the latency is derived.
"""

from __future__ import annotations

from math import ceil

from coppice.innetwork.systems.estimate import (
    AggregationCase,
    AggregationEstimate,
    SwitchProtocol,
    float32_sum,
    microseconds,
    refuse_loss,
)
from coppice.innetwork.systems.hosts import ring
from coppice.innetwork.systems.windows import tensor_us

SMALL_BYTES = 1024
"""Payload of an operation of the first version: an assumption, "up to a few KB" are stated."""

_SOURCE = "NVIDIA SHARP"


def tree_depth(workers: int, radix: int) -> int:
    """Depth of a tree of switches: ceil(log_radix n), counted without logarithms.

    >>> [tree_depth(n, 32) for n in (2, 32, 33, 1024, 1025)]
    [1, 1, 2, 2, 3]
    """
    depth, reached = 1, radix
    while reached < workers:
        depth, reached = depth + 1, reached * radix
    return depth


def sharp_v1(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate SHARP v1: small messages, as many at a time as there are buffers (slots); low latency, low throughput.

    Examples:
        >>> from fractions import Fraction
        >>> [sharp_v1(AggregationCase(workers=n, gb_per_s=Fraction(25)), 8).time_us // 6 for n in (2, 32, 64, 1024)]
        [1.0, 1.0, 2.0, 2.0]
    """
    refuse_loss(case, "SHARP", "InfiniBand's links")
    latency = tree_depth(case.workers, case.radix) * case.rtt_us
    payload = min(SMALL_BYTES, max(1, size_bytes))
    wire, operations = microseconds(payload, float(case.gb_per_s)), max(1, ceil(size_bytes / SMALL_BYTES))
    window = min(case.own_slots, operations)
    endless = min(float(case.gb_per_s), case.own_slots * SMALL_BYTES / (latency + wire) / 1000)
    return _tree(
        case,
        "sharp-v1",
        tensor_us(operations, window, wire_us=wire, rtt_us=latency),
        endless,
        memory=case.all_slots * SMALL_BYTES,
        model="window of operations of 1 KiB; ceil(log_r n) RTT",
    )


def sharp_v2(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate SHARP v2: one streaming tree at line rate, x / B + depth; of several jobs one has it, others run a ring.

    Examples:
        >>> from fractions import Fraction
        >>> case = AggregationCase(workers=64, gb_per_s=Fraction(25))
        >>> round(sharp_v2(case, 25_000_000).time_us, 1), sharp_v2(case, 1).gb_per_s
        (1012.0, 25.0)
    """
    return _streams(case, size_bytes, "sharp", trees=1)


def sharp_v3(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate SHARP v3: as many streaming trees at a time as the switches have (`trees`); jobs beyond run a ring.

    Examples:
        >>> from dataclasses import replace
        >>> from fractions import Fraction
        >>> case = AggregationCase(workers=64, gb_per_s=Fraction(25), jobs=4, trees=4)
        >>> sharp_v3(case, 1).gb_per_s, round(sharp_v2(case, 1).gb_per_s, 1)
        (25.0, 12.7)
    """
    return _streams(case, size_bytes, "sharp-v3", trees=case.trees)


def _streams(case: AggregationCase, size_bytes: int, system: str, *, trees: int) -> AggregationEstimate:
    """Estimate what every job can count on: a tree, or a ring where there are too few."""
    refuse_loss(case, "SHARP", "InfiniBand's links")
    if case.jobs > trees:
        beside = ring(case, size_bytes)
        return _tree(
            case,
            system,
            beside.time_us,
            beside.gb_per_s,
            memory=None,
            model=f"{case.jobs} jobs for {trees} tree(s): the last one runs a ring",
        )
    latency = tree_depth(case.workers, case.radix) * case.rtt_us
    return _tree(
        case,
        system,
        microseconds(size_bytes, float(case.gb_per_s)) + latency,
        float(case.gb_per_s),
        memory=ceil(float(case.gb_per_s) * 1000 * latency) * case.jobs,
        model="x/B + ceil(log_r n) RTT",
    )


def _tree(
    case: AggregationCase, system: str, time_us: float, rate: float, *, memory: int | None, model: str
) -> AggregationEstimate:
    return AggregationEstimate(
        system=system,
        time_us=time_us,
        gb_per_s=rate,
        memory_bytes=memory,
        error=float32_sum(case.workers),
        model=model,
        source=_SOURCE,
        details={"depth": tree_depth(case.workers, case.radix)},
    )


SHARP = SwitchProtocol(
    name="sharp",
    title="trees of switches that add for groups with reserved slots, streaming large messages one at a time",
    source="the idea of Graham et al., COM-HPC 2016, and of its later versions; frames are ours",
    key="group and number of the frame",
    numbers="sum, minimum or maximum of int32, float32 and halves, in the order of the children",
    reliability="contributions kept by child; time-outs at the workers; answers from the sums of two windows",
    result_path="multicast, from the root of the switches down",
    sizing="min(rate of the link, window x packet / round trip); small messages in ceil(log_r n) levels",
    values=256,
    most_workers=1024,
)
