"""FPISA, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

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
