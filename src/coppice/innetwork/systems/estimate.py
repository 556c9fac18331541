"""Input and output of the models: workers, links, the switch and loss; time, throughput, memory and numerical error.

How far a sum may be from the exact one, for values that are no larger than 1.

Bounds, not estimates: tests draw values and compare. Half a unit in the last place of a float32 is 2^-24 of the value.

Input of the models: workers, links, the switch between them, and loss. Systems whose links lose nothing by assumption,
or leave loss to a transport below them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite
from typing import TYPE_CHECKING

from coppice.errors import InputError

if TYPE_CHECKING:
    from coppice.outputs.shapes.switches import SystemEstimateJson


_SLOTS = 128
_COUNTS = (
    "workers",
    "slots",
    "values",
    "jobs",
    "tiers",
    "gpus",
    "nics",
    "window",
    "message_bytes",
    "table_pairs",
    "radix",
    "trees",
    "racks",
)
_TIMES = ("rtt_us", "timeout_us", "pass_us", "skew_us")
_RATES = (
    "gb_per_s",
    "box_gb_per_s",
    "server_gb_per_s",
    "adding_gb_per_s",
    "recirculation_gb_per_s",
    "uplink_gb_per_s",
)


@dataclass(frozen=True, kw_only=True)
class AggregationCase:
    """One all-reduce among identical workers, around a switch or a tree of switches.

    A model reads what it knows and leaves the rest alone.

    Raises:
        InputError: If a value is out of range.

    Examples:
        >>> AggregationCase(workers=8, gb_per_s=Fraction(25, 2)).rtt_us
        6.0
        >>> AggregationCase(workers=1, gb_per_s=Fraction(1))
        Traceback (most recent call last):
        ...
        coppice.errors.InputError: expected 2 workers or more, found 1: one alone has nothing to add.
    """

    workers: int  # GPUs that take part
    # Rate of a worker's link to the switch (of a NIC where boxes have several GPUs), each direction, GB/s
    gb_per_s: Fraction
    # From the last bit of a packet leaving a worker to its answer being all there, with idle queues and no
    # contribution of another worker missing, through one tier
    rtt_us: float = 6.0
    # Slots (aggregators) of the switch, shared evenly by the jobs that own them; None: 128, ATP's 40,000
    slots: int | None = None
    values: int | None = None  # Values of 4 bytes in a packet; None: what the system has (256, or 62 for ATP)
    loss: float = 0.0  # Probability that a packet is lost, in each direction and for each worker by itself
    timeout_us: float = 10_000.0  # Time after which a worker sends a packet again
    jobs: int = 1  # Jobs that share the switch
    tiers: int = 1  # Tiers of switches that aggregate, one above the other
    gpus: int = 1  # GPUs of a box, which reduce among themselves first (NetReduce, NVLSTree)
    nics: int = 1  # NICs of a box
    box_gb_per_s: Fraction | None = None  # Rate of a GPU inside its box; None where boxes have one GPU
    server_gb_per_s: Fraction | None = None  # Rate of a parameter server's link; None: as a worker's
    # Contributions of all workers together that the switch or the box beside it adds; None: line rate on all
    # ports
    adding_gb_per_s: Fraction | None = None
    # Rate of the loopback ports through which a packet passes a pipeline again; None: enough
    recirculation_gb_per_s: Fraction | None = None
    pass_us: float = 0.0  # Time of each further pass
    window: int = 8  # Messages that a worker may have outstanding (NetReduce)
    message_bytes: int = 65536  # Bytes of such a message
    table_pairs: int | None = None  # Pairs of key and value that a switch holds (SwitchAgg); None: all keys
    skew_us: float = 1.0  # Time by which workers are apart (streaming adders)
    radix: int = 32  # Children of a switch in a tree (SHARP)
    racks: int = 1  # Racks of as many workers each, joined by a core (NetAgg)
    racks_with_boxes: int | None = None  # Racks with a box of their own; None: all
    # Rate of a rack's link to the core; None: that of all its workers
    uplink_gb_per_s: Fraction | None = None
    trees: int = 1  # Jobs that a switch can reduce for at a time (SHARP from version 3 on)

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise InputError(
                f"expected 2 workers or more, found {self.workers}: one alone has nothing to add."
            )
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**40:
                raise InputError(f"expected `{name}` of 1 or more, found {value}.")
        for name in _TIMES:
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise InputError(f"expected `{name}` of 0 or more microseconds, found {value}.")
        for name in _RATES:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"expected `{name}` above 0 GB/s, found {value}.")
        if not 0 <= self.loss <= 0.5:
            raise InputError(f"expected `loss` as a probability of 0 to 0.5, found {self.loss}.")
        if self.radix < 2:
            raise InputError(
                f"expected `radix` of 2 or more, found {self.radix}: a switch with one child adds nothing."
            )
        if self.workers % self.racks or not 0 <= (self.racks_with_boxes or 0) <= self.racks:
            raise InputError(
                f"expected racks of as many workers each, and no more with boxes, found {self.workers} workers, "
                f"{self.racks} racks, {self.racks_with_boxes} with boxes: change `racks`."
            )
        if self.workers % self.gpus:
            raise InputError(
                f"expected boxes of {self.gpus} GPUs to make up all {self.workers} workers, found a rest of "
                f"{self.workers % self.gpus}: change `gpus`."
            )

    @property
    def boxes(self) -> int:
        """Number of boxes that the workers are in."""
        return self.workers // self.gpus

    @property
    def server(self) -> Fraction:
        """Rate of a parameter server's link in GB/s."""
        return self.gb_per_s if self.server_gb_per_s is None else self.server_gb_per_s

    @property
    def all_slots(self) -> int:
        """Slots of the switch where jobs own theirs."""
        return _SLOTS if self.slots is None else self.slots

    @property
    def own_slots(self) -> int:
        """Slots of one job where jobs share them evenly."""
        if self.all_slots < self.jobs:
            raise InputError(
                f"expected a slot for each of {self.jobs} jobs, found {self.all_slots}: give more `slots`."
            )
        return self.all_slots // self.jobs


def refuse_loss(case: AggregationCase, title: str, relied: str) -> None:
    """Refuse a case with loss.

    Examples:
        >>> from fractions import Fraction
        >>> refuse_loss(AggregationCase(workers=2, gb_per_s=Fraction(1), loss=0.1), "NVLS", "the links")
        Traceback (most recent call last):
        ...
        coppice.errors.InputError: expected links without loss, found `loss=0.1`: NVLS relies on the links for that.
    """
    if case.loss:
        raise InputError(
            f"expected links without loss, found `loss={case.loss:g}`: {title} relies on {relied} for that."
        )


@dataclass(frozen=True, kw_only=True)
class SwitchProtocol:
    """Description of a protocol; its state machines are native, under the same ``name``."""

    name: str  # As users write it
    title: str  # What it is, in half a line
    source: str  # Paper or program that it follows
    key: str  # What tells a switch which sum a packet belongs to
    numbers: str  # How values are added up
    reliability: str  # What happens to packets that are lost, doubled or late
    result_path: str  # How sums reach the workers
    sizing: str  # What its throughput comes from
    values: int  # Values in a packet where nothing else is asked for
    most_workers: int | None = None  # Below one switch; None where nothing limits them


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
