"""Which tensors had a gradient on any rank: the others are not updated, and keep what their optimizer has of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from coppice.errors import CheckError, InputError


class UsedTensors:
    """Told by every rank at the end of each backward pass, beside the sums of gradients.

    Args:
        count: Number of trained tensors.
        group: The ranks, in a group that carries nothing else.
        device: Where they compute.
        timeout_s: Longest wait for another rank.
    """

    def __init__(self, count: int, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self._count, self._group, self._device, self._timeout_s = count, group, device, timeout_s
        self._marks = torch.ones(count, dtype=torch.int32)
        self._work: Any = None
        self._places = frozenset(range(count))

    def tell(self, places: Iterable[int]) -> None:
        """This rank's backward pass is over; tensors that have a gradient on it."""
        marks = torch.zeros(self._count, dtype=torch.int32)
        marks[list(places)] = 1
        self._marks = marks.to(self._device)
        self._work = dist.all_reduce(self._marks, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

    def places(self) -> frozenset[int]:
        """Tensors that have a gradient on any rank in this iteration."""
        if self._work is not None:
            try:
                self._work.wait(timedelta(seconds=self._timeout_s))
            except RuntimeError as error:
                said = str(error).strip().splitlines()
                raise CheckError(
                    f"expected all ranks to say which gradients they have, found one that does not answer "
                    f"({said[0] if said else type(error).__name__}): start the training again from its last checkpoint."
                ) from error
            self._work = None
            self._places = frozenset(self._marks.nonzero().flatten().tolist())
        return self._places


def require_whole_gradients(whole: bool) -> None:  # noqa: FBT001 (what it requires)
    """That a gradient goes whole or not at all, where tensors may have none."""
    if not whole:
        raise InputError(
            "expected `unused=False` where chunks are chosen, found True: send whole gradients (`ratio=1`)."
        )
