"""SwitchAgg: a switch that combines key-value pairs in hash tables on their way to one host.

SwitchAgg (FPGA 2019, arXiv 1904.04024); the analysis is derived.
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

_PAIR_BYTES = 8


def pairs_out(pairs: float, keys: int, capacity: int) -> float:
    """Number of pairs that leave a table: U where all keys fit, else N (1 - C / U) + C with uniform keys.

    Examples:
        >>> pairs_out(8000, 1000, 1000), pairs_out(8000, 1000, 250)
        (1000.0, 6250.0)
    """
    if capacity >= keys:
        return float(min(pairs, keys))
    return pairs * (1 - capacity / keys) + capacity


def reduction(pairs: float, keys: int, capacity: int) -> float:
    """Share of the pairs that a table saves the link above: 1 - U / N where all keys fit.

    >>> reduction(8000, 1000, 1000), reduction(8000, 1000, 250)
    (0.875, 0.21875)
    """
    return 1 - pairs_out(pairs, keys, capacity) / pairs


def switchagg(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate SwitchAgg with keys and values of 4 bytes: what the table leaves goes to one host, sums on in a chain.

    max(2x, 8 pairs) / B for the reduction, then x / B for a pipelined broadcast by hosts.

    Examples:
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(12))
        >>> round(switchagg(case, 10**9).gb_per_s, 3)
        4.0
    """
    refuse_loss(case, "SwitchAgg", "ends of streams")
    keys = max(1, size_bytes // 4)
    capacity = keys if case.table_pairs is None else case.table_pairs
    out = pairs_out(case.workers * keys, keys, capacity)
    moved = max(_PAIR_BYTES * keys, _PAIR_BYTES * out)
    reduced = microseconds(moved, float(case.gb_per_s))
    spread = microseconds(size_bytes, float(case.gb_per_s))
    return AggregationEstimate(
        system="switchagg",
        time_us=reduced + spread + case.rtt_us * (case.tiers + case.workers - 1),
        gb_per_s=size_bytes / (reduced + spread) / 1000 if size_bytes else 0.0,
        memory_bytes=capacity * _PAIR_BYTES * case.jobs,
        error=float32_sum(case.workers),
        model="max(2x, 8(N(1-C/U)+C))/B + x/B + n RTT",
        source="SwitchAgg, arXiv 1904.04024",
        link_bytes=Fraction(3),
        details={"reduction": reduction(case.workers * keys, keys, capacity)},
    )


SWITCHAGG = SwitchProtocol(
    name="switchagg",
    title="pairs of keys and values, combined by key in a small memory of the switch in front of a large one",
    source="after the idea of SwitchAgg, FPGA 2019, arXiv 1904.04024; packets and reliability are Coppice's",
    key="key of the pair: the place of a block in the tensor",
    numbers="int32 that wraps around, float32; sum, minimum, maximum",
    reliability="a stream with selective acknowledgements on each link; ends of streams count once all before is there",
    result_path="both memories are emptied upwards at the end of a round; multicast from the root down",
    sizing="pairs up: all U keys once where the memories hold them, else N (1 - C / U) + C of N pairs",
    values=256,
)
