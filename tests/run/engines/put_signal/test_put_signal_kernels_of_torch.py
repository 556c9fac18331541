"""Copies and reductions of torch in few kernels, on the CPU: the same as one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coppice.run.engines.datatype import DataType, ReduceOp, combine
from coppice.run.engines.put_signal.kernels import LocalWork, in_few_kernels

torch = pytest.importorskip("torch")

IN_PLACE = [LocalWork(0, 16, 0, 16), LocalWork(32, 48, 48, 16)]
APART = [LocalWork(64, 80, 96, 16), LocalWork(64, 80, 112, 16)]
COPY = LocalWork(64, -1, 128, 16)


def after(work: list[LocalWork], op: ReduceOp) -> np.ndarray[Any, Any]:
    """Memory after work that is done one after the other."""
    memory = np.arange(1, 37, dtype=np.int32)
    for each in work:
        source, addend, target = (
            memory[at // 4 : at // 4 + 4] for at in (each.source, each.addend, each.target)
        )
        if each.addend < 0:
            target[:] = source
        else:
            combine(op, DataType.INT32, source, addend, target)
    return memory


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.BXOR])
@pytest.mark.parametrize(
    ("work", "own"), [(IN_PLACE, 0), ([*IN_PLACE, APART[0], COPY], 1), ([*IN_PLACE, *APART, COPY], 0)]
)
def test_work_of_a_level_is_as_one_after_the_other(work: list[LocalWork], own: int, op: ReduceOp) -> None:
    memory = torch.arange(1, 37, dtype=torch.int32)
    left = in_few_kernels(memory.view(torch.uint8), work, DataType.INT32, op)
    assert len(left) == (own if op is not ReduceOp.BXOR else sum(each.addend >= 0 for each in work))
    done = [each for each in work if each not in left]
    assert memory.tolist() == after(done, op).tolist()
