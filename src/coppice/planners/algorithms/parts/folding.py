"""Folding: any number of positions onto the next lower power of k, where an algorithm needs that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.planners.algorithms.parts.radix import log_floor

__all__ = ["Folding", "folding", "reversed_digits"]


@dataclass(frozen=True, eq=False)
class Folding:
    """Runs of neighbouring positions, of which the last one stands for all.

    The first runs have k positions, one more may have fewer, and all others have one.

    Attributes:
        radix: k, at most the number of positions (2 for one position).
        depth: L, with k^L runs.
        start: Run v holds positions ``start[v] .. start[v + 1] - 1`` (k^L + 1 numbers).
    """

    radix: int
    depth: int
    start: NDArray[np.int64]

    @property
    def core(self) -> int:
        """Number of runs, k^L."""
        return len(self.start) - 1

    @property
    def runs(self) -> NDArray[np.int64]:
        """All runs: 0 .. k^L - 1."""
        return np.arange(self.core)

    @property
    def leader(self) -> NDArray[np.int64]:
        """Position that stands for each run."""
        return self.start[1:] - 1

    @property
    def folded(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions that do not stand for a run, and those that stand for theirs."""
        position = np.arange(self.start[-1])
        leader = np.repeat(self.leader, np.diff(self.start))
        return position[position != leader], leader[position != leader]


def folding(size: int, radix: int = 2) -> Folding:
    """The folding of ``size`` positions.

    Examples:
        >>> folding(6).start.tolist(), folding(6).leader.tolist()
        ([0, 2, 4, 5, 6], [1, 3, 4, 5])
        >>> folding(12, 3).start.tolist()
        [0, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    """
    radix = min(radix, max(size, 2))
    depth = log_floor(size, radix)
    whole_runs, rest = divmod(size - radix**depth, radix - 1)
    length = np.ones(radix**depth, dtype=np.int64)
    length[:whole_runs] = radix
    length[whole_runs : whole_runs + 1] += rest
    return Folding(radix, depth, np.concatenate([[0], np.cumsum(length)]))


def reversed_digits(depth: int, radix: int = 2) -> NDArray[np.int64]:
    """The numbers 0 .. radix^depth - 1 with their digits in reverse order.

    Examples:
        >>> reversed_digits(3).tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    return np.arange(radix**depth).reshape((radix,) * depth).transpose().reshape(-1)
