"""The least time with a given number of trees per root, exactly: whole trees on every link, every cut written out.

Theory. With k trees per unit of weight and 1/U the rate of one tree, link e has room for u(e) = floor(U * b(e)) trees.
k * w(all) trees that span the terminals exist iff there are whole numbers 0 <= c(e) <= u(e) such that

    (I)   in_c(X) + k * w(X) >= k * w(all)   for every vertex set X that holds a terminal,
    (II)  in_c(w) >= out_c(w)                at every node w that only forwards:

a tree takes a path through a switch in and out, so a forest gives such c; given c, edge splitting keeps (I) while
(II) lasts (W. Mader 1982, B. Jackson 1988), and Edmonds' theorem (1973) packs the trees on what is left. Room grows
with U, and only at multiples of 1 / b(e), so the least U is found by bisection over those.

Where u itself satisfies (II) the sets alone decide, in integers. Elsewhere the question is a mixed-integer program
(a Hamiltonian path through switches with one way in is an instance of it), which HiGHS answers; what it finds is
checked in integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from reference.fixed_trees import room, smallest_inv_tree_rate
from reference.network import Link, Network, Supply


@dataclass(frozen=True, eq=False)
class Rows:
    """All sets that hold a terminal: which links enter them, and what weight lies outside."""

    links: tuple[Link, ...]
    entering: NDArray[np.int64]
    missing: NDArray[np.int64]
    balance: NDArray[np.int64]


def rows_of(network: Network, supply: Supply, sets: Sequence[Collection[int]] | None = None) -> Rows:
    """The rows of the program, one for each set that has to be entered; or for some of them only."""
    links = tuple(network.capacity)
    masks = np.arange(1, 2**network.num_nodes, dtype=np.int64)
    if sets is not None:
        masks = np.array([sum(1 << v for v in nodes) for nodes in sets], dtype=np.int64)
    missing = np.full(len(masks), sum(supply.values()), dtype=np.int64)
    for v, weight in supply.items():
        missing -= weight * (masks >> v & 1)
    terminals = sum(1 << v for v in network.terminals)
    kept = (masks & terminals != 0) & (missing > 0)
    masks, missing = masks[kept], missing[kept]
    entering = np.stack([(masks >> b & 1) & ~(masks >> a & 1) for a, b in links], axis=1)
    balance = np.array([[(b == w) - (a == w) for a, b in links] for w in network.switches], dtype=np.int64)
    return Rows(links, entering, missing, balance.reshape(len(network.switches), len(links)))


def whole_trees(
    network: Network, supply: Supply, most: Mapping[Link, int], *, trees: int
) -> dict[Link, int] | None:
    """Whole numbers of trees on every link, at most ``most``, that a forest can have; None where there are none."""
    return solution(rows_of(network, supply), most, trees)


def solution(rows: Rows, most: Mapping[Link, int], trees: int) -> dict[Link, int] | None:
    upper = np.array([most[link] for link in rows.links], dtype=np.int64)
    if (rows.entering @ upper < trees * rows.missing).any():
        return None
    if (rows.balance @ upper >= 0).all():
        return dict(most)
    found = by_program(rows, upper, trees)
    if found is None:
        return None
    assert (found >= 0).all()
    assert (found <= upper).all()
    assert (rows.entering @ found >= trees * rows.missing).all()
    assert (rows.balance @ found >= 0).all()
    return dict(zip(rows.links, found.tolist(), strict=True))


def by_program(rows: Rows, upper: NDArray[np.int64], trees: int) -> NDArray[np.int64] | None:
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_feasibility_tolerance", 1e-9)
    for value in upper.tolist():
        solver.addCol(0.0, 0.0, float(value), 0, [], [])
    solver.changeColsIntegrality(
        len(upper), np.arange(len(upper), dtype=np.int32), np.full(len(upper), highspy.HighsVarType.kInteger)
    )
    table = np.concatenate([rows.entering, rows.balance])
    least = np.concatenate([trees * rows.missing, np.zeros(len(rows.balance), dtype=np.int64)])
    table = np.unique(np.column_stack([table, least]), axis=0)
    matrix, least = table[:, :-1], table[:, -1]
    counts = np.count_nonzero(matrix, axis=1)
    row, column = np.nonzero(matrix)
    solver.addRows(
        len(matrix),
        least.astype(np.float64),
        np.full(len(matrix), highspy.kHighsInf),
        len(row),
        (np.cumsum(counts) - counts).astype(np.int32),
        column.astype(np.int32),
        matrix[row, column].astype(np.float64),
    )
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    assert status == highspy.HighsModelStatus.kOptimal, status
    return np.rint(np.array(solver.getSolution().col_value)).astype(np.int64)


def next_lower(network: Network, inv_tree_rate: Fraction) -> Fraction:
    """The greatest U below ``inv_tree_rate`` at which some link has another room than there."""
    return max(Fraction(ceil(inv_tree_rate * b) - 1) / b for b in network.capacity.values())


def least_inv_tree_rate(network: Network, supply: Supply, *, trees: int, reached: Fraction) -> Fraction:
    """The least U with ``trees`` trees per unit of weight, given a ``reached`` one that some forest has."""
    low = smallest_inv_tree_rate(network, supply, trees=trees)
    assert low is not None
    steps = sorted(
        {
            Fraction(m) / b
            for b in set(network.capacity.values())
            for m in range(ceil(low * b), floor(reached * b) + 1)
        }
        | {low, reached}
    )
    rows = rows_of(network, supply)
    first, last = 0, len(steps) - 1
    while first < last:
        middle = (first + last) // 2
        if solution(rows, room(network, steps[middle]), trees) is None:
            first = middle + 1
        else:
            last = middle
    return steps[first]
