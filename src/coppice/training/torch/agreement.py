"""Agreement between ranks: check that arguments are equal, and broadcast what the first rank finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from coppice.arguments import shown
from coppice.errors import CheckError, CoppiceError, InputError

_KINDS: dict[str, type[CoppiceError]] = {kind.__name__: kind for kind in (InputError, CheckError)}


def broadcast_from_first(
    find: Callable[[], Any],
    *,
    first: int,
    group: dist.ProcessGroup | None,
    device: torch.device | None = None,  # Where the group takes bytes from; None: the group knows
) -> Any:
    """Result of a function on the first rank, on every rank; its error is raised everywhere."""
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
    raise CheckError(f"expected rank {first} to say how to go on, found that it failed ({said}).")


def require_equal_arguments(told: Mapping[str, object], call: str, group: dist.ProcessGroup | None) -> None:
    """Check that all ranks passed equal arguments, since unequal ones would deadlock later.

    Args:
        told: What this rank was told, by argument: numbers, words, and what is made of them. Other things are left
            out.
        group: The ranks; None: all.
    """
    own = {key: value for key, value in told.items() if _is_plain(value)}
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    for rank, other in enumerate(everyone):
        differing = next((key for key in {**own, **other} if own.get(key) != other.get(key)), None)
        if differing is not None:
            raise InputError(
                f"expected the same {differing} on all ranks, found {shown(own.get(differing))} on this rank and "
                f"{shown(other.get(differing))} on rank {rank}: call {call} alike on all."
            )


def _is_plain(value: object) -> bool:
    """Whether a value is a number, a string, None, or a container of those."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
