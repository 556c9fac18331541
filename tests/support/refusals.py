"""What attempts are refused with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coppice.errors import InputError


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
