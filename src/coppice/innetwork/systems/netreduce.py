"""NetReduce: a switch replaces the payloads of a ring's RDMA flows by their sums, for a window of whole messages.

NetReduce (arXiv 2009.09736; ASPLOS 2023); the closed forms are derived.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from coppice.errors import InputError
from coppice.innetwork.systems.estimate import (
    AggregationCase,
    AggregationEstimate,
    SwitchProtocol,
    float32_sum,
)
from coppice.innetwork.systems.hosts import ring_share
from coppice.innetwork.systems.windows import ValueFrame, tensor_us, turn_us


def go_back_n_slowdown(*, loss: float, workers: int, packets: int) -> float:
    """Slowdown by go-back-N: one lost packet makes all flows resend a round trip's packets (derived).

    A packet is lost somewhere with P = 1 - (1 - p)^(2 n), and then w packets are sent again: 1 + P w / (1 - P). The
    receiver's complaint about the next packet is what reports the loss, not a time-out.

    Args:
        loss: Probability that a packet is lost, each way.
        packets: Packets of a round trip, w.

    Examples:
        >>> go_back_n_slowdown(loss=0.0, workers=8, packets=69)
        1.0
        >>> round(go_back_n_slowdown(loss=1e-4, workers=8, packets=69), 3)
        1.11
    """
    lost = 1 - (1 - loss) ** (2 * workers)
    return 1 + lost * packets / (1 - lost)


def hierarchical_threshold(boxes: int, gpus: int) -> Fraction:
    """Ratio of intra-box rate to NIC rate above which the hierarchy beats a flat ring of all GPUs.

    2 (k - 1) / k / (1 - 2 / (n k)): T_h = 2 (k - 1) / k x / B_i + x / B against 2 (n k - 1) / (n k) x / B.

    Examples:
        >>> round(float(hierarchical_threshold(8, 8)), 2)
        1.81
    """
    return ring_share(gpus) / (1 - Fraction(2, boxes * gpus))


def netreduce(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate NetReduce: one stream of x / B; boxes of k GPUs reduce-scatter, send k shards across, and all-gather.

    The phases follow each other. Memory is the bound of whole messages of all flows, W x message x n.

    Examples:
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2))
        >>> round(8 * netreduce(case, 10**9).gb_per_s, 1)
        92.6
        >>> inside = AggregationCase(workers=64, gpus=8, gb_per_s=Fraction(25, 2), box_gb_per_s=Fraction(300))
        >>> round(netreduce(inside, 10**9).gb_per_s, 2)
        10.84
    """
    frame = ValueFrame(values=case.values or 256)
    rate = case.gb_per_s * min(case.nics, case.gpus)
    inside = 0.0
    if case.gpus > 1:
        if case.box_gb_per_s is None:
            raise InputError(
                f"expected the rate inside boxes of {case.gpus} GPUs, found none: give `box_gb_per_s`."
            )
        inside = float(ring_share(case.gpus) / case.box_gb_per_s)  # us for 1000 bytes
    packets = ceil(case.message_bytes / frame.payload_bytes)
    wire = packets * frame.wire_us(rate)
    messages = max(1, ceil(size_bytes / case.message_bytes))
    window, rtt = min(case.window, messages), case.rtt_us * case.tiers
    in_flight = max(1, min(case.window * packets, ceil(rtt / frame.wire_us(rate)) + 1))
    slower = go_back_n_slowdown(loss=case.loss, workers=case.boxes, packets=in_flight)
    last = size_bytes / (case.message_bytes * messages)
    across = (tensor_us(messages, window, wire_us=wire * last, rtt_us=rtt)) * slower
    endless = case.window * case.message_bytes / turn_us(case.window, wire_us=wire, rtt_us=rtt) / slower
    return AggregationEstimate(
        system="netreduce",
        time_us=across + inside * size_bytes / 1000,
        gb_per_s=1 / (1000 / endless + inside),
        memory_bytes=case.window * case.message_bytes * case.boxes * case.jobs,
        error=float32_sum(case.workers),
        model="2(k-1)/k x/B_i + max(x/(B 4k/(4k+82)), x (RTT+t)/(W m))"
        if case.gpus > 1
        else "x/B, window W m",
        source="NetReduce, arXiv 2009.09736",
        link_bytes=1 / frame.efficiency,
        details={"slowdown_by_loss": slower},
    )


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
