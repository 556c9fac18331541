"""A linear program in fractions from beginning to end, as plainly as it can be written."""

from __future__ import annotations

import itertools
from fractions import Fraction


def maximum(cost: list[Fraction], rows: list[tuple[list[Fraction], Fraction]]) -> Fraction:
    """The largest ``cost x`` with ``row x <= bound`` for every row and ``x >= 0``; every bound is 0 or more.

    The simplex method on a table of fractions, by Bland's rule: of all columns that gain the first one enters, of all
    rows that limit it the one of the first column leaves.

    >>> maximum([Fraction(1), Fraction(1)], [([Fraction(3), Fraction(1)], Fraction(2)),
    ...                                      ([Fraction(1), Fraction(2)], Fraction(3))])
    Fraction(8, 5)
    """
    count, height = len(cost), len(rows)
    table = [
        [*row, *(Fraction(int(i == k)) for k in range(height)), bound] for i, (row, bound) in enumerate(rows)
    ]
    last = [*(-c for c in cost), *[Fraction(0)] * height, Fraction(0)]
    basic = [count + i for i in range(height)]
    while True:
        entering = next((j for j, price in enumerate(last[:-1]) if price < 0), -1)
        if entering < 0:
            return last[-1]
        limits = [(row[-1] / row[entering], basic[i], i) for i, row in enumerate(table) if row[entering] > 0]
        if not limits:
            raise ValueError("without limit")
        leaving = min(limits)[2]
        pivot = table[leaving][entering]
        table[leaving] = [value / pivot for value in table[leaving]]
        for row in [*table[:leaving], *table[leaving + 1 :], last]:
            factor = row[entering]
            if factor:
                row[:] = [a - factor * b for a, b in zip(row, table[leaving], strict=True)]
        basic[leaving] = entering


def concurrent_flow_rate(
    links: dict[tuple[int, int], Fraction], demands: dict[tuple[int, int], Fraction]
) -> Fraction:
    """The largest f such that f times every demand fits through the links at once, over all simple paths."""
    after: dict[int, list[int]] = {}
    for a, b in links:
        after.setdefault(a, []).append(b)
    columns: list[tuple[tuple[int, int], tuple[int, ...]]] = []
    for source, target in demands:
        open_ = [(source,)]
        while open_:
            path = open_.pop()
            if path[-1] == target:
                columns.append(((source, target), path))
                continue
            open_ += [(*path, node) for node in after.get(path[-1], []) if node not in path]
    rows = []
    for a, b in links:
        uses = [Fraction(int((a, b) in itertools.pairwise(path))) for _, path in columns]
        rows.append(([Fraction(0), *uses], links[a, b]))
    for pair, size in demands.items():
        rows.append(([size, *(Fraction(-int(own == pair)) for own, _ in columns)], Fraction(0)))
    return maximum([Fraction(1), *[Fraction(0)] * len(columns)], rows)
