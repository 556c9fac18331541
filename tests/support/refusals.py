"""What attempts are refused with, and what ranks say when another one dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from coppice.errors import CheckError, InputError


def refusals(*attempts: Callable[[], Any]) -> list[str]:
    """The sentence of each attempt that is refused, and ``nothing`` of one that is not."""
    said = []
    for attempt in attempts:
        try:
            attempt()
            said.append("nothing")
        except InputError as error:
            said.append(str(error))
    return said


def until_killed(rank: int, steps: int, train: Callable[[int], Any], *, at: int) -> dict[str, Any]:
    """Train; rank 1 dies where step ``at`` begins. What the others are told, and in which step."""
    step = 0
    try:
        for step in range(steps):
            if step == at and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            train(step)
    except CheckError as error:
        return {"said": str(error), "step": step}
    return {"said": "", "step": steps}
