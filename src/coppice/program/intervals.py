"""Memory cut into intervals that every operation uses whole or not at all, so that the first slot stands for all.

Slots of an interval do the same, one beside the other, and what operations bring together lies at equal places of
intervals of equal length: what goes wrong with one slot goes wrong with the first. What memory holds, or must hold, is
cut where chunks or contributors do not follow each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.rows import ranges

_Ints = NDArray[np.int64]


def heads_of(address: _Ints, chunk: _Ints, member: _Ints) -> _Ints:
    """Rows of slots that do not go on with the chunk and the contributor of the row before."""
    new = np.ones(len(address), dtype=np.bool_)
    new[1:] = (np.diff(address) != 1) | (np.diff(chunk) != 1) | (np.diff(member) != 0)
    return np.flatnonzero(new)


def aligned_cuts(cuts: _Ints, one: _Ints, other: _Ints, count: _Ints) -> _Ints:
    """Cuts, and as many more as it takes for pairs of ranges of equal length to be cut at equal places.

    Args:
        cuts: Addresses at which intervals begin, ascending, and the end of memory.
        one: First address of one range of each pair.
        other: First address of the other.
        count: Addresses of each.

    Examples:
        >>> column = lambda *values: np.array(values)
        >>> aligned_cuts(column(0, 3, 10, 20), column(0), column(10), column(10)).tolist()
        [0, 3, 10, 13, 20]
    """
    while True:
        more = [cuts]
        for here, there in ((one, other), (other, one)):
            first = np.searchsorted(cuts, here)
            number = np.searchsorted(cuts, here + count) - first
            more.append(cuts[ranges(first, number)] + np.repeat(there - here, number))
        found = np.unique(np.concatenate(more))
        if len(found) == len(cuts):
            return cuts
        cuts = found
