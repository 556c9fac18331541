"""Streaming aggregation, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

STREAMING = SwitchProtocol(
    name="streaming",
    title="queues of frames at the ports of a switch, whose heads are added in stream",
    source="the idea of Liu et al. (AllReduce-Switch), IEEE TCAS-I 2021; frames are ours",
    key="place in the sequence of the port",
    numbers="int32 that wraps around and float32, in the order of the ports",
    reliability="in sequence only; full queues pause their senders; what is missing is sent again from there on",
    result_path="to all ports, from the root of the switches down",
    sizing="min(rate of the link, window x frame / round trip), while ports x rate <= width of the bus x clock",
    values=256,
    most_workers=1024,
)
