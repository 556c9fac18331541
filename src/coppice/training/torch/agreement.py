"""What the first rank finds out by itself, told to all; if it fails, all fail with its sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import CheckError, CoppiceError, InputError

__all__ = ["told_by_first"]

_KINDS: dict[str, type[CoppiceError]] = {kind.__name__: kind for kind in (InputError, CheckError)}


def told_by_first(
    find: Callable[[], Any],
    *,
    first: int,
    group: dist.ProcessGroup | None,
    device: torch.device | None = None,
) -> Any:
    """What the first rank finds, on every rank.

    Args:
        find: Called on that rank only.
        first: Its global rank.
        group: The ranks.
        device: Where the group takes bytes from; None: the group knows.

    Raises:
        CoppiceError: On every rank, what the first one raised; CheckError where that was another error.
    """
    told: list[Any] = [None, None, None]
    raised: Exception | None = None
    if dist.get_rank() == first:
        try:
            told[0] = find()
        except Exception as error:  # noqa: BLE001 (raised below, on all ranks)
            raised = error
            kind = next((name for name, each in _KINDS.items() if isinstance(error, each)), "")
            told = [None, kind, str(error) if kind else f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(told, src=first, group=group, device=device)
    if raised is not None:
        raise raised
    found, kind, said = told
    if kind is None:
        return found
    if kind:
        raise _KINDS[kind](said)
    msg = f"expected rank {first} to say how to go on, found that it failed ({said})."
    raise CheckError(msg)
