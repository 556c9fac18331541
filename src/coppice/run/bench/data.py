"""What ranks contribute in a benchmark, and what must come out: computed by each rank alone, from its number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.run.engines.datatype import DataType, ReduceOp, combine, divide, from_bfloat16, to_bfloat16
from coppice.run.programs.rank_program import RankProgram, block_bounds

Array = NDArray[Any]
_PERIOD = 61  # prime, so that a block in the wrong place shows


def contribution(
    program: RankProgram, rank: int, dtype: DataType, *, first: int = 0, count: int | None = None
) -> Array:
    """Elements ``first`` .. ``first + count - 1`` of what ``rank`` contributes.

    Small whole numbers, so that sums over many ranks are exact in every type; of bool, 0 and 1.
    """
    count = _given_elements(program) if count is None else count
    place = (np.arange(first, first + count, dtype=np.int64) + 17 * rank) % _PERIOD
    values = place % 2 if dtype is DataType.BOOL else 1 + place % 3
    if dtype is DataType.BFLOAT16:
        return to_bfloat16(values.astype(np.float32))
    return values.astype(dtype.numpy_name)


def expected(program: RankProgram, dtype: DataType, op: ReduceOp) -> Array:
    """The result of the rank of ``program``: ``program.result_elements`` elements.

    Examples:
        >>> from coppice.run.engines.numpy import run_ranks
        >>> from coppice.run.communicator.communicator import Communicator
        >>> from coppice.topology.presets import preset
        >>> def work(engine):
        ...     group = Communicator(engine, preset("ring", gpus=2), pieces=1)
        ...     program = group.prepare(Collective.ALL_REDUCE, 3)
        ...     return expected(program, DataType.FLOAT32, ReduceOp.SUM).tolist()
        >>> run_ranks(2, work)[0]
        [4.0, 3.0, 5.0]
    """
    rank, ranks, count = program.rank, program.ranks, program.result_elements
    if not count:
        return np.zeros(0, dtype=dtype.numpy_name)
    bounds = block_bounds(program.count, ranks)
    first = bounds[rank]
    match program.collective:
        case Collective.ALL_GATHER | Collective.GATHER:
            blocks = [contribution(program, r, dtype, count=bounds[r + 1] - bounds[r]) for r in range(ranks)]
            return np.concatenate(blocks)
        case Collective.ALL_TO_ALL:
            own = bounds[rank + 1] - first
            blocks = [contribution(program, r, dtype, first=first, count=own) for r in range(ranks)]
            return np.concatenate(blocks)
        case Collective.BROADCAST:
            return contribution(program, program.root, dtype, count=count)
        case Collective.SCATTER:
            return contribution(program, program.root, dtype, first=first, count=count)
        case Collective.REDUCE | Collective.ALL_REDUCE:
            first = 0
    total = contribution(program, 0, dtype, first=first, count=count)
    for other in range(1, ranks):
        combine(op, dtype, total, contribution(program, other, dtype, first=first, count=count), total)
    if op is ReduceOp.AVG:
        divide(dtype, total, ranks)
    return total


def wrong_elements(found: Array, wanted: Array, dtype: DataType) -> int:
    """Number of elements that differ by more than the order of additions can explain."""
    if dtype is DataType.BFLOAT16:
        found, wanted = from_bfloat16(found), from_bfloat16(wanted)
    if not dtype.is_float:
        return int(np.count_nonzero(found != wanted))
    epsilon = 2.0**-7 if dtype is DataType.BFLOAT16 else float(np.finfo(found.dtype).eps)
    near = np.isclose(found.astype(np.float64), wanted.astype(np.float64), rtol=8 * epsilon, atol=0)
    return int(np.count_nonzero(~near))


def _given_elements(program: RankProgram) -> int:
    if program.collective in (Collective.ALL_GATHER, Collective.GATHER):
        bounds = block_bounds(program.count, program.ranks)
        return bounds[program.rank + 1] - bounds[program.rank]
    return program.count
