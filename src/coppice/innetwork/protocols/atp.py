"""ATP, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

ATP = SwitchProtocol(
    name="atp",
    title="slots that all jobs share as far as they go; a server merges what found none",
    source="Lao et al., NSDI 2021; packets of in-ATP/ATP",
    key="slot, application and number of the chunk",
    numbers="int32 that sticks at the ends; float32 as fixed point of 10^6, and as floats at the server beyond it",
    reliability="what is sent again takes partial sums along to the server, which merges by bitmap; congestion marked",
    result_path="from the server, multicast through the switches, which frees the slots",
    sizing="min(rate of the link, window x packet / round trip to the server); n times the server's link without slots",
    values=62,
    most_workers=32,
)
