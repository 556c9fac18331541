"""Whether one event of a program always comes before another: reachability in the graph of what must precede what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Reach"]

_CELLS = 2**24
_Ints = NDArray[np.int64]


class Reach:
    """A graph without circles, asked about many pairs at once.

    Args:
        order: All events in an order that agrees with the edges.
        edges: (earlier, later) pairs.

    Examples:
        >>> reach = Reach([0, 1, 2, 3], [(0, 1), (1, 3)])
        >>> reach.holds(np.array([0, 0, 2]), np.array([3, 2, 3])).tolist()
        [True, False, False]
    """

    def __init__(self, order: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        self._count = len(order)
        time = [0] * self._count
        for place, event in enumerate(order):
            time[event] = place
        ends = sorted({(time[later], time[earlier]) for earlier, later in edges})
        level = [0] * self._count
        for later, earlier in ends:
            level[later] = max(level[later], level[earlier] + 1)
        self._time = np.array(time, dtype=np.int64)
        self._source = np.array([earlier for _, earlier in ends], dtype=np.int64)
        self._target = np.array([later for later, _ in ends], dtype=np.int64)
        depth = np.array(level, dtype=np.int64)[self._target] if ends else np.zeros(0, dtype=np.int64)
        by = np.lexsort((self._target, depth))
        self._source, self._target = self._source[by], self._target[by]
        bounds = np.searchsorted(depth[by], np.arange(int(depth.max(initial=0)) + 2))
        self._layers = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))

    def holds(self, first: _Ints, second: _Ints) -> NDArray[np.bool_]:
        """Whether each event of ``first`` always comes before that of ``second``."""
        one, two = self._time[first], self._time[second]
        answer: NDArray[np.bool_] = np.zeros(len(one), dtype=np.bool_)
        sources = np.unique(one)
        column = np.searchsorted(sources, one)
        width = max(64, _CELLS // max(self._count, 1) // 64 * 64)
        for start in range(0, len(sources), width):
            bits = self._from(sources[start : start + width])
            rows = np.flatnonzero((column >= start) & (column < start + width))
            place = column[rows] - start
            answer[rows] = (bits[two[rows], place // 64] >> (place % 64).astype(np.uint64)) & np.uint64(1) > 0
        answer &= one != two
        return answer

    def _from(self, sources: _Ints) -> NDArray[np.uint64]:
        """For every event, a bit for each source that is it or comes before it."""
        bits = np.zeros((self._count, -(-len(sources) // 64)), dtype=np.uint64)
        place = np.arange(len(sources))
        bits[sources, place // 64] |= np.uint64(1) << (place % 64).astype(np.uint64)
        for low, high in self._layers:
            if low == high:
                continue
            target = self._target[low:high]
            heads = np.flatnonzero(np.concatenate([[True], target[1:] != target[:-1]]))
            bits[target[heads]] |= np.bitwise_or.reduceat(bits[self._source[low:high]], heads, axis=0)
        return bits
