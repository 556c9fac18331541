"""FPISA: floats added in the integer pipeline of a switch, so no exponents are agreed on and no host converts.

FPISA (NSDI 2022, arXiv 2112.06095).
"""

from __future__ import annotations

from coppice.innetwork.models.case import AggregationCase
from coppice.innetwork.models.errors import fpisa_sum
from coppice.innetwork.models.estimate import AggregationEstimate
from coppice.innetwork.models.frames import ValueFrame
from coppice.innetwork.models.switchml import VALUES_PER_PASS, slot_bytes, slot_run


def fpisa(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """SwitchML's slots with an exponent beside each mantissa: one window less, a quarter more memory.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.innetwork.models.switchml import switchml
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2), slots=64)
        >>> round(switchml(case, 2**20).time_us - fpisa(case, 2**20).time_us, 3)
        6.088
    """
    frame = ValueFrame(values=case.values or 256)
    passes = -(-frame.values // VALUES_PER_PASS)
    run = slot_run(case, size_bytes, frame, passes=passes)
    return AggregationEstimate(
        system="fpisa",
        time_us=run.time_us,
        gb_per_s=run.gb_per_s,
        memory_bytes=2 * case.all_slots * slot_bytes(case.workers, frame.values, value_bytes=5, exponents=0),
        error=fpisa_sum(case.workers),
        model="min(B 4k/(4k+82), s 4k/(RTT+t)); full adder (FPISA-A: no bound of the error)",
        source="FPISA, NSDI 2022",
        link_bytes=1 / frame.efficiency,
        details={"slots_for_line_rate": run.line_rate_slots, "slowdown_by_loss": run.slowdown},
    )
