"""What the simulator assumes about machines."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import isfinite

from coppice.errors import InputError
from coppice.schedule.cost import HOP_OVERHEAD_US

__all__ = ["DEFAULT_MODEL", "Model", "Sharing"]


class Sharing(enum.StrEnum):
    """How messages share a link."""

    FIFO = "fifo"
    """A link serves one message at a time, in order of arrival."""
    FAIR = "fair"
    """All messages on a link at once, at max-min fair rates."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a message costs beside the rates and latencies of its links.

    Attributes:
        overhead_us: Time that every message takes before its first link, where a GPU sends it.
        sharing: How messages share a link.
        store_and_forward: Switches forward whole messages only, instead of passing bytes on as they come (FIFO).
        send_engines: Messages that a GPU can send at a time; 0 is any number.
        receive_engines: Messages that a GPU can receive, and add, at a time; 0 is any number.
        reduce_gb_per_s: Rate at which a GPU adds what it has received; None: adding takes no time.

    Examples:
        >>> Model(send_engines=1, receive_engines=1).overhead_us
        1.0
    """

    overhead_us: float = HOP_OVERHEAD_US
    sharing: Sharing = Sharing.FIFO
    store_and_forward: bool = False
    send_engines: int = 0
    receive_engines: int = 0
    reduce_gb_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.sharing not in tuple(Sharing):
            msg = f"expected sharing `fifo` or `fair`, found {self.sharing!r}."
            raise InputError(msg)
        object.__setattr__(self, "sharing", Sharing(self.sharing))
        if not (isfinite(self.overhead_us) and self.overhead_us >= 0):
            msg = f"expected an overhead of 0 or more microseconds, found {self.overhead_us}."
            raise InputError(msg)
        for name in ("send_engines", "receive_engines"):
            if not 0 <= getattr(self, name) < 2**31:
                msg = f"expected {name} of 0 (any number) or more, found {getattr(self, name)}."
                raise InputError(msg)
        rate = self.reduce_gb_per_s
        if rate is not None and not (isfinite(rate) and rate > 0):
            msg = f"expected a rate of adding above 0 GB/s, found {rate}: leave it out where adding is free."
            raise InputError(msg)
        if self.store_and_forward and self.sharing is Sharing.FAIR:
            msg = "expected cut-through switches with fair sharing, found store-and-forward: choose sharing `fifo`."
            raise InputError(msg)


DEFAULT_MODEL = Model()
"""First in, first out, cut-through, 1 us a message, any number of messages at a time."""
