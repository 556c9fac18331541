"""A window of packets, each in a slot of its own: how long a tensor takes, and what it reaches if it never ends.

After SwitchML (NSDI 2021), derived: packet i
leaves when packet i - 1 has left and the answer to packet i - window has come, so a tensor is limited by its link or
by its window.
"""

from __future__ import annotations

from math import ceil

from coppice.innetwork.models.frames import ValueFrame


def turn_us(window: int, *, wire_us: float, rtt_us: float) -> float:
    """Time from one packet of a slot to its next: a round trip, or the wire's time of a window.

    Args:
        wire_us: Time of a packet on the link.
        rtt_us: From its last bit to its answer.
    """
    return max(window * wire_us, rtt_us + wire_us)


def window_gb_per_s(frame: ValueFrame, window: int, *, gb_per_s: float, rtt_us: float) -> float:
    """Bytes of values over time: min(B x efficiency, window x payload / (RTT + packet's time)).

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
    """The fewest slots with which the link never waits.

    >>> slots_for_line_rate(wire_us=ValueFrame(values=256).wire_us(12.5), rtt_us=6)
    69
    """
    return ceil((rtt_us + wire_us) / wire_us)


def tensor_us(packets: int, window: int, *, wire_us: float, rtt_us: float) -> float:
    """Time of so many packets, from the first bit sent to the last answer; exact where no packet is lost.

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
