"""Performance of a switch for packets in slots, and for frames as they stream through.

After SwitchML (NSDI 2021), derived: packet i leaves when packet i - 1 has left and the answer to packet i - window has
come, so a tensor is limited by its link or by its window.

What loss costs a window of slots with time-outs, derived; the packet simulation measures the same quantities.

n workers share s slots. In a *turn* of a slot each worker sends one packet up; when all n are there the sum goes down
to all n. A packet is lost with probability p on its way up and, by itself, on its way down; a worker that has no answer
sends again every ``timeout_us``, and gets a lost answer again from the copy that the slot keeps (the shadow copy).

* Of one worker in one turn, let U be how often its packet has to be sent again until one arrives,
  P(U >= k) = p^k, and V how often it has to ask again once the sum exists: none with probability 1 - p, then each time
  both ways have to go well, P(V >= k) = p (1 - (1 - p)^2)^(k - 1).
* A worker's next packet of the slot leaves when it has the last sum; the next sum is there when the slowest one's
  packet is. So a turn takes max over workers of (V + U) time-outs more than without loss: the sum of m turns is
  max U + (m - 1) terms of max (V + U) + max V, independent of each other.
* Slots are independent, and the tensor is done with its last slot: E[max over slots] of these sums.

* A wait falls anywhere in the tensor. Before it the slot shares the link with all others; what is left after it the
  slot sends alone, if the others are done by then. So the time is between that of a link which is never better used
  (time without loss, and the waits on top) and that of a slot alone (its turns at a round trip each, and the waits), or
  that without loss where this is longer. The mean of the two is taken; where the window limits they are the same.

Assumed: the time-out is longer than a turn (nothing is sent again in vain); phases of time-outs are alike for all
workers; what is sent again takes no time of the link but in the limit of endless tensors. To the first order in p a
turn waits 2 n p time-outs.

A switch that adds frames as they stream through: queues absorb the skew of workers, pauses replace loss. Liu et al., a
scalable and fully pipelined switch for all-reduce (AllReduce-Switch, IEEE TCAS-I 2021); the timing is derived.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log2, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.innetwork.systems.estimate import (
    AggregationCase,
    AggregationEstimate,
    SwitchProtocol,
    float32_sum,
    microseconds,
    refuse_loss,
)

_TAIL = 1e-17
_MOST_CELLS = 2**24
_WIRE = 14 + 4 + 20  # Ethernet head, check sequence, preamble and gap

ROCE_BYTES = _WIRE + 20 + 8 + 12 + 4
"""Beside the payload of an RDMA packet over UDP: IPv4, UDP, the base transport head, its check sum."""

UDP_BYTES = _WIRE + 20 + 8 + 10
"""Beside the values of a SwitchML packet over UDP: IPv4, UDP, and its own head with two exponents."""

ATP_BYTES = _WIRE + 20 + 26
"""Beside the values of an ATP packet: 34 bytes up to the end of IPv4, then 274 of which 248 are values."""


@dataclass(frozen=True, kw_only=True)
class ValueFrame:
    """A packet of values as a frame on the wire.

    Examples:
        >>> [f"{float(ValueFrame(values=k).efficiency):.1%}" for k in (256, 64)]
        ['92.6%', '75.7%']
        >>> ROCE_BYTES, UDP_BYTES, ATP_BYTES
        (82, 76, 84)
    """

    values: int  # Values of 4 bytes
    overhead_bytes: int = ROCE_BYTES  # All other bytes that it takes on the link

    @property
    def payload_bytes(self) -> int:
        """Bytes of the frame that are values."""
        return 4 * self.values

    @property
    def size_bytes(self) -> int:
        """Bytes of the frame on the wire."""
        return self.payload_bytes + self.overhead_bytes

    @property
    def efficiency(self) -> Fraction:
        """Share of the bytes on the wire that are values (SwitchML, NSDI 2021: 82 B + 4k a frame)."""
        return Fraction(self.payload_bytes, self.size_bytes)

    def wire_us(self, gb_per_s: float | Fraction) -> float:
        """Serialisation time of the frame on a link.

        >>> round(ValueFrame(values=256).wire_us(12.5), 5)
        0.08848
        """
        return self.size_bytes / (float(gb_per_s) * 1000)


def turn_us(window: int, *, wire_us: float, rtt_us: float) -> float:
    """Time from one packet of a slot to its next: a round trip, or a window's time on the wire.

    Args:
        wire_us: Time of a packet on the link.
        rtt_us: From its last bit to its answer.
    """
    return max(window * wire_us, rtt_us + wire_us)


def window_gb_per_s(frame: ValueFrame, window: int, *, gb_per_s: float, rtt_us: float) -> float:
    """Steady-state goodput: min(B x efficiency, window x payload / (RTT + packet's time)).

    Args:
        rtt_us: From the last bit of a packet to its answer.

    Examples:
        At 100 Gb/s (12.5 GB/s), in Gb/s:

        >>> [round(8 * window_gb_per_s(ValueFrame(values=256), s, gb_per_s=12.5, rtt_us=6), 1) for s in (32, 64, 128)]
        [43.1, 86.1, 92.6]
    """
    wire = frame.wire_us(gb_per_s)
    return window * frame.payload_bytes / turn_us(window, wire_us=wire, rtt_us=rtt_us) / 1000


def slots_for_line_rate(*, wire_us: float, rtt_us: float) -> int:
    """Fewest slots that reach line rate.

    >>> slots_for_line_rate(wire_us=ValueFrame(values=256).wire_us(12.5), rtt_us=6)
    69
    """
    return ceil((rtt_us + wire_us) / wire_us)


def tensor_us(packets: int, window: int, *, wire_us: float, rtt_us: float) -> float:
    """Time of so many packets, from the first bit sent to the last answer; exact without loss.

    Args:
        packets: Packets of the tensor, 1 or more.
        wire_us: Time of a packet on the link.
        rtt_us: From its last bit to its answer.

    Examples:
        >>> tensor_us(4, 2, wire_us=1, rtt_us=10), tensor_us(4, 100, wire_us=1, rtt_us=10)
        (23, 14)
    """
    turns, behind = divmod(packets - 1, window)
    return turns * turn_us(window, wire_us=wire_us, rtt_us=rtt_us) + behind * wire_us + wire_us + rtt_us


class TurnWaits(NamedTuple):
    """Distributions of the time-outs that pass, ``[k]`` the probability of k."""

    first: NDArray[np.float64]  # Until the first sum of a slot is there
    between: NDArray[np.float64]  # From one sum to the next
    last: NDArray[np.float64]  # Until all have the last sum


def turn_waits(loss: float, workers: int) -> TurnWaits:
    """Distributions of the time-outs that one round of a slot waits for.

    Args:
        loss: Probability that a packet is lost, each way; below 1.

    Examples:
        >>> waits = turn_waits(0.5, 1)
        >>> [round(float(p), 4) for p in waits.first[:3]], [round(float(p), 4) for p in waits.last[:3]]
        ([0.5, 0.25, 0.125], [0.5, 0.125, 0.0938])
    """
    if not loss:
        nothing = np.ones(1)
        return TurnWaits(nothing, nothing, nothing)
    failing = 1 - (1 - loss) ** 2
    most = ceil(np.log(_TAIL) / np.log(failing)) + 8
    k = np.arange(most)
    up = (1 - loss) * loss**k
    down = np.where(k == 0, 1 - loss, loss * (1 - failing) * failing ** np.maximum(k - 1, 0))
    both = np.convolve(up, down)[:most]
    return TurnWaits(*(_slowest(each, workers) for each in (up, both, down)))


def mean_waits(loss: float, workers: int) -> float:
    """Mean number of time-outs that one round of a slot waits for.

    Examples:
        >>> mean_waits(0.0, 8), round(mean_waits(1e-4, 8), 6), round(mean_waits(0.01, 8), 4)
        (0.0, 0.001599, 0.1518)
    """
    between = turn_waits(loss, workers).between
    return float(np.arange(len(between)) @ between)


def expected_waits(packets: int, window: int, *, loss: float, workers: int) -> float:
    """Mean number of time-outs that a tensor waits for in its slowest slot.

    Args:
        loss: Probability that a packet is lost, each way.

    Examples:
        >>> expected_waits(1024, 64, loss=0.0, workers=8)
        0.0
        >>> round(expected_waits(1024, 64, loss=1e-4, workers=8), 2)
        0.83
    """
    if not loss:
        return 0.0
    waits = turn_waits(loss, workers)
    turns, longer = divmod(packets, window)
    held = np.ones(1)
    for slots, count in ((window - longer, turns), (longer, turns + 1)):
        if slots and count:
            below = np.cumsum(_sum(waits, count)) ** slots
            size = max(len(held), len(below))
            held = _padded(held, size) * _padded(below, size)
    return float(np.sum(1 - np.minimum(held, 1)))


def lossy_tensor_us(
    packets: int,
    window: int,
    *,
    wire_us: float,  # Time of a packet on the link
    rtt_us: float,  # From its last bit to its answer
    timeout_us: float,  # Until a worker sends a packet again
    loss: float,  # Probability that a packet is lost, each way
    workers: int,
) -> float:
    """Expected time of a tensor, from the first bit sent to the last answer.

    Examples:
        >>> case = {"wire_us": 0.1, "rtt_us": 6.0, "timeout_us": 1000.0, "workers": 8}
        >>> [round(lossy_tensor_us(1024, 64, loss=p, **case), 1) for p in (0, 1e-4, 1e-3)]
        [108.4, 928.4, 2053.7]
    """
    plain = tensor_us(packets, window, wire_us=wire_us, rtt_us=rtt_us)
    waited = timeout_us * expected_waits(packets, window, loss=loss, workers=workers)
    alone = ceil(packets / window) * (rtt_us + wire_us) + waited
    return (plain + waited + max(plain, alone)) / 2


def _slowest(each: NDArray[np.float64], workers: int) -> NDArray[np.float64]:
    """Distribution of the maximum of so many."""
    below = np.minimum(np.cumsum(each), 1) ** workers
    below[-1] = 1
    found: NDArray[np.float64] = np.diff(below, prepend=0)
    return found


def _sum(waits: TurnWaits, turns: int) -> NDArray[np.float64]:
    """Distribution of the time-outs of a slot over all its rounds."""
    ends = np.convolve(waits.first, waits.last)
    if turns == 1:
        return ends
    k = np.arange(len(waits.between))
    mean = float(k @ waits.between)
    spread = sqrt(max(0.0, float(k**2 @ waits.between) - mean**2) * turns)
    size = ceil(mean * turns + 20 * spread) + 4 * len(k) + len(ends)
    if size > _MOST_CELLS:
        raise InputError(
            f"expected less loss or fewer packets, found {turns:,} turns of a slot: its waits have no short list."
        )
    cells = 1 << (size - 1).bit_length()
    many = np.fft.rfft(waits.between, cells) ** (turns - 1) * np.fft.rfft(ends, cells)
    return np.maximum(np.fft.irfft(many, cells), 0)


def _padded(below: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Pad a cumulative distribution with ones at its end."""
    return np.concatenate([below, np.ones(size - len(below))])


def fifo_bytes(workers: int, *, gb_per_s: Fraction, skew_us: float) -> int:
    """Bytes of all ports' queues: what arrives while the last worker is late, n x skew x B.

    >>> fifo_bytes(8, gb_per_s=Fraction(5, 4), skew_us=10)
    100000
    """
    return ceil(workers * float(gb_per_s) * 1000 * skew_us)


def streaming(case: AggregationCase, size_bytes: int) -> AggregationEstimate:
    """Estimate the streaming switch: x / B as long as the adders take all ports, n B <= bus x clock.

    Examples:
        >>> case = {"workers": 8, "gb_per_s": Fraction(5, 4)}
        >>> from coppice.innetwork.systems.hosts import ring
        >>> round(ring(AggregationCase(**case), 1).gb_per_s / 1.25, 3)
        0.571
        >>> round(streaming(AggregationCase(**case), 1).gb_per_s / 1.25, 3)
        0.926
        >>> round(streaming(AggregationCase(**case, adding_gb_per_s=Fraction(5)), 1).gb_per_s / 1.25, 3)
        0.463
    """
    refuse_loss(case, "a switch of streaming adders", "pauses")
    frame = ValueFrame(values=case.values or 256)
    rate = case.gb_per_s
    if case.adding_gb_per_s is not None:
        rate = min(rate, case.adding_gb_per_s / case.workers)
    rate *= frame.efficiency
    return AggregationEstimate(
        system="streaming",
        time_us=microseconds(size_bytes, float(rate)) + case.rtt_us * case.tiers + case.skew_us,
        gb_per_s=float(rate),
        memory_bytes=fifo_bytes(case.workers, gb_per_s=case.gb_per_s, skew_us=case.skew_us) * case.jobs,
        error=float32_sum(case.workers, depth=ceil(log2(case.workers))),
        model="x/min(B, A/n) 4k/(4k+82) + RTT + skew; queues n skew B",
        source="Liu et al., IEEE TCAS-I 2021",
        link_bytes=1 / frame.efficiency,
    )


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
