"""SwitchML, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

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
