"""Arithmetic of positions in base k: Bruck, dissemination and k-nomial trees, and folding to a power of k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.planners.algorithms.algorithm import AlgorithmParameter
from coppice.rows import offsets, ranges


def radix_parameter(default: int = 2) -> dict[str, AlgorithmParameter]:
    """The parameter ``radix`` of an algorithm."""
    return {
        "radix": AlgorithmParameter(default=default, least=2, summary="base k: partners per step are k - 1")
    }


def levels(size: int, radix: int) -> list[tuple[int, list[int]]]:
    """Distance k^i of every digit of numbers below ``size``, with its multiples j k^i below ``size``.

    There are ceil(log_k size) of them.

    Examples:
        >>> levels(10, 3)
        [(1, [1, 2]), (3, [3, 6]), (9, [9])]
        >>> levels(1, 2)
        []
    """
    found = []
    distance = 1
    while distance < size:
        found.append((distance, list(range(distance, min(size, radix * distance), distance))))
        distance *= radix
    return found


def num_messages(size: int, radix: int) -> int:
    """Total number of distances in :func:`levels`."""
    return sum(len(shifts) for _, shifts in levels(size, radix))


def log_floor(size: int, radix: int) -> int:
    """Largest L with radix^L <= size.

    Examples:
        >>> log_floor(8, 2), log_floor(26, 3), log_floor(1, 2)
        (3, 2, 0)
    """
    exponent = 0
    while radix ** (exponent + 1) <= size:
        exponent += 1
    return exponent


def spans(
    start: NDArray[np.integer], count: NDArray[np.integer] | int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Concatenate the ranges ``start[i] .. start[i] + count[i] - 1``, with the i of each number.

    Examples:
        >>> rows, numbers = spans(np.array([5, 0]), np.array([1, 3]))
        >>> rows.tolist(), numbers.tolist()
        ([0, 1, 1, 1], [5, 0, 1, 2])
    """
    count = np.broadcast_to(np.asarray(count, dtype=np.int64), np.shape(start))
    return np.repeat(np.arange(len(count)), count), ranges(np.asarray(start, dtype=np.int64), count)


@dataclass(frozen=True, eq=False, repr=False)
class Folding(Brief):
    """Groups of neighbouring positions, each represented by its last one.

    The first runs have k positions, one more may have fewer, and all others have one.
    """

    radix: int  # k, at most the number of positions (2 for one position)
    depth: int  # L, with k^L runs
    start: NDArray[np.int64]  # Run v holds positions `start[v] .. start[v + 1] - 1` (k^L + 1 numbers).

    @property
    def core(self) -> int:
        """Number of groups, k^L."""
        return len(self.start) - 1

    @property
    def runs(self) -> NDArray[np.int64]:
        """All groups: 0 .. k^L - 1."""
        return np.arange(self.core)

    @property
    def leader(self) -> NDArray[np.int64]:
        """Representative of each group."""
        return self.start[1:] - 1

    @property
    def folded(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions that are not representatives, and their representatives."""
        position = np.arange(self.start[-1])
        leader = np.repeat(self.leader, np.diff(self.start))
        return position[position != leader], leader[position != leader]


def folding(size: int, radix: int = 2) -> Folding:
    """Fold ``size`` positions to a power of k.

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
    return Folding(radix, depth, offsets(length))


def reversed_digits(depth: int, radix: int = 2) -> NDArray[np.int64]:
    """Digit reversal of 0 .. radix^depth - 1.

    Examples:
        >>> reversed_digits(3).tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    return np.arange(radix**depth).reshape((radix,) * depth).transpose().reshape(-1)
