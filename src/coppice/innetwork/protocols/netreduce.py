"""NetReduce, for who chooses among protocols."""

from __future__ import annotations

from coppice.innetwork.protocols.protocol import SwitchProtocol

NETREDUCE = SwitchProtocol(
    name="netreduce",
    title="reliable connections in a ring of hosts; a switch puts sums into their packets",
    source="Liu et al., arXiv 2009.09736; ASPLOS 2023",
    key="message and position, found by flow and packet number",
    numbers="int32 that wraps around; float32 added in the order of the workers, or as fixed point",
    reliability="go-back-N from host to host; sums of the last two windows of messages are kept in the switch",
    result_path="in each host's own packets, on to the next host",
    sizing="min(rate of the link, messages of the window / round trip); a window of messages waits in the switch",
    values=256,
    most_workers=64,
)
