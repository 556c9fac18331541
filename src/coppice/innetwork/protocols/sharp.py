"""SHARP, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

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
