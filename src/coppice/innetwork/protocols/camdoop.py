"""Camdoop, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

CAMDOOP = SwitchProtocol(
    name="camdoop",
    title="servers that add what they pass on, hop by hop along several trees",
    source="Costa et al., NSDI 2012; frames are ours",
    key="tree and chunk; of pairs, the key",
    numbers="int32 that wraps around and float32, in the order of the children; pairs merged by sorted keys",
    reliability="credit and repetition on every link; trees are rebuilt, and chunks sent again from the first missing",
    result_path="down the trees",
    sizing="rate of the link x trees, while slots x chunk covers a round trip of one hop",
    values=256,
    most_workers=1024,
)
