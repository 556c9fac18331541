"""Square systems solved in fractions from beginning to end, where floats cannot solve them.

Gaussian elimination on rows that hold few entries. The pivot is taken where it leaves the fewest new entries (H. M.
Markowitz, "The elimination form of the inverse", 1957): in the row of fewest entries, and there in the column of
fewest. Bases of flow programs fall apart into trees that way, and nearly no new entries arise.
"""

from __future__ import annotations

from fractions import Fraction
from heapq import heapify, heappop, heappush

from coppice.bounds.lp.refinement import SquareSystem


def eliminated(system: SquareSystem) -> list[Fraction] | None:
    """The solution of ``system``, or None where it has not exactly one.

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
