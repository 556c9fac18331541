"""A model's estimate: time, throughput, memory in the switch, numerical error.

How far a sum may be from the exact one, for values that are no larger than 1.

Bounds, not estimates: tests draw values and compare. Half a unit in the last place of a float32 is 2^-24 of the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coppice.outputs.shapes.switches import SystemEstimateJson


def microseconds(size_bytes: float, gb_per_s: float) -> float:
    """Time in microseconds of bytes at a rate.

    >>> microseconds(1_000_000, 12.5)
    80.0
    """
    return size_bytes / (float(gb_per_s) * 1000)


@dataclass(frozen=True, kw_only=True)
class AggregationEstimate:
    """The performance of one system in one case."""

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

    def record(self) -> SystemEstimateJson:
        """The figures as JSON values."""
        return {
            "system": self.system,
            "time_us": self.time_us,
            "reached_algbw_gb_per_s": self.gb_per_s,
            "gb_per_s": self.gb_per_s,
            "memory_bytes": self.memory_bytes,
            "error": self.error,
            "formula": self.model,
            "model": self.model,
            "source": self.source,
            "link_bytes": float(self.link_bytes),
            "details": dict(self.details),
        }


def block_float(workers: int, exponent: int = 0) -> float:
    """Error of block floating point: n / (2 scale), scale = (2^31 - 1) / (n 2^e) (SwitchML, NSDI 2021, derived).

    Args:
        exponent: e, with all values up to 2^e.

    Examples:
        Eight normally distributed values are below 4 in all but few blocks:

        >>> f"{block_float(8, 2):.1e}"
        '6.0e-08'
    """
    scale = (2**31 - 1) / (workers * 2.0**exponent)
    return workers / (2 * scale)


def fixed_point(workers: int, factor: float = 1e6) -> float:
    """Error of fixed point at a factor, 10^6 in ATP (NSDI 2021), while the sum fits: n / (2 factor).

    >>> fixed_point(8)
    4e-06
    """
    return workers / (2 * factor)


def float32_sum(workers: int, *, depth: int | None = None) -> float:
    """Error of float32 values added in sequence, or in a tree of some depth: depth x n x 2^-24, to the first order.

    Args:
        depth: Additions that a value goes through; None: one after the other, n - 1.

    Examples:
        >>> float32_sum(8) == 7 * 8 * 2**-24, float32_sum(8, depth=3) == 3 * 8 * 2**-24
        (True, True)
    """
    return (workers - 1 if depth is None else depth) * workers * 2.0**-24


def fpisa_sum(workers: int) -> float:
    """Error of FPISA with a full adder (NSDI 2022, derived): each alignment cuts off less than a unit.

    A unit is 2^-23 of the largest value; n - 1 alignments of n values, and the packing of a sum of up to n. FPISA-A,
    which overwrites what it cannot align, has no bound.

    >>> fpisa_sum(8) == (7 + 8) * 2**-23
    True
    """
    return (2 * workers - 1) * 2.0**-23
