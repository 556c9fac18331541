"""Trees of tensors as plain data: packed on the CPU, bit for bit, and unpacked in place.

A tensor becomes ``{"__tensor__": cpu tensor, "device": name, "sharded": flag}``; of a DTensor every rank packs its own
shard. Dictionaries, lists and tuples are followed; anything else must be an immutable value. Packed trees hold nothing
that ``torch.load(weights_only=True)`` refuses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from coppice.errors import InputError

__all__ = ["copy_into", "is_tensor", "pack", "unpack"]

_TENSOR = "__tensor__"
_VALUES = (bool, int, float, complex, str, bytes, type(None))


def is_tensor(packed: object) -> bool:
    """Whether a packed value is a tensor."""
    return isinstance(packed, dict) and _TENSOR in packed


def pack(value: Any, reuse: Any = None) -> Any:
    """A copy of ``value`` on the CPU.

    Args:
        value: A tensor, a plain value, or dictionaries, lists and tuples of such.
        reuse: A tree packed earlier whose memory may be overwritten; where it does not fit it is ignored. Copies from a
            GPU into pinned memory are asynchronous: synchronize before they are read.

    Raises:
        InputError: If something else is found.
    """
    if isinstance(value, torch.Tensor):
        local = _local(value.detach())
        old = reuse[_TENSOR] if is_tensor(reuse) else None
        if old is None or old.shape != local.shape or old.dtype != local.dtype:
            old = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
        old.copy_(local, non_blocking=True)
        return {_TENSOR: old, "device": str(local.device), "sharded": isinstance(value, DTensor)}
    if isinstance(value, dict):
        olds = reuse if isinstance(reuse, dict) else {}
        return {key: pack(item, olds.get(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        kept = reuse if isinstance(reuse, list | tuple) and len(reuse) == len(value) else [None] * len(value)
        items = [pack(item, old) for item, old in zip(value, kept, strict=True)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, _VALUES):
        return value
    msg = (
        f"expected tensors, numbers, text, lists and dictionaries in the state to save, found {type(value).__name__}: "
        "give such an object to `also` with a state_dict of plain values."
    )
    raise InputError(msg)


def unpack(packed: Any, *, current: Any = None, like: torch.Tensor | None = None) -> Any:
    """The value that was packed, in memory of its own.

    Args:
        packed: What :func:`pack` returned; it is not changed and not referred to.
        current: The present value: tensors of it that fit are overwritten and returned.
        like: The parameter that the values belong to; shards become DTensors laid out as it is.
    """
    if is_tensor(packed):
        saved = packed[_TENSOR]
        if isinstance(current, torch.Tensor) and _fits(current, packed):
            copy_into(current, packed)
            return current
        local = torch.empty_like(saved, device=packed["device"], pin_memory=False).copy_(saved)
        if packed["sharded"] and isinstance(like, DTensor):
            return DTensor.from_local(
                local,
                like.device_mesh,
                like.placements,
                run_check=False,
                shape=like.shape,
                stride=like.stride(),
            )
        return local
    if isinstance(packed, dict):
        now = current if isinstance(current, dict) else {}
        return {key: unpack(item, current=now.get(key), like=like) for key, item in packed.items()}
    if isinstance(packed, list | tuple):
        olds = (
            current
            if isinstance(current, list | tuple) and len(current) == len(packed)
            else [None] * len(packed)
        )
        items = [unpack(item, current=old, like=like) for item, old in zip(packed, olds, strict=True)]
        return items if isinstance(packed, list) else tuple(items)
    return packed


def copy_into(tensor: torch.Tensor, packed: Any) -> None:
    """Overwrite a tensor (of a DTensor: this rank's shard) with what was packed of it.

    Raises:
        InputError: If shape, type or sharding changed since.
    """
    if not _fits(tensor, packed):
        saved = packed[_TENSOR]
        local = _local(tensor)
        msg = (
            f"expected a tensor of {tuple(saved.shape)} {saved.dtype}, as was saved, found {tuple(local.shape)} "
            f"{local.dtype}: restore into the same model, sharded alike."
        )
        raise InputError(msg)
    with torch.no_grad():
        _local(tensor).copy_(packed[_TENSOR], non_blocking=True)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    if isinstance(tensor, DTensor):
        with torch.no_grad():
            return tensor.to_local()
    return tensor


def _fits(tensor: torch.Tensor, packed: Any) -> bool:
    saved, local = packed[_TENSOR], _local(tensor)
    sharded: bool = packed["sharded"]
    return (
        local.shape == saved.shape and local.dtype == saved.dtype and isinstance(tensor, DTensor) is sharded
    )
