"""What a model answers: time, throughput, memory in the switch, error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any


def microseconds(size_bytes: float, gb_per_s: float) -> float:
    """Time of bytes at a rate.

    >>> microseconds(1_000_000, 12.5)
    80.0
    """
    return size_bytes / (float(gb_per_s) * 1000)


@dataclass(frozen=True, kw_only=True)
class AggregationEstimate:
    """What one system reaches in one case."""

    system: str  # Its name here
    time_us: float  # Time of the all-reduce in microseconds
    # Bytes of the tensor over time for a tensor that never ends, in GB/s: what windows, frames and loss leave
    # of the link
    gb_per_s: float
    # Memory in the switch (of all jobs); None: the system has no switch that stores anything
    memory_bytes: int | None
    error: float | None  # Bound of a sum's error where no value is larger than 1; None: there is none
    model: str  # The formula
    source: str  # Where it comes from
    # Bytes on a worker's link each way for each byte of the tensor, with the heads of frames
    link_bytes: Fraction = Fraction(1)
    details: Mapping[str, float] = field(default_factory=dict)  # Further figures by name

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
