"""What is under way on the twin: calls, their messages, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.run.engines.put_signal.device import Put


@dataclass(eq=False, slots=True)
class TwinCall:
    """A call that was issued."""

    blockers: int = 0
    left: int = 0
    over: bool = False
    captured: bool = False
    start: Callable[[], None] | None = None
    followers: list[TwinCall] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class TwinMessage:
    """A put or signal under way."""

    put: Put
    communicator: int
    call: TwinCall
    data: NDArray[np.uint8] | None = None
    landed: bool = False


@dataclass(eq=False, slots=True)
class TwinWait:
    """Signals that a call waits for: up to the ``number``-th of an eager counter, or so many of a captured one."""

    counter: tuple[int, int, int]
    number: int
    call: TwinCall
