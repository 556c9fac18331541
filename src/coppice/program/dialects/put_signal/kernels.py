"""Cost of the copies and sums of a local call on a GPU.

Whatever they are, one kernel can carry them out: an operation only ever puts element i of two slots into element i of
a third, so that a thread that has element i of all slots that depend on each other can do its operations one after the
other. Libraries have no such kernel. One that is given many intervals of memory (``torch._foreach_add_``) takes them in
no order, so that for these the operations of a call fall into *levels*, one after the other; what is added twice in one
call is in two of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalProgram
from coppice.rows import begins_run, last_before, next_after, ranges

_Ints = NDArray[np.int64]


def chunks_moved(program: PutSignalProgram) -> _Ints:
    """Chunks read and written by the kernel of each local call, out of place.

    What an operation of the same call has written is at hand: only what is not is read, and each slot is written once.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.planning import plan
        >>> from coppice.program.dialects.put_signal.lower import lower_put_signal
        >>> from coppice.program.dialects.put_signal.program import PutSignalCall
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(topology=preset("star", gpus=3), collective=Collective.REDUCE_SCATTER)).plan
        >>> program = lower_put_signal(made.body, pieces=1)
        >>> local = program.call_kind == PutSignalCall.LOCAL  # what landed is added up, and to the own part
        >>> chunks_moved(program)[local].tolist()
        [5, 5, 5]
    """
    local = np.flatnonzero(program.act >= PutSignalAct.COPY)
    adds = program.act[local] == PutSignalAct.SUM
    wide = int((program.target + program.count).max(initial=0)) + int(program.source.max(initial=0)) + 1
    wide += int(program.addend.max(initial=0))
    source, addend, target = (
        getattr(program, f"{name}_buffer")[local] * wide + getattr(program, name)[local]
        for name in ("source", "addend", "target")
    )
    at, row, writes = _accesses(source, np.where(adds, addend, -1), target, program.count[local])
    call = program.call_of[local][row]
    order = np.lexsort((writes, row, at, call))
    head = begins_run(call[order], at[order])
    first = np.flatnonzero(head)
    if not len(first):
        return np.zeros(program.num_calls, dtype=np.int64)
    written = np.maximum.reduceat(writes[order], first)
    moved = written.astype(np.int64) + ~writes[order][first]
    return np.bincount(call[order][first], weights=moved, minlength=program.num_calls).astype(np.int64)


def _accesses(
    source: _Ints, addend: _Ints, target: _Ints, count: _Ints
) -> tuple[_Ints, _Ints, NDArray[np.bool_]]:
    """Address, row and kind (whether it is written) of each access of copies and sums; an addend of -1 is none."""
    number = len(source)
    both = np.flatnonzero(addend >= 0)
    row = np.concatenate([np.arange(number), both, np.arange(number)])
    first = np.concatenate([source, addend[both], target])
    writes = np.concatenate([np.zeros(number + len(both), np.bool_), np.ones(number, np.bool_)])
    return ranges(first, count[row]), np.repeat(row, count[row]), np.repeat(writes, count[row])


def dependent_of(source: _Ints, addend: _Ints, target: _Ints) -> _Ints:
    """Dependencies between single-slot copies and sums, numbered from 0 by the first of each.

    Args:
        addend: The other one of a sum; -1 for a copy.

    Examples:
        Two sums into slot 0, one into 9, and a copy of what the last one made:

        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> dependent_of(column(0, 9, 0, 9), column(3, 4, 5, -1), column(0, 9, 0, 7)).tolist()
        [0, 1, 0, 1]
    """
    leader = list(range(len(target)))

    def first_of(each: int) -> int:
        while leader[each] != each:
            leader[each] = leader[leader[each]]
            each = leader[each]
        return each

    writer: dict[int, int] = {}
    for each, slot in enumerate(target.tolist()):
        writer.setdefault(slot, each)
    for each, slots in enumerate(np.stack([source, addend, target], axis=1).tolist()):
        for slot in slots:
            if slot in writer:
                one, other = sorted((first_of(each), first_of(writer[slot])))
                leader[other] = one
    leaders = np.array([first_of(each) for each in range(len(leader))], dtype=np.int64)
    return np.unique(leaders, return_inverse=True)[1].astype(np.int64)


def levels_of(call: _Ints, source: _Ints, addend: _Ints, target: _Ints, count: _Ints) -> _Ints:
    """Level of each copy and sum, from 0 in each call.

    Args:
        call: Call of each; calls ascend, and those of one call are carried out one after the other.
        addend: The other one of a sum; -1 for a copy.

    Examples:
        A sum into 0 and one into 9 go together; a second one into 0, and a copy of it, come after:

        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> levels_of(column(0, 0, 0, 0), column(0, 9, 0, 0), column(3, 4, 5, -1), column(0, 9, 0, 7),
        ...           column(1, 1, 1, 1)).tolist()
        [0, 0, 1, 2]
    """
    number = len(call)
    level = np.zeros(number, dtype=np.int64)
    at, row, writes = _accesses(source, addend, target, count)
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
