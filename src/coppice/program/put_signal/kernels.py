"""Which copies and sums of a local call one kernel can carry out: those that do not touch what another one writes.

A kernel that is given many stretches of memory (``torch._foreach_add_``) takes them in no order. So the operations of a
call fall into *levels*, one after the other; what is added twice in one call is in two of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.program.put_signal.program import PutSignalAct, PutSignalProgram
from coppice.rows import begins_run, last_before, next_after, ranges

__all__ = ["kernels_of", "levels_of"]

_Ints = NDArray[np.int64]


def kernels_of(program: PutSignalProgram) -> tuple[_Ints, _Ints]:
    """Kernels of each call, out of place, and the chunks that they read and write.

    In a level all copies are a kernel, and all sums into their own source or addend. A sum whose target is neither is a
    kernel of its own; several are copies of their sources, and sums like the others.

    Args:
        program: The program.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.put_signal.lower import lower_put_signal
        >>> from coppice.program.put_signal.program import PutSignalCall
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("star", gpus=3), collective=Collective.REDUCE_SCATTER)).plan
        >>> program = lower_put_signal(made.body, pieces=1)
        >>> kernels, chunks = kernels_of(program)
        >>> local = program.call_kind == PutSignalCall.LOCAL  # what landed is added, then their sum to the own part
        >>> kernels[local].tolist(), chunks[local].tolist()
        ([2, 2, 2], [6, 6, 6])
    """
    local = np.flatnonzero(program.act >= PutSignalAct.COPY)
    call, adds = program.call_of[local], program.act[local] == PutSignalAct.SUM
    count = program.count[local]
    wide = int((program.target + program.count).max(initial=0)) + int(program.source.max(initial=0)) + 1
    wide += int(program.addend.max(initial=0))
    source, addend, target = (
        getattr(program, f"{name}_buffer")[local] * wide + getattr(program, name)[local]
        for name in ("source", "addend", "target")
    )
    level = levels_of(call, source, np.where(adds, addend, -1), target, count)
    apart = adds & (target != source) & (target != addend)
    number, where = np.unique(np.stack([call, level]), axis=1, return_inverse=True)
    where = where.reshape(-1)
    several = apart & (np.bincount(where, weights=apart)[where] > 1)
    found = np.bincount(call[apart & ~several], minlength=program.num_calls)
    for mine in (~adds | several, adds & (~apart | several)):
        found += np.bincount(number[0][np.unique(where[mine])], minlength=program.num_calls)
    passes = np.where(adds, 3, 2) + np.where(several, 2, 0)
    chunks = np.bincount(call, weights=passes * count, minlength=program.num_calls)
    return found, chunks.astype(np.int64)


def levels_of(call: _Ints, source: _Ints, addend: _Ints, target: _Ints, count: _Ints) -> _Ints:
    """Level of each of some copies and sums, from 0 in each call.

    Args:
        call: Call of each; calls ascend, and those of one call are carried out one after the other.
        source: First address that each reads.
        addend: The other one of a sum; -1 for a copy.
        target: First address that each writes.
        count: Addresses that follow each other.

    Examples:
        A sum into 0 and one into 9 go together; a second one into 0, and a copy of it, come after:

        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> levels_of(column(0, 0, 0, 0), column(0, 9, 0, 0), column(3, 4, 5, -1), column(0, 9, 0, 7),
        ...           column(1, 1, 1, 1)).tolist()
        [0, 0, 1, 2]
    """
    number = len(call)
    level = np.zeros(number, dtype=np.int64)
    both = np.flatnonzero(addend >= 0)
    row = np.concatenate([np.arange(number), both, np.arange(number)])
    first = np.concatenate([source, addend[both], target])
    writes = np.concatenate([np.zeros(number + len(both), np.bool_), np.ones(number, np.bool_)])
    writes = np.repeat(writes, count[row])
    at, row = ranges(first, count[row]), np.repeat(row, count[row])
    order = np.lexsort((writes, row, at, call[row]))
    at, row, writes = at[order], row[order], writes[order]
    group = np.cumsum(begins_run(call[row], at)) if len(row) else row
    before, after = last_before(group, writes), next_after(group, writes)
    pairs = np.concatenate(
        [
            np.stack([row[before[before >= 0]], row[before >= 0]]),
            np.stack([row[after >= 0], row[after[after >= 0]]]),
        ],
        axis=1,
    )
    pairs = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
    while True:
        least = level[pairs[0]] + 1
        late = least > level[pairs[1]]
        if not late.any():
            return level
        np.maximum.at(level, pairs[1][late], least[late])
