"""What a model answers: time, throughput, memory in the switch, error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

__all__ = ["AggregationEstimate", "microseconds"]


def microseconds(size_bytes: float, gb_per_s: float) -> float:
    """Time of bytes at a rate.

    >>> microseconds(1_000_000, 12.5)
    80.0
    """
    return size_bytes / (float(gb_per_s) * 1000)


@dataclass(frozen=True, kw_only=True)
class AggregationEstimate:
    """What one system reaches in one case.

    Attributes:
        system: Its name here.
        time_us: Time of the all-reduce in microseconds.
        gb_per_s: Bytes of the tensor over time for a tensor that never ends, in GB/s: what windows, frames and loss
            leave of the link.
        memory_bytes: Memory in the switch (of all jobs); None: the system has no switch that stores anything.
        error: Bound of a sum's error where no value is larger than 1; None: there is none.
        model: The formula.
        link_bytes: Bytes on a worker's link each way for each byte of the tensor, with the heads of frames.
        source: Where it comes from.
        details: Further figures by name.
    """

    system: str
    time_us: float
    gb_per_s: float
    memory_bytes: int | None
    error: float | None
    model: str
    source: str
    link_bytes: Fraction = Fraction(1)
    details: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "system": self.system,
            "time_us": self.time_us,
            "gb_per_s": self.gb_per_s,
            "memory_bytes": self.memory_bytes,
            "error": self.error,
            "model": self.model,
            "source": self.source,
            "link_bytes": float(self.link_bytes),
            "details": dict(self.details),
        }
