"""Functions that torch.compile leaves to Python: they wait for other ranks, or take times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])

UPDATES_ARE_LATE = (
    "the policy of schedule() updates parameters late: call optimizer.flush() before what is compiled"
)
"""Why a graph is broken where a module waits for its parameters."""


def uncompiled(reason: str) -> Callable[[_Function], _Function]:
    """A function that compiled code calls as it is.

    Args:
        reason: Why; torch says it where a graph must not be broken.
    """
    found: Any = torch.compiler.disable(reason=reason)  # type: ignore[no-untyped-call]
    return found  # type: ignore[no-any-return]
