"""Rings, their traffic and link loads, and how several share the work.

The shares come from a linear program over the rings found. With v[j] the rate of ring j, the rates that fit are those
with ``sum over j of counts[j, e] * v[j] <= capacity[e]`` on every link; the best sharing maximises their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import CoppiceError
from coppice.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Ring:
    """A closed tour of all ranks."""

    nodes: tuple[int, ...]  # Nodes of the ranks in ring order
    # `hops[i]`: link ids of the route from `nodes[i]` to the next node; the last closes the ring
    hops: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class RingTraffic(Brief):
    """Traffic of a hop from u to v of a ring that does all the work: ``out[u] * into[v] * scale`` shards."""

    out: NDArray[np.int64]  # Factor of the sending node, by node id (int64)
    into: NDArray[np.int64]  # Factor of the receiving node, by node id (int64)
    scale: Fraction  # Common factor

    @classmethod
    def of(cls, problem: Problem) -> RingTraffic:
        """Traffic of a ring for ``problem``.

        All-gather: all but the receiver's own shard passes; reduce-scatter: all but the sender's block;
        all-reduce: both phases, 2 (N - 1) blocks of M / N; broadcast and reduce: all of M over each hop but
        the one that would close the chain at the root.
        """
        topology = problem.topology
        out = np.ones(topology.num_nodes, dtype=np.int64)
        into = np.ones(topology.num_nodes, dtype=np.int64)
        ranks, count = topology.rank_nodes, topology.num_ranks
        weights = np.array(problem.weights or [1] * count, dtype=np.int64)
        scale = Fraction(1)
        match problem.collective:
            case Collective.ALL_GATHER:
                into[ranks] = weights.sum() - weights
            case Collective.REDUCE_SCATTER:
                out[ranks] = weights.sum() - weights
            case Collective.ALL_REDUCE:
                scale = Fraction(2 * (count - 1), count)
            case Collective.BROADCAST:
                into[ranks[problem.root or 0]] = 0
            case Collective.REDUCE:
                out[ranks[problem.root or 0]] = 0
            case _:
                raise ValueError(f"a ring cannot perform {problem.collective}")
        return cls(out, into, scale)

    def factors(self, senders: NDArray[np.int32], receivers: NDArray[np.int32]) -> NDArray[np.float64]:
        """Traffic from ``senders`` to ``receivers``, relative to the largest possible."""
        largest = max(1, int(self.out.max()) * int(self.into.max()))
        return np.outer(self.out[senders], self.into[receivers]) / largest


def link_counts(ring: Ring, traffic: RingTraffic, num_links: int) -> NDArray[np.int64]:
    """Shards (over ``traffic.scale``) on each link when ``ring`` does all the work."""
    links = np.fromiter((link for hop in ring.hops for link in hop), dtype=np.int64)
    nodes = np.array(ring.nodes)
    load = traffic.out[nodes] * traffic.into[np.roll(nodes, -1)]
    counts = np.zeros(num_links, dtype=np.int64)
    np.add.at(counts, links, np.repeat(load, [len(hop) for hop in ring.hops]))
    return counts


def reversed_ring(ring: Ring, topology: Topology) -> Ring | None:
    """Ring in reverse over the same cables, or None where one is one-way."""
    index, src, dst = topology.link_index, topology.src, topology.dst
    hops: list[tuple[int, ...]] = []
    for hop in reversed(ring.hops):
        back = [index.get((int(dst[link]), int(src[link])), -1) for link in reversed(hop)]
        if -1 in back:
            return None
        hops.append(tuple(back))
    return Ring((ring.nodes[0], *reversed(ring.nodes[1:])), tuple(hops))


def worst_time(counts: NDArray[np.int64], weights: list[int], topology: Topology) -> Fraction:
    """Exact time per shard (without ``Traffic.scale``) of rings that share the work by ``weights``.

    Args:
        counts: ``counts[j]``: what :func:`link_counts` gives for ring j.
        weights: Weight of each ring; only their ratios matter.
    """
    exact = max(abs(w) for w in weights) * int(counts.max(initial=0)) * len(weights) < 2**62
    column = counts if exact else counts.astype(object)
    load = np.array(weights, dtype=np.int64 if exact else object) @ column
    pairs = set(zip(load.tolist(), topology.capacity.tolist(), strict=True))
    worst = max((Fraction(used, room) for used, room in pairs), default=Fraction(0))
    return worst * topology.denominator / sum(weights)


def ring_floor(topology: Topology, traffic: RingTraffic, boxes: list[NDArray[np.int32]]) -> Fraction:
    """Lower bound for rings (without ``Traffic.scale``): each enters and leaves every rank and box.

    Args:
        boxes: Groups of ranks' nodes; a single one says nothing.
    """
    capacity, ranks = topology.capacity, topology.rank_nodes
    entering = np.zeros(topology.num_nodes, dtype=np.int64)
    leaving = np.zeros(topology.num_nodes, dtype=np.int64)
    np.add.at(entering, topology.dst, capacity)
    np.add.at(leaving, topology.src, capacity)
    into, out = traffic.into[ranks], traffic.out[ranks]
    least_into, least_out = np.sort(into)[:2].tolist(), np.sort(out)[:2].tolist()
    cuts: list[tuple[int, int]] = []  # (traffic at least, capacity) of a cut that every ring crosses
    for v, node in enumerate(ranks.tolist()):
        others_out = least_out[int(out[v] == least_out[0])]
        others_into = least_into[int(into[v] == least_into[0])]
        cuts.append((int(into[v]) * others_out, int(entering[node])))
        cuts.append((int(out[v]) * others_into, int(leaving[node])))
    ranked = topology.rank >= 0
    for box in boxes if len(boxes) > 1 else ():
        inside = np.zeros(topology.num_nodes, dtype=np.bool_)
        hosts = np.unique(topology.host[box])
        if hosts[0] >= 0:
            inside = ~ranked & np.isin(topology.host, hosts)
        inside[box] = True
        member, other = inside & ranked, ~inside & ranked
        enter = inside[topology.dst] & ~inside[topology.src]
        leave = inside[topology.src] & ~inside[topology.dst]
        cuts.append(
            (int(traffic.into[member].min()) * int(traffic.out[other].min()), int(capacity[enter].sum()))
        )
        cuts.append(
            (int(traffic.out[member].min()) * int(traffic.into[other].min()), int(capacity[leave].sum()))
        )
    worst = max((Fraction(load, room) for load, room in cuts if room), default=Fraction(0))
    return worst * topology.denominator


_DENOMINATORS = (*range(1, 97), 105, 112, 120, 126, 128, 144, 168, 180, 192, 210, 240, 252, 256, 315, 10**6)

_LARGEST_COMMON = 2**40


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Mix(Brief):
    """Optimal shares of the work among given rings."""

    counts: NDArray[np.int64]  # Traffic of each ring on each link
    program: LinearProgram  # The linear program, solved
    shares: NDArray[np.float64]  # Share of each ring; the sum is 1
    level: float  # Worst link load over capacity, per unit of traffic
    # Price of each link; only rings whose traffic costs less than 1 can lower the level
    prices: NDArray[np.float64]

    def exact(self, topology: Topology) -> tuple[list[int], Fraction]:
        """Integer weights of the least exact bottleneck load, small numbers preferred.

        Returns:
            The weights (coprime, some perhaps 0), and their
            :func:`~coppice.planners.ring.model.worst_time`.
        """
        chosen = np.flatnonzero(self.shares > 1e-9)
        distinct = _alike(self.counts[chosen], topology.capacity)[0]
        loads = (distinct[:, :-1] / distinct[:, -1:]).T
        grids = [np.rint(self.shares[chosen] * denominator).astype(np.int64) for denominator in _DENOMINATORS]
        tried = [
            (float((grid @ loads).max()) / int(grid.sum()), grid.tolist()) for grid in grids if grid.any()
        ]
        least = min(level for level, _ in tried)
        best = next(grid for level, grid in tried if level <= least * (1 + 1e-12))
        weights = [0] * len(self.shares)
        for ring, weight in zip(chosen.tolist(), best, strict=True):
            weights[ring] = weight
        if least > self.level * (1 + 1e-12):
            weights = self._vertex() or weights
        return weights, worst_time(self.counts, weights, topology)

    def _vertex(self) -> list[int] | None:
        """The weights of the exact optimal vertex, or None where they are unwieldy."""
        vertex = self.program.exact_vertex()
        if vertex is None:
            return None
        common = lcm(*(value.denominator for value in vertex.values))
        return None if common > _LARGEST_COMMON else [int(value * common) for value in vertex.values]


def best_mix(counts: NDArray[np.int64], capacity: NDArray[np.int64]) -> Mix:
    """Shares that minimise the bottleneck load, by HiGHS.

    Args:
        counts: ``counts[j, e]``: traffic of ring j on link e; each ring has some.
    """
    kinds, kind, size = _alike(counts, capacity)
    used = np.flatnonzero(kinds[:, :-1].any(axis=1))
    program = LinearProgram([1] * len(counts), [None] * len(counts))
    rows: list[Constraint] = []
    for *loads, room in kinds[used].tolist():
        value = np.array(loads, dtype=np.int64)
        column = np.flatnonzero(value)
        rows.append(Constraint(column=column.astype(np.int32), value=value[column], bound=room))
    program.add_rows(rows)
    vertex = program.solve()
    if vertex is None or vertex.objective <= 0:
        raise CoppiceError("the linear program over rings was not solved: report this topology.")
    price = np.zeros(len(kinds))
    price[used] = np.maximum(program.float_multipliers(), 0.0)
    return Mix(
        counts=counts,
        program=program,
        shares=np.maximum(vertex.values, 0.0) / vertex.objective,
        level=1 / vertex.objective,
        prices=(price / size)[kind],
    )


def _alike(
    counts: NDArray[np.int64], capacity: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Links that all rings use alike as one row (counts, capacity): rows, row of each link, links of each."""
    table = np.ascontiguousarray(np.vstack([counts, capacity]).T)
    number: dict[bytes, int] = {}
    kind = np.array([number.setdefault(row.tobytes(), len(number)) for row in table], dtype=np.int64)
    first = np.unique(kind, return_index=True)[1]
    return table[first], kind, np.bincount(kind)
