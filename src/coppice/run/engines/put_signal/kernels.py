"""Copies and reductions in a window by few torch kernels, level by level.

``torch._foreach_*`` takes many tensors in one launch, where it may write into the first operand.

What a rank copies and adds in one call, as few kernels take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.put_signal.kernels import dependent_of, levels_of
from coppice.rows import offsets, positions
from coppice.run.engines.datatype import DataType, ReduceOp


@dataclass(frozen=True, slots=True)
class LocalWork:
    """A copy or reduction within the own window."""

    source: int  # First byte that is read
    addend: int  # First byte of what is added to it, or -1: a copy
    target: int  # First byte that is written; of a sum it may be the source or the addend
    num_bytes: int  # How many


class LocalCall:
    """Copies and reductions of whole slots with sequential semantics.

    Args:
        work: The copies and sums.
        slot_bytes: Length of a slot; all addresses are multiples of it.
    """

    def __init__(self, work: Sequence[LocalWork], slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes  # As given
        self.placed: Any = None  # What a device keeps of it
        columns = np.array([[each.source, each.addend, each.target] for each in work], dtype=np.int64)
        self._slots = np.where(columns < 0, -1, columns // slot_bytes)
        self._count = np.array([each.num_bytes for each in work], dtype=np.int64) // slot_bytes
        source, addend, target = self._slots.T
        level = levels_of(np.zeros(len(work), dtype=np.int64), source, addend, target, self._count)
        # The work in levels, of which none touches what another of it writes
        self.levels: list[list[LocalWork]] = [[] for _ in range(int(level.max(initial=-1)) + 1)]
        for each, at in zip(work, level.tolist(), strict=True):
            self.levels[at].append(each)
        sums = [each for each in self.levels[0] if each.addend >= 0]
        apart = [each for each in sums if each.target not in (each.source, each.addend)]
        # Libraries take several kernels for it: there are levels, copies beside sums, or sums whose target is
        # neither operand
        self.takes_several = len(self.levels) > 1 or len(apart) > 1 or 0 < len(sums) < len(self.levels[0])

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The same work slot by slot, for one kernel.

        Returns:
            Where each operation on a single slot reads, reads what is added (-1: a copy), and writes, in bytes
            (n x 3), those that depend on each other one after the other; and the first row of each such group, with
            the end.
        """
        single = np.repeat(self._slots, self._count, axis=0)
        single += np.where(single < 0, 0, positions(self._count)[:, None])
        source, addend, target = single.T
        group = dependent_of(source, addend, target)
        rows = np.where(single < 0, -1, single * self.slot_bytes)[np.argsort(group, kind="stable")]
        return rows, offsets(np.bincount(group)).astype(np.int32)


_TOGETHER = {
    ReduceOp.SUM: "_foreach_add_",
    ReduceOp.AVG: "_foreach_add_",
    ReduceOp.MIN: "_foreach_minimum_",
    ReduceOp.MAX: "_foreach_maximum_",
    ReduceOp.PRODUCT: "_foreach_mul_",
}
TYPES_OF_MANY = {
    DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT32, DataType.FLOAT64, DataType.INT32, DataType.INT64,
}  # fmt: skip
"""Types of which one kernel adds many intervals."""


def in_few_kernels(window: Any, work: Sequence[LocalWork], dtype: DataType, op: ReduceOp) -> list[LocalWork]:
    """Copy and reduce within a window; parts are independent.

    Returns:
        Sums that are kernels of their own: one whose target is neither operand, and all where torch has nothing for
        many at once.
    """
    import torch

    def part(first: int, each: LocalWork) -> Any:
        return window[first : first + each.num_bytes]

    copies = [each for each in work if each.addend < 0]
    sums = [each for each in work if each.addend >= 0]
    left = [each for each in sums if each.target not in (each.source, each.addend)]
    if op not in _TOGETHER or dtype not in TYPES_OF_MANY:
        left, sums = sums, []
    elif len(left) > 1:
        copies += left
        left = []
    else:
        sums = [each for each in sums if each not in left]
    if copies:
        torch._foreach_copy_(
            [part(each.target, each) for each in copies], [part(each.source, each) for each in copies]
        )
    if sums:
        kind = getattr(torch, dtype.value)
        other = [each.source if each.target == each.addend else each.addend for each in sums]
        getattr(torch, _TOGETHER[op])(
            [part(each.target, each).view(kind) for each in sums],
            [part(first, each).view(kind) for first, each in zip(other, sums, strict=True)],
        )
    return left
