"""Solve square integer systems exactly by iterative refinement of a float solver.

Iterative refinement: solve in floats, form the residual exactly in integers, solve for the residual, and so
on. Each round gains about 30 bits as long as the float solver is right to 10 digits or so. Once the precision
passes the square of the common denominator of the solution, continued fractions recover it, and substitution
proves it (Wan, 2006; the exact mode of SoPlex by Gleixner, Steffy and Wolter, 2016, works alike). Nothing is
believed that was not substituted.

Square systems solved in fractions from beginning to end, where floats cannot solve them.

Gaussian elimination on rows that hold few entries. The pivot is taken where it leaves the fewest new entries (H. M.
Markowitz, "The elimination form of the inverse", 1957): in the row of fewest entries, and there in the column of
fewest. Bases of flow programs fall apart into trees that way, and nearly no new entries arise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief

_BITS_PER_ROUND = 30
_FLOAT_BITS = 52


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SquareSystem(Brief):
    """``sum of value[k] * x[column[k]] over the entries k of row i = right[i]``, all integers."""

    row: NDArray[np.int64]  # Row of each entry
    column: NDArray[np.int64]  # Column of each entry
    value: NDArray[np.int64]  # Value of each entry (int64)
    right: NDArray[np.object_]  # Right-hand side (dtype object: Python integers)

    def residual(self, solution: NDArray[np.object_], scale: int) -> NDArray[np.object_]:
        """``scale * right - A @ solution``, exactly."""
        result: NDArray[np.object_] = self.right * scale
        np.subtract.at(result, self.row, self.value.astype(np.object_) * solution[self.column])
        return result


def solve_exactly(
    system: SquareSystem,
    # Solves the system for another right-hand side, in floats
    solve: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    max_bits: int = 2048,  # Give up where the solution needs more bits than this
) -> list[Fraction] | None:
    """Solution of ``system`` as fractions, or None where the refinement does not converge.

    Examples:
        >>> system = SquareSystem(row=np.array([0, 1, 1]), column=np.array([0, 0, 1]),
        ...                       value=np.array([3, 1, 7]), right=np.array([1, 2], dtype=object))
        >>> inverse = np.linalg.inv(np.array([[3.0, 0.0], [1.0, 7.0]]))
        >>> solve_exactly(system, lambda right: inverse @ right)
        [Fraction(1, 3), Fraction(5, 21)]
    """
    solution: NDArray[np.object_] = np.zeros(len(system.right), dtype=np.object_)
    bits, attempt = 0, 2 * _BITS_PER_ROUND
    residual = system.residual(solution, 1)
    largest = max(map(abs, residual), default=0)
    while bits < max_bits:
        if largest == 0:
            return [Fraction(value, 1 << bits) for value in solution.tolist()]
        correction = solve(np.array([float(Fraction(value, largest)) for value in residual.tolist()]))
        if not np.isfinite(correction).all() or np.abs(correction).max() > 2.0**_FLOAT_BITS:
            return None
        fixed = np.array([int(value) for value in np.rint(correction * 2.0**_FLOAT_BITS)], dtype=np.object_)
        solution = (solution << _BITS_PER_ROUND) + ((fixed * largest) >> (_FLOAT_BITS - _BITS_PER_ROUND))
        bits += _BITS_PER_ROUND
        residual = system.residual(solution, 1 << bits)
        before, largest = largest, max(map(abs, residual))
        if bits > 2 * _BITS_PER_ROUND and largest > max(before << 8, 1 << 24):
            return None
        if bits >= attempt:
            found = _substituted(system, solution.tolist(), bits)
            if found is not None:
                return found
            attempt = bits + max(_BITS_PER_ROUND, bits // 2)
    return None


def from_binary(value: int, bits: int) -> Fraction:
    """Simplest fraction next to ``value / 2**bits``, with denominator at most ``2**(bits / 2 - 4)``.

    >>> from_binary(round(2**60 / 3), 60)
    Fraction(1, 3)
    """
    return Fraction(value, 1 << bits).limit_denominator(1 << max(bits // 2 - 4, 1))


def _substituted(system: SquareSystem, binary: list[int], bits: int) -> list[Fraction] | None:
    """Round to simple fractions and keep them if they solve the system."""
    guess: list[Fraction] = []
    denominator = 1
    slack = 1 << (bits // 2)
    for value in binary:
        scaled = value * denominator
        nearest = (scaled + (1 << (bits - 1))) >> bits
        if abs(scaled - (nearest << bits)) < slack:  # the common denominator so far explains this one too
            guess.append(Fraction(nearest, denominator))
            continue
        fraction = from_binary(value, bits)
        denominator = lcm(denominator, fraction.denominator)
        if denominator.bit_length() > bits:
            return None
        guess.append(fraction)
    integers = np.array([int(fraction * denominator) for fraction in guess], dtype=np.object_)
    return guess if not any(system.residual(integers, denominator)) else None


def eliminated(system: SquareSystem) -> list[Fraction] | None:
    """Solution of ``system`` by elimination, or None where it is not unique.

    Examples:
        >>> import numpy as np
        >>> eliminated(SquareSystem(row=np.array([0, 1, 1]), column=np.array([0, 0, 1]),
        ...                         value=np.array([3, 1, 7]), right=np.array([1, 2], dtype=object)))
        [Fraction(1, 3), Fraction(5, 21)]
    """
    size = len(system.right)
    rows: list[dict[int, Fraction]] = [{} for _ in range(size)]
    members: list[set[int]] = [set() for _ in range(size)]  # rows with an entry in each column
    for i, j, value in zip(system.row.tolist(), system.column.tolist(), system.value.tolist(), strict=True):
        rows[i][j] = rows[i].get(j, Fraction(0)) + value
        members[j].add(i)
    right = [Fraction(value) for value in system.right.tolist()]
    heap = [(len(row), i) for i, row in enumerate(rows)]
    heapify(heap)
    done: list[tuple[int, int]] = []  # (row, column) of each pivot
    finished = [False] * size
    while heap:
        count, i = heappop(heap)
        if finished[i] or count != len(rows[i]):
            continue
        column = min(
            (j for j, value in rows[i].items() if value), key=lambda j: (len(members[j]), j), default=-1
        )
        if column < 0:
            return None
        finished[i] = True
        done.append((i, column))
        pivot = rows[i][column]
        for j in rows[i]:
            members[j].discard(i)
        for other in sorted(members[column]):
            factor = rows[other][column] / pivot
            for j, value in rows[i].items():
                left = rows[other].get(j, Fraction(0)) - factor * value
                if left:
                    rows[other][j] = left
                    members[j].add(other)
                elif j in rows[other]:
                    del rows[other][j]
                    members[j].discard(other)
            right[other] -= factor * right[i]
            heappush(heap, (len(rows[other]), other))
    solution = [Fraction(0)] * size
    for i, column in reversed(done):
        rest = right[i] - sum(value * solution[j] for j, value in rows[i].items() if j != column)
        solution[column] = rest / rows[i][column]
    return solution
