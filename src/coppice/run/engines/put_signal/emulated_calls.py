"""Outstanding work of the emulated device: calls, their messages, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.run.engines.put_signal.device import Put


@dataclass(eq=False, slots=True)
class EmulatedCall:
    """A call that was issued."""

    blockers: int = 0
    left: int = 0
    over: bool = False
    captured: bool = False
    start: Callable[[], None] | None = None
    followers: list[EmulatedCall] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class EmulatedMessage:
    """A put or signal under way."""

    put: Put
    communicator: int
    call: EmulatedCall
    data: NDArray[np.uint8] | None = None
    landed: bool = False


@dataclass(eq=False, slots=True)
class EmulatedWait:
    """Signals that a call waits for: up to the ``number``-th of an eager counter, or so many of a captured one."""

    counter: tuple[int, int, int]
    number: int
    call: EmulatedCall
