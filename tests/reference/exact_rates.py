"""What forests reach, as in ``reference.attainable``, in fractions: for rates that floats cannot tell apart.

The linear program has every cut as a row and is solved by the simplex method on a table of fractions, always with
the first column that gains and the first row that allows it (R. G. Bland, "New finite pivoting rules for the simplex
method", Mathematics of Operations Research 2, 1977). Slow, and for a handful of nodes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from reference.attainable import sink_sides
from reference.network import Network, Supply

Row = tuple[Mapping[int, int], Fraction]


def maximum(objective: Mapping[int, int], rows: Sequence[Row], columns: int) -> Fraction:
    """The largest ``objective`` over x >= 0 with ``row x <= bound`` (bounds >= 0) for every row."""
    table = [
        [Fraction(row.get(j, 0)) for j in range(columns)]
        + [Fraction(int(i == k)) for k in range(len(rows))]
        + [bound]
        for i, (row, bound) in enumerate(rows)
    ]
    gain = [Fraction(-objective.get(j, 0)) for j in range(columns)] + [Fraction(0)] * (len(rows) + 1)
    basis = list(range(columns, columns + len(rows)))
    while True:
        entering = next((j for j, value in enumerate(gain[:-1]) if value < 0), None)
        if entering is None:
            return gain[-1]
        _, _, leaving = min(
            (line[-1] / line[entering], basis[i], i) for i, line in enumerate(table) if line[entering] > 0
        )
        pivot = table[leaving][entering]
        table[leaving] = [value / pivot for value in table[leaving]]
        for line in [*table[:leaving], *table[leaving + 1 :], gain]:
            factor = line[entering]
            if factor:
                line[:] = [a - factor * b if b else a for a, b in zip(line, table[leaving], strict=True)]
        basis[leaving] = entering


def attainable_rate(network: Network, supply: Supply) -> Fraction:
    """The largest rate per unit of weight of broadcast trees."""
    links = list(network.capacity)
    total = sum(supply.values())
    rows: dict[tuple[tuple[int, int], ...], Row] = {}
    for sinks in sink_sides(network):
        missing = total - sum(supply.get(v, 0) for v in sinks)
        row = {1 + e: -1 for e, (u, v) in enumerate(links) if u not in sinks and v in sinks}
        if missing:
            row[0] = missing
            rows[tuple(sorted(row.items()))] = row, Fraction(0)
    program = [*rows.values(), *balance(network, links, first=1, sign=1)]
    program += [({1 + e: 1}, network.capacity[link]) for e, link in enumerate(links)]
    return maximum({0: 1}, program, 1 + len(links))


def all_reduce_rate(network: Network) -> Fraction:
    """The largest algbw of reduce trees and broadcast trees that share the links, roots chosen freely."""
    links, terminals = list(network.capacity), network.terminals
    spread, collect = len(terminals), len(terminals) + len(links)
    rows: dict[tuple[tuple[int, int], ...], Row] = {}
    for sinks in sink_sides(network):
        shares = {i: 1 for i, v in enumerate(terminals) if v not in sinks}
        if not shares:
            continue
        entering = {spread + e: -1 for e, (u, v) in enumerate(links) if u not in sinks and v in sinks}
        leaving = {collect + e: -1 for e, (u, v) in enumerate(links) if u in sinks and v not in sinks}
        for row in (shares | entering, shares | leaving):
            rows[tuple(sorted(row.items()))] = row, Fraction(0)
    program = [*rows.values(), *balance(network, links, first=spread, sign=1)]
    program += balance(network, links, first=collect, sign=-1)
    program += [({spread + e: 1, collect + e: 1}, network.capacity[link]) for e, link in enumerate(links)]
    return maximum(dict.fromkeys(range(len(terminals)), 1), program, len(terminals) + 2 * len(links))


def balance(network: Network, links: Sequence[tuple[int, int]], *, first: int, sign: int) -> list[Row]:
    """No switch sends more than it gets (``sign`` 1), or gets more than it sends (-1)."""
    return [
        (
            {first + e: sign * ((u == w) - (v == w)) for e, (u, v) in enumerate(links) if w in (u, v)},
            Fraction(0),
        )
        for w in network.switches
    ]
