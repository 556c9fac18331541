"""Goodput of frames: the share of a link's rate that carries values, with heads, tails and gaps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

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
