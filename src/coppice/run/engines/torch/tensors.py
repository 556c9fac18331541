"""Arguments of torch's collectives brought into one form, and tensors into contiguous memory and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from coppice.run.engines.datatype import DataType, ReduceOp

__all__ = [
    "as_type",
    "bounds_of",
    "c10d",
    "flat",
    "give_out",
    "listed",
    "lists_of",
    "overlap",
    "put_back",
    "reduce_op",
    "reduction_options",
    "set_timeout",
    "torch_op",
    "type_of",
]

c10d: Any = distributed_c10d
"""What torch's own Python has from its C++ side; only parts of it are public names."""

_TYPES = {getattr(torch, dtype.value): dtype for dtype in DataType}


def torch_op(op: ReduceOp) -> Any:
    """The name that torch has for a reduction."""
    return getattr(dist.ReduceOp, op.name)


_OPS = {op: torch_op(op) for op in ReduceOp}


def reduce_op(given: Any) -> ReduceOp | None:
    """The reduction that torch means, or None where it is none of ours.

    torch compares its own options with its constants from the left only: ``SUM == options.reduceOp`` is false.

    Examples:
        >>> options = c10d.AllreduceOptions()
        >>> reduce_op(options.reduceOp), dist.ReduceOp.SUM == options.reduceOp
        (<ReduceOp.SUM: 'sum'>, False)
    """
    return next((ours for ours, theirs in _OPS.items() if given == theirs), None)


def type_of(tensor: torch.Tensor) -> DataType | None:
    """The type of its elements, or None where engines do not know it."""
    return _TYPES.get(tensor.dtype)


def listed(tensors: Any) -> list[torch.Tensor]:
    """A list of tensors, also of one that stands alone."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def lists_of(tensors: Any) -> list[list[torch.Tensor]]:
    """A list of lists of tensors, also of one list."""
    return [list(tensors)] if isinstance(tensors[0], torch.Tensor) else [list(each) for each in tensors]


def reduction_options(given: Any, timeout: timedelta | None, kind: type[Any]) -> Any:
    """Options of a reduction: as given, or made of an operation."""
    options = given
    if not hasattr(given, "reduceOp"):
        options = kind()
        if given is not None:
            options.reduceOp = given
    elif not isinstance(given, kind) or isinstance(given, c10d.AllreduceCoalescedOptions):
        options = kind()
        options.reduceOp = given.reduceOp
        options.asyncOp = getattr(given, "asyncOp", True)
    set_timeout(options, timeout)
    return options


def set_timeout(options: Any, timeout: timedelta | None) -> None:
    """Put a timeout into options, if there is one."""
    if timeout is not None:
        options.timeout = timeout


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in contiguous memory: its own where that is so, otherwise a copy."""
    return tensor.detach().contiguous()


def put_back(memory: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy what :func:`flat` had to copy."""
    if memory.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(memory.view(tensor.shape))


def give_out(memory: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copy consecutive blocks to their tensors."""
    for part, first in zip(parts, bounds_of(parts), strict=False):
        part.detach().copy_(memory[first : first + part.numel()].view(part.shape))


def bounds_of(parts: Sequence[torch.Tensor]) -> list[int]:
    """First element of every part, were they one after the other, and the number of all."""
    return [0, *accumulate(part.numel() for part in parts)]


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Two contiguous tensors have memory in common."""
    ends = one.data_ptr() + one.numel() * one.itemsize, other.data_ptr() + other.numel() * other.itemsize
    return one.data_ptr() < ends[1] and other.data_ptr() < ends[0]


def as_type(tensor: torch.Tensor, dtype: DataType) -> torch.Tensor:
    """A contiguous tensor, as bytes where engines do not know its elements."""
    if dtype is DataType.UINT8 and tensor.dtype is not torch.uint8:
        return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return tensor
