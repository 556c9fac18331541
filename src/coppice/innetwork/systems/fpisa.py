"""FPISA: floats added in a switch's integer pipeline, so that hosts neither agree on exponents nor convert.

FPISA (NSDI 2022, arXiv 2112.06095).
"""

from __future__ import annotations

from functools import partial

from coppice.innetwork.systems.estimate import AggregationCase, AggregationEstimate, SwitchProtocol, fpisa_sum
from coppice.innetwork.systems.switchml import slot_bytes, slot_estimate


def fpisa(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate FPISA: SwitchML's slots with an exponent for each mantissa, one window less, a quarter more memory.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.innetwork.systems.switchml import switchml
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2), slots=64)
        >>> round(switchml(case, 2**20).time_us - fpisa(case, 2**20).time_us, 3)
        6.088
    """
    return slot_estimate(
        case,
        size_bytes,
        system="fpisa",
        ahead=False,
        slot=partial(slot_bytes, value_bytes=5, exponents=0),
        error=fpisa_sum(case.workers),
        model="min(B 4k/(4k+82), s 4k/(RTT+t)); full adder (FPISA-A: no bound of the error)",
        source="FPISA, NSDI 2022",
    )


FPISA = SwitchProtocol(
    name="fpisa",
    title="the slots of SwitchML with an adder of floats in the switch",
    source="Yuan et al., NSDI 2022; packets of SwitchML",
    key="slot, set and packet id",
    numbers="float32 as it is, added as exponent and mantissa; the last bits depend on the order of arrival",
    reliability="a bit for each worker and set; time-outs at the workers; answers from the other set",
    result_path="multicast, from the root of the switches down",
    sizing="min(rate of the link, slots x packet / round trip), without a round of exponents",
    values=256,
    most_workers=32,
)
