"""What reordering takes for granted, looked at once: operands of elementwise work that all ranks hold alike.

``f(gathered, z)`` is the gathered ``f(slice, slice of z)`` only if z is the same on all ranks. A graph does not say
which of its inputs are; so ``coppice::alike`` compares a sum over all elements, weighted by their places, the first
time that it runs, and is the identity after that.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import CheckError
from coppice.training.torch.tensor.passes_hops import group_of

_places = itertools.count()
_SEEN: set[int] = set()
_PERIOD = 8191  # weights repeat after so many elements


def next_place() -> int:
    """A number for an operation of a graph, the same on all ranks that compile the same graphs."""
    return next(_places)


def _alike(value: torch.Tensor, group_name: str, place: int, what: str) -> torch.Tensor:
    if place in _SEEN:
        return value
    _SEEN.add(place)
    flat = value.detach().reshape(-1).to(torch.float64)
    weights = torch.arange(len(flat), device=flat.device, dtype=torch.float64) % _PERIOD + 1
    total = (flat * weights).sum()
    both = torch.stack([total, -total])
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group_of(group_name))
    if float(both[0]) != -float(both[1]):
        raise CheckError(
            f"expected {what} alike on all ranks, as it meets a sum over them, found otherwise: seed ranks alike, or "
            "leave such graphs to another policy."
        )
    return value


_LIBRARY: Any = torch.library.Library("coppice", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("alike(Tensor(a) value, str group_name, int place, str what) -> Tensor(a)")
_LIBRARY.impl("alike", _alike, "CompositeExplicitAutograd")


def _shape(value: torch.Tensor, *_: object) -> torch.Tensor:
    return value.view_as(value)


torch.library.register_fake("coppice::alike", _shape, lib=_LIBRARY)

alike = torch.ops.coppice.alike.default
