"""A bound on time from prices of links: what must be paid, and for how long each link can be of use.

Theory. Let links have prices w(e) >= 0 such that whoever carries out the collective on S bytes pays W S at least, a
byte on link e costing w(e). A byte enters link e = (x, y) no earlier than the nearest rank's data can be at x, and
comes out so early that a rank can still be reached from y by the time T. So the link carries at most b(e) max(0, T -
a(e) - in(x) - out(y)) bytes, in and out being distances from and to the nearest rank, and

    W S  <=  sum over e of w(e) b(e) max(0, T - a(e) - in(x) - out(y)).

Prices are those of a bound on the rate: a family of disjoint sets for an all-reduce (docs/theory.md, Theorem 7),
lengths of links for an all-to-all. For S -> infinity this is that bound, and the latencies of the links that it prices
come on top of it.

**Representatives.** Of an all-reduce one rank of each set is enough: the theorem holds for their terms, and for their
results, alone. Only messages on the way from one of these ranks to one of them are looked at then, so distances count
from, and to, the nearest of them (docs/theory.md, Theorem 14): where the sets are boxes, what leaves a box by another
GPU has come to it first.

**Sends of an all-reduce.** Each element is sent 2 (n - 1) times by the n ranks: consider the first moment at which some
rank has its result. Every other rank's term has left that rank by then, each in a message of its own that was the
first to bring it on, and none of the others has the result yet: each must get one more message. So links out of ranks
have a price of 1, and W = 2 (n - 1) (docs/theory.md, Theorem 13). That counts where ranks send less than their links
take.

**Sends of an all-to-all.** What rank i has for rank j is sent by as many ranks as lie on the way that has the fewest of
them: each byte pays a price of 1 so often (docs/theory.md, Theorem 21).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TypeAlias

import numpy as np

from coppice.bounds.problem import Problem
from coppice.bounds.result import CutFamily, LinkLengths, NodePotential, WeightedCut
from coppice.bounds.sizes.timed import TimedNetwork, nearest
from coppice.collectives import Collective

Paid: TypeAlias = tuple[Sequence[int], Fraction]
"""Price of each link, and what a byte of the message pays at least."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PricedLinks:
    """A bound from prices, for every size: bytes that must be paid for, and when each link can be used first."""

    network: TimedNetwork
    # What the prices come from; None: the sends of an all-reduce or an all-to-all
    witness: CutFamily | LinkLengths | None
    work: Fraction  # Price that a byte of the message costs at least
    price: tuple[int, ...]  # Of each link of the network
    begin: tuple[int, ...]  # Units of time that each link is of no use, in all
    representatives: tuple[int, ...]  # Nodes of the ranks from and to whose nearest ones distances count

    def least_time(self, size_bytes: Fraction) -> Fraction:
        """Nanoseconds that a message of so many bytes, with shares of whole or broken ones, takes at least."""
        network = self.network
        rows = sorted(
            (begin, price * capacity)
            for begin, price, capacity in zip(self.begin, self.price, network.capacity.tolist(), strict=True)
            if price
        )
        paid = self.work * size_bytes / network.scale * network.units
        if network.burst_bytes:
            paid -= sum(self.price) * network.burst_bytes / network.scale * network.units
        if paid <= 0 or not rows:
            return Fraction(0)
        rate, begun, root = 0, 0, Fraction(0)
        for place, (begin, value) in enumerate(rows):
            rate, begun = rate + value, begun + value * begin
            root = Fraction(paid + begun) / rate
            if place + 1 == len(rows) or root <= rows[place + 1][0]:
                break
        return root / network.units


def priced_links(
    problem: Problem,
    network: TimedNetwork,
    witness: CutFamily | LinkLengths | None,
    representatives: Sequence[int] | None = None,
    paid: Paid | None = None,
) -> PricedLinks:
    """The bound on time that the witness of a bound on the rate gives, or the sends where there is none.

    Args:
        representatives: Nodes of ranks, of which each set of a family of disjoint sets has one; None is the first of
            each set, or all ranks where the witness has no sets.
        paid: What :func:`paid_by` makes of the witness, if it is known.
    """
    if witness is None:
        price: Sequence[int] = np.isin(network.tail, problem.topology.rank_nodes).astype(int).tolist()
        work = sends(problem)
    else:
        price, work = paid_by(problem, witness) if paid is None else paid
    more = len(network.tail) - len(price)
    if representatives is None:
        representatives = _first_ranks(problem, witness)
    into = nearest(network.tail, network.head, network.latency, representatives)
    out = nearest(network.head, network.tail, network.latency, representatives)
    begin = [
        into.get(a, 0) + latency + out.get(b, 0)
        for a, b, latency in zip(
            network.tail.tolist(), network.head.tolist(), network.latency.tolist(), strict=True
        )
    ]
    return PricedLinks(
        network=network,
        witness=witness,
        work=work,
        price=(*price, *[0] * more),
        begin=tuple(begin),
        representatives=tuple(representatives),
    )


def paid_by(problem: Problem, witness: CutFamily | LinkLengths) -> Paid:
    """Price of each link of the topology by a witness, and what a byte of the message pays at least."""
    if isinstance(witness, LinkLengths):
        return witness.length, _lengths_paid(problem, list(witness.length))
    return _family_prices(problem, witness)


def sends(problem: Problem) -> Fraction:
    """How often ranks send a byte of the message, at least: of an all-reduce, or an all-to-all.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4)
        >>> sends(Problem(ring, "all_reduce")), sends(Problem(ring, "all_to_all"))
        (Fraction(6, 1), Fraction(4, 1))
    """
    topology = problem.topology
    if problem.collective is Collective.ALL_REDUCE:
        return Fraction(2 * (topology.num_ranks - 1))
    return _lengths_paid(problem, (topology.rank[topology.src] >= 0).astype(int).tolist())


def _first_ranks(problem: Problem, witness: CutFamily | LinkLengths | None) -> list[int]:
    """The first rank of each set of an all-reduce's family, or all ranks."""
    ranks: list[int] = problem.topology.rank_nodes.tolist()
    if problem.collective is not Collective.ALL_REDUCE or not isinstance(witness, CutFamily):
        return ranks
    sets = [set(cut.nodes) for cut in witness.cuts]
    return [next(node for node in ranks if node in inside) for inside in sets]


def _family_prices(problem: Problem, family: CutFamily) -> tuple[list[int], Fraction]:
    """Prices of disjoint sets with potentials, and what a byte of the message costs at least."""
    topology = problem.topology
    src, dst = topology.src, topology.dst
    rows: list[WeightedCut | NodePotential] = [*family.cuts, *family.potentials]
    unit = lcm(*(weight.denominator for row in rows for weight in (row.broadcast, row.reduce)))
    broadcast, reduce = ([0] * topology.num_links for _ in range(2))
    outside = np.zeros(topology.num_nodes, dtype=np.int64)
    for cut in family.cuts:
        inside = np.zeros(topology.num_nodes, dtype=np.bool_)
        inside[list(cut.nodes)] = True
        for e in np.flatnonzero(~inside[src] & inside[dst]).tolist():
            broadcast[e] += int(cut.broadcast * unit)
        for e in np.flatnonzero(inside[src] & ~inside[dst]).tolist():
            reduce[e] += int(cut.reduce * unit)
        outside[~inside] += int((cut.broadcast + cut.reduce) * unit)
    potential = {each.node: each for each in family.potentials}
    for e, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        for node, sign in ((b, 1), (a, -1)):
            if node in potential:
                broadcast[e] += sign * int(potential[node].broadcast * unit)
                reduce[e] -= sign * int(potential[node].reduce * unit)
    price = [max(0, *pair) for pair in zip(broadcast, reduce, strict=True)]
    return price, Fraction(int(outside[topology.rank_nodes].min()))


def _lengths_paid(problem: Problem, length: list[int]) -> Fraction:
    """Length that the bytes of an all-to-all go at least, for a byte of the message."""
    from coppice.bounds.all_to_all.distances import distances, length_column

    topology = problem.topology
    nodes = topology.rank_nodes
    ways = distances(topology, nodes, length_column(length))[:, nodes].tolist()
    size = problem.demands or [[1] * len(nodes)] * len(nodes)
    total = sum(
        way * each
        for i, (row, sizes) in enumerate(zip(ways, size, strict=True))
        for j, (way, each) in enumerate(zip(row, sizes, strict=True))
        if i != j and each
    )
    return Fraction(total) / problem.shards
