"""SwitchML: a window of integer slots in a switch, in two versions each, self-clocked by the workers' packets.

SwitchML (NSDI 2021).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from coppice.innetwork.systems.estimate import (
    AggregationCase,
    AggregationEstimate,
    SwitchProtocol,
    block_float,
)
from coppice.innetwork.systems.windows import (
    ValueFrame,
    lossy_tensor_us,
    mean_waits,
    slots_for_line_rate,
    tensor_us,
    turn_us,
)

VALUES_PER_PASS = 64
"""Values that a packet leaves in a pipeline on one pass; 256 of them take four."""


@dataclass(frozen=True, kw_only=True)
class SlotRun:
    """The course of one tensor through a window of slots."""

    time_us: float  # Time of the tensor
    gb_per_s: float  # Bytes of an endless tensor over time
    line_rate_slots: int  # Slots with which the link never waits, without loss
    slowdown: float  # Expected time over the time without loss


def slot_run(
    case: AggregationCase, size_bytes: int, frame: ValueFrame, *, passes: int, ahead: bool = False
) -> SlotRun:
    """Compute the course of a tensor through slots with time-outs.

    Args:
        passes: How often a packet goes through the pipeline.
        ahead: One window of empty packets goes first, to agree on exponents.

    Examples:
        >>> from fractions import Fraction
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2), slots=64)
        >>> run = slot_run(case, 2**20, ValueFrame(values=256), passes=1)
        >>> round(run.time_us, 2), round(8 * run.gb_per_s), run.line_rate_slots
        (102.99, 86, 69)
    """
    wire, rtt = frame.wire_us(case.gb_per_s), case.rtt_us * case.tiers + (passes - 1) * case.pass_us
    if case.recirculation_gb_per_s is not None and passes > 1:
        again = case.workers * (passes - 1) * frame.size_bytes / (float(case.recirculation_gb_per_s) * 1000)
        wire = max(wire, again)
    packets = max(1, ceil(size_bytes / frame.payload_bytes))
    window = min(case.own_slots, packets)
    packets += window if ahead else 0
    plain = tensor_us(packets, window, wire_us=wire, rtt_us=rtt)
    time_us = lossy_tensor_us(
        packets,
        window,
        wire_us=wire,
        rtt_us=rtt,
        timeout_us=case.timeout_us,
        loss=case.loss,
        workers=case.workers,
    )
    turn_waits = mean_waits(case.loss, case.workers)
    slots = case.own_slots
    endless = max(
        turn_us(slots, wire_us=wire * (1 + turn_waits), rtt_us=0.0), rtt + wire + case.timeout_us * turn_waits
    )
    return SlotRun(
        time_us=time_us,
        gb_per_s=slots * frame.payload_bytes / endless / 1000,
        line_rate_slots=slots_for_line_rate(wire_us=wire, rtt_us=rtt),
        slowdown=time_us / plain,
    )


def slot_bytes(workers: int, values: int, *, value_bytes: int = 4, exponents: int = 2) -> int:
    """Bytes of one version of a slot: values, a bitmap in words of 32 workers, a count of 4 bytes, exponents.

    >>> slot_bytes(8, 256)
    1034
    """
    return values * value_bytes + 4 * ceil(workers / 32) + 4 + exponents


def slot_estimate(
    case: AggregationCase,
    size_bytes: int,
    *,
    ahead: bool,  # Exponents go a window ahead of their values
    slot: Callable[[int, int], int],  # Bytes of one version of a slot, for workers and values
    **words: Any,  # The other fields of the estimate
) -> AggregationEstimate:
    """Estimate a system of slots in two versions, with windows of packets."""
    frame = ValueFrame(values=case.values or 256)
    run = slot_run(case, size_bytes, frame, passes=ceil(frame.values / VALUES_PER_PASS), ahead=ahead)
    return AggregationEstimate(
        time_us=run.time_us,
        gb_per_s=run.gb_per_s,
        memory_bytes=2 * case.all_slots * slot(case.workers, frame.values),
        link_bytes=1 / frame.efficiency,
        details={"slots_for_line_rate": run.line_rate_slots, "slowdown_by_loss": run.slowdown},
        **words,
    )


def switchml(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate SwitchML: integers at an exponent that all agreed on one window before.

    Examples:
        >>> from fractions import Fraction
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2), slots=32)
        >>> round(8 * switchml(case, 10**9).gb_per_s)
        43
    """
    return slot_estimate(
        case,
        size_bytes,
        system="switchml",
        ahead=True,
        slot=slot_bytes,
        error=block_float(case.workers),
        model="min(B 4k/(4k+82), s 4k/(RTT+t)); one window ahead for exponents",
        source="SwitchML, NSDI 2021",
    )


SWITCHML = SwitchProtocol(
    name="switchml",
    title="slots in a switch that workers fill in turns of two sets",
    source="Sapio et al., NSDI 2021; packets of p4lang/p4app-switchML",
    key="slot, set and packet id",
    numbers="int32 that wraps around; float32 as block floating point, with an exponent agreed a window ahead",
    reliability="a bit for each worker and set; time-outs at the workers; answers from the other set",
    result_path="multicast, from the root of the switches down",
    sizing="min(rate of the link, slots x packet / round trip)",
    values=256,
    most_workers=32,
)
