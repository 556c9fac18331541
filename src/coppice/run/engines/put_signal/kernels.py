"""Copies and sums in a window of torch in few kernels of torch's own, one level after the other.

``torch._foreach_*`` takes many tensors in one launch, where it may write into the first operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.put_signal.local_call import LocalWork

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
"""Types of which one kernel adds many stretches."""


def in_few_kernels(window: Any, work: Sequence[LocalWork], dtype: DataType, op: ReduceOp) -> list[LocalWork]:
    """Copy and reduce within a window, none of which touches what another part of it writes.

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
