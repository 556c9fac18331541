"""SwitchAgg, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

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
