"""NetAgg, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

NETAGG = SwitchProtocol(
    name="netagg",
    title="boxes beside switches that merge the requests of applications on their way to a master",
    source="after the design of NetAgg, CoNEXT 2014; packets and reliability are Coppice's",
    key="request",
    numbers="int32 that wraps around, float32; sum, minimum, maximum, the k largest",
    reliability="streams with selective acknowledgements; bits of the workers in a sum; past dead boxes to the next",
    result_path="from the master down the tree of boxes",
    sizing="min(rate of the link, rate of the box / children)",
    values=256,
    most_workers=32,
)
