"""Time models: per-message costs and limits on top of link rates and latencies."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import isfinite

from coppice.errors import InputError


class Sharing(enum.StrEnum):
    """Link sharing discipline: FIFO or max-min fair."""

    FIFO = "fifo"
    """A link serves one message at a time, in order of arrival."""
    FAIR = "fair"
    """All messages on a link at once, at max-min fair rates."""


def protocol_text(name: str) -> str:
    """Display name of a protocol.

    >>> protocol_text("ll128"), protocol_text("simple")
    ('LL128', 'Simple')
    """
    return name.upper() if name.startswith("ll") else name.capitalize()


@dataclass(frozen=True, kw_only=True)
class Model:
    """Per-message costs and limits on top of link rates and latencies.

    The terms are those of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995): latency, and an occupancy of
    what handles messages at either end. Models with figures for libraries and machines have names: see
    :mod:`coppice.simulation.models`.

    Raises:
        InputError: If a value is out of range, or values contradict each other.

    Examples:
        >>> Model(send_engines=1, receive_engines=1).overhead_us
        1.0
    """

    name: str = "ideal"  # What it is called in everything that shows a time
    # Time that every message takes before its first link, where a GPU sends it. A protocol has its own.
    overhead_us: float = 1.0
    launch_us: float = 0.0  # Time before the first message, on top of what a protocol takes to start
    # A rank begins a step of an algorithm when it has done the step before, as in MPI; otherwise only data
    # bind, as for the channels of a GPU library
    steps_bind: bool = True
    buffered: bool = False  # A sender goes on when a message has left it, not when it has arrived
    # Messages that a GPU handles at a time at its ends (thread blocks, cores); 0: any number, which makes an
    # occupancy a latency
    workers: int = 0
    # All GPUs share these workers, as processes that share the cores of one machine do
    shared_workers: bool = False
    send_us: float = 0.0  # Time for which a message occupies a worker of its sender
    receive_us: float = 0.0  # Likewise of its receiver
    copy_gb_per_s: float | None = None  # Rate at which a worker handles bytes; None: bytes cost it nothing
    # Buffers up to this size stay in the cache of a worker, which handles them at this rate; of longer ones
    # ever less does, and from twice the size on nothing, since every pass over a buffer evicts what the next
    # one needs first. 0: all bytes alike.
    cache_bytes: int = 0
    memory_gb_per_s: float | None = None  # Rate at which a worker handles what does not stay in its cache
    # Rate at which a GPU adds what it has received; None: adding takes no time
    reduce_gb_per_s: float | None = None
    # Names of the protocols of which the fastest is taken at each size; none: all bytes on the wire are data
    # (see :mod:`coppice.simulation.channels`)
    protocols: tuple[str, ...] = ()
    channels: int | None = None  # Channels of a GPU; None: as many as it takes
    # Data that a channel carries; None: the protocol's figure for the generation of the GPUs
    channel_gb_per_s: float | None = None
    # Generation of the GPUs; None: the topology's name tells it, or nothing that depends on it counts
    generation: str | None = None
    efficiency: float = 1.0  # Share of the rate of links that wires carry at best
    # Bytes that a link lets through at once after a rest, as what limits its rate by a bucket of tokens does:
    # the bucket, full at first, fills at the rate of the link (FIFO); 0: none
    burst_bytes: int = 0
    least_piece_bytes: int = 4096  # Chunks are not cut into smaller pieces than this
    sharing: Sharing = Sharing.FIFO  # How messages share a link
    # Switches forward whole messages only, instead of passing bytes on as they come (FIFO)
    store_and_forward: bool = False
    send_engines: int = 0  # Messages that a GPU can have under way at a time; 0 is any number
    # Messages that can be under way to a GPU, or be added there, at a time; 0 is any number
    receive_engines: int = 0

    def __post_init__(self) -> None:
        if self.sharing not in tuple(Sharing):
            raise InputError(f"expected sharing `fifo` or `fair`, found {self.sharing!r}.")
        object.__setattr__(self, "sharing", Sharing(self.sharing))
        object.__setattr__(self, "protocols", tuple(name.lower() for name in self.protocols))
        for name, what in (
            ("overhead_us", "an overhead"),
            ("launch_us", "a launch"),
            ("send_us", "an occupancy of senders"),
            ("receive_us", "an occupancy of receivers"),
        ):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"expected {what} of 0 or more microseconds, found {getattr(self, name)}.")
        for name in ("send_engines", "receive_engines", "workers"):
            if not 0 <= getattr(self, name) < 2**31:
                raise InputError(f"expected {name} of 0 (any number) or more, found {getattr(self, name)}.")
        for rate, what in (
            (self.reduce_gb_per_s, "adding"),
            (self.copy_gb_per_s, "copying"),
            (self.memory_gb_per_s, "copying"),
        ):
            if rate is not None and not (isfinite(rate) and rate > 0):
                raise InputError(
                    f"expected a rate of {what} above 0 GB/s, found {rate}: leave it out where {what} is free."
                )
        if not 0 < self.efficiency <= 1:
            raise InputError(f"expected an efficiency above 0 and up to 1, found {self.efficiency}.")
        if self.least_piece_bytes < 1:
            raise InputError(f"expected a least piece of 1 byte or more, found {self.least_piece_bytes}.")
        for name, amount in (("burst", self.burst_bytes), ("cache", self.cache_bytes)):
            if not 0 <= amount < 2**62:
                raise InputError(f"expected a {name} of 0 or more bytes, found {amount}.")
        if self.burst_bytes and self.sharing is Sharing.FAIR:
            raise InputError(
                "expected links without bursts with fair sharing, found `burst_bytes`: choose sharing `fifo`."
            )
        if bool(self.cache_bytes) is (self.memory_gb_per_s is None) or (
            self.cache_bytes and self.copy_gb_per_s is None
        ):
            raise InputError(
                "expected `cache_bytes`, `copy_gb_per_s` for what it holds and `memory_gb_per_s` for the rest, or no "
                "cache, found only some of them: give all three, or leave out the first and the last."
            )
        if self.store_and_forward and self.sharing is Sharing.FAIR:
            raise InputError(
                "expected cut-through switches with fair sharing, found store-and-forward: choose sharing `fifo`."
            )
        if self.copy_gb_per_s is not None and not self.workers:
            raise InputError(
                "expected a number of workers with a rate of copying, found any number: give `workers`."
            )

    def __repr__(self) -> str:
        return f"<model {self.text}>"

    @property
    def text(self) -> str:
        """Name and parameters in one line.

        Examples:
            >>> Model(send_us=0.5, workers=1).text
            'ideal: 1 us per message beyond its links, 1 worker of a GPU for 0.5 us, fifo links'
        """
        parts = []
        if self.protocols:
            parts.append(" or ".join(map(protocol_text, self.protocols)))
        else:
            parts.append(f"{self.overhead_us:g} us per message beyond its links")
        if self.launch_us:
            parts.append(f"{self.launch_us:g} us to launch")
        if self.send_us or self.receive_us or self.copy_gb_per_s is not None:
            parts.append(self._workers_text())
        if self.efficiency < 1:
            parts.append(f"{100 * self.efficiency:.3g}% of the rate of links")
        if self.burst_bytes:
            parts.append(f"bursts of {self.burst_bytes:,} bytes")
        if self.channels is not None:
            parts.append(f"{self.channels} channels")
        parts.append(f"{self.sharing} links")
        if self.store_and_forward:
            parts.append("store-and-forward switches")
        if self.send_engines or self.receive_engines:
            parts.append(
                f"{self.send_engines or 'any'} send and {self.receive_engines or 'any'} receive engines"
            )
        if self.reduce_gb_per_s is not None:
            parts.append(f"adding at {self.reduce_gb_per_s:g} GB/s")
        return f"{self.name}: {', '.join(parts)}"

    def copying_gb_per_s(self, size_bytes: int) -> float | None:
        """Rate at which a worker copies or reduces a buffer of that size; None where it is free.

        Args:
            size_bytes: What the collective works on, M.

        Examples:
            >>> model = Model(workers=1, copy_gb_per_s=16, cache_bytes=2**20, memory_gb_per_s=4)
            >>> [model.copying_gb_per_s(size) for size in (2**20, 3 * 2**19, 2**21)]
            [16.0, 6.4, 4.0]
        """
        if self.copy_gb_per_s is None or self.memory_gb_per_s is None:
            return self.copy_gb_per_s
        inside = min(1.0, max(0.0, 2 - size_bytes / self.cache_bytes))
        return 1 / (inside / self.copy_gb_per_s + (1 - inside) / self.memory_gb_per_s)

    def _workers_text(self) -> str:
        """Occupancy in words."""
        where = "of all GPUs together" if self.shared_workers else "of a GPU"
        each = "worker" if self.workers == 1 else "workers"
        spent = (
            f"{self.send_us:g} us"
            if self.send_us == self.receive_us or not self.receive_us
            else f"{self.send_us:g} and {self.receive_us:g} us"
        )
        copying = f" and {self.copy_gb_per_s:g} GB/s" if self.copy_gb_per_s is not None else ""
        if self.memory_gb_per_s is not None:
            copying += f" ({self.memory_gb_per_s:g} GB/s beyond {self.cache_bytes:,} bytes)"
        return f"{self.workers or 'any'} {each} {where} for {spent}{copying}"


IDEAL = Model()
"""Full rate of all wires, 1 us a message, any number of messages at a time: what no software can be faster than."""
