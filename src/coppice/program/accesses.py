"""Which accesses of memory conflict: what has to be in order for a program to be free of races.

Two accesses of one address conflict if one of them is a write. It is enough to look at neighbours along any one order
of execution: a read with the writes next to it on either side, and a write with the next one. If all these pairs are
always in order, so are all conflicting accesses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.rows import last_before, next_after

__all__ = ["conflicting_pairs"]

_Ints = NDArray[np.int64]


def conflicting_pairs(address: _Ints, time: _Ints, write: NDArray[np.bool_]) -> tuple[_Ints, _Ints]:
    """The pairs of neighbouring accesses that conflict, the earlier and the later row of each.

    Args:
        address: What each access reads or writes.
        time: When; what happens at one time reads before it writes.
        write: It is a write.

    Examples:
        A write, a read and a write of one address: write and read, write and write, read and write.

        >>> same, time = np.array([8, 8, 8]), np.array([0, 1, 2])
        >>> [rows.tolist() for rows in conflicting_pairs(same, time, np.array([True, False, True]))]
        [[0, 0, 1], [1, 2, 2]]
    """
    order = np.lexsort((write, time, address))
    address, write = address[order], write[order]
    before, after = last_before(address, write), next_after(address, write)
    has_before = np.flatnonzero(before >= 0)
    has_after = np.flatnonzero(~write & (after >= 0))
    return (
        order[np.concatenate([before[has_before], has_after])],
        order[np.concatenate([has_before, after[has_after]])],
    )
