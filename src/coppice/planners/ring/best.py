"""Best NCCL-style rings over the same links, the baseline next to the optimum.

A ring visits every rank once and comes back; each hop takes one route through switches and NICs (and GPUs
without a rank, which act as relays), never through another rank. Several rings (channels) share the work by
exact weights, optimal for the rings found (a linear program). New rings are priced by its dual, so that for
up to 16 ranks the result is the best that any set of rings can do, and a good heuristic for more.

Rings are carried out as a forest of chains, or its schedule. In an all-gather the shard of each rank follows each ring
to the rank before it: a broadcast tree that is a chain. A block that is reduced starts behind its owner and follows the
ring to it: a reduce tree, a chain too.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bandwidths
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.planners.ring.factors import cable_multigraph, hamiltonian_factors
from coppice.planners.ring.model import (
    Mix,
    Ring,
    RingTraffic,
    best_mix,
    link_counts,
    reversed_ring,
    ring_floor,
)
from coppice.planners.ring.search import boxes_of, search_for
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology

_STEEPNESS = 6.0  # how strongly the load so far raises a link's price
_PATIENCE = 24  # rounds without gain before the search ends


@dataclass(frozen=True, kw_only=True, repr=False)
class RingPlan(Bandwidths, Brief):
    """A set of rings that share a collective."""

    problem: Problem  # What the rings perform
    inv_rate: Fraction  # Exact time per shard (1 / (GB/s)); `problem.shards / inv_rate` is the algbw
    # `orders[j]`: ranks of ring j in ring order; broadcast and reduce begin at the root
    orders: tuple[tuple[int, ...], ...]
    weights: tuple[Fraction, ...]  # Share of the data that each ring carries; the sum is 1
    # `paths[j][i]`: node ids of the route from `orders[j][i]` to the next rank, ends included
    paths: tuple[tuple[tuple[int, ...], ...], ...]


def best_ring(problem: Problem, *, seed: int = 0, rounds: int | None = None) -> RingPlan | None:
    """Best ring, or set of rings that share the work, found for a problem.

    Args:
        problem: Any collective but all_to_all, for which there is no ring.
        seed: Seed of the search's tie-breaks; the same seed gives the same rings.
        rounds: Number of rings to try; None chooses by size.

    Returns:
        The rings, or None: for one rank, for collectives that are not made of trees, and where no ring through
        all ranks was found since ranks reach each other only through other ranks (certain up to 16 ranks).

    Examples:
        >>> from coppice.topology.model import Link, Node
        >>> from coppice.collectives import Collective
        >>> names = ["a", "b", "c", "d"]
        >>> square = Topology.of("square", [Node(id=n) for n in names],
        ...                      [Link(src=a, dst=b, gb_per_s=Fraction(10)) for a, b in zip(names, "bcda")])
        >>> plan = best_ring(Problem(topology=square, collective=Collective.ALL_GATHER))
        >>> plan.inv_rate, plan.weights, plan.orders
        (Fraction(3, 20), (Fraction(1, 2), Fraction(1, 2)), ((0, 1, 2, 3), (0, 3, 2, 1)))
    """
    topology = problem.topology
    if topology.num_ranks < 2 or not topology.num_links or not problem.collective.made_of_trees:
        return None
    traffic = RingTraffic.of(problem)
    rng = np.random.default_rng(seed)
    pool = _Pool(topology, traffic)
    boxes = boxes_of(topology)
    floor = ring_floor(topology, traffic, boxes)
    cables = cable_multigraph(topology) if topology.num_ranks > 2 else None
    if cables is not None:
        _add_factors(pool, cables, rng)
    if not pool.reaches(floor):
        _search(pool, traffic, boxes, floor=floor, rng=rng, rounds=rounds)
    return pool.plan(problem)


class _Pool:
    """Rings found so far, without repeats, and the best sharing among them."""

    def __init__(self, topology: Topology, traffic: RingTraffic) -> None:
        self.topology, self._traffic = topology, traffic
        self.rings: list[Ring] = []
        self._columns: list[NDArray[np.int64]] = []
        self._known: set[bytes] = set()
        self.mix: Mix | None = None

    def add(self, ring: Ring) -> bool:
        """Take a ring and its reverse; False where both load the links like rings already here."""
        fresh = False
        for candidate in (ring, reversed_ring(ring, self.topology)):
            if candidate is None:
                continue
            column = link_counts(candidate, self._traffic, self.topology.num_links)
            if column.tobytes() not in self._known:
                self._known.add(column.tobytes())
                self._columns.append(column)
                self.rings.append(candidate)
                fresh = True
        return fresh

    def share(self) -> None:
        """Solve for the best shares."""
        self.mix = best_mix(np.array(self._columns), self.topology.capacity)

    def reaches(self, floor: Fraction) -> bool:
        """The level is that floor, up to rounding: no ring can improve it."""
        return self.level * self.topology.denominator <= float(floor) * (1 + 1e-9)

    @property
    def level(self) -> float:
        """Worst link load over capacity of the best shares, per unit of traffic."""
        return np.inf if self.mix is None else self.mix.level

    def plan(self, problem: Problem) -> RingPlan | None:
        """The rings that carry something, with exact weights."""
        if self.mix is None:
            return None
        weights, time = self.mix.exact(self.topology)
        rings = sorted(
            (
                (_rotated(ring, problem), weight)
                for ring, weight in zip(self.rings, weights, strict=True)
                if weight
            ),
            key=lambda entry: (-entry[1], entry[0].nodes, entry[0].hops),
        )
        src, dst, rank = self.topology.src, self.topology.dst, self.topology.rank
        return RingPlan(
            problem=problem,
            inv_rate=time * self._traffic.scale,
            orders=tuple(tuple(rank[list(ring.nodes)].tolist()) for ring, _ in rings),
            weights=tuple(Fraction(weight, sum(weights)) for _, weight in rings),
            paths=tuple(
                tuple((int(src[hop[0]]), *dst[list(hop)].tolist()) for hop in ring.hops) for ring, _ in rings
            ),
        )


def _rotated(ring: Ring, problem: Problem) -> Ring:
    """The ring begun at the root, or at rank 0."""
    at = ring.nodes.index(int(problem.topology.rank_nodes[problem.root or 0]))
    return Ring(ring.nodes[at:] + ring.nodes[:at], ring.hops[at:] + ring.hops[:at])


def _steep(load: NDArray[np.float64], steepness: float) -> NDArray[np.float64]:
    """Price of a unit of capacity: exponential in the load of the link, relative to the largest."""
    return np.exp(steepness * (load / max(float(load.max()), 1e-300) - 1))


def _add_factors(pool: _Pool, cables: dict[tuple[int, int], int], rng: np.random.Generator) -> None:
    """Rings from the Hamiltonian cycles of a regular graph of direct cables, where they are found."""
    topology = pool.topology
    nodes, index = topology.rank_nodes.tolist(), topology.link_index
    ranks = topology.num_ranks
    cycles = hamiltonian_factors(ranks, cables, rng, tries=max(3, min(40, 8192 // ranks)))
    for cycle in cycles or ():
        tour = [nodes[point] for point in cycle]
        hops = tuple((index[u, v],) for u, v in pairwise([*tour, tour[0]]))
        pool.add(Ring(tuple(tour), hops))
    if pool.rings:
        pool.share()


def _search(
    pool: _Pool,
    traffic: RingTraffic,
    boxes: list[NDArray[np.int32]],
    *,
    floor: Fraction,
    rng: np.random.Generator,
    rounds: int | None,
) -> None:
    """Add rings, priced in turn by all loads so far, by the dual and by the loads of the best shares."""
    topology = pool.topology
    width = topology.capacity.max() / topology.capacity.astype(np.float64)
    searches = search_for(topology, traffic, boxes, rng)
    while searches and searches[0].ring(width) is None:
        searches.pop(0)
    if not searches:
        return
    search = searches[0]
    if rounds is None:
        rounds = 240 if search.exact else max(24, min(96, 16384 // topology.num_ranks))
    load, dual = np.zeros(topology.num_links), np.zeros(topology.num_links)
    stale = 0
    for turn in range(rounds):
        by_dual = False
        prices = _steep(load, _STEEPNESS)
        if pool.mix is not None and turn % 3:
            by_dual = turn % 3 == 1
            latest = pool.mix.prices * topology.capacity
            dual = latest / latest.max() + (0.0 if search.exact else dual / 2)
            shared = pool.mix.shares @ pool.mix.counts * width
            prices = dual / dual.max() + 1e-7 if by_dual else _steep(shared, 2 * _STEEPNESS)
        ring = search.ring(prices * width)
        if ring is None:
            continue
        load += link_counts(ring, traffic, topology.num_links) * width
        before = pool.level
        fresh = pool.add(ring)
        if fresh:
            pool.share()
        if pool.reaches(floor):
            return
        stale = 0 if pool.level < before * (1 - 1e-9) else stale + 1
        if (search.exact and by_dual and not fresh) or stale >= _PATIENCE:
            return


_MAX_EDGES = 2**27


def ring_forest(ring: RingPlan) -> Forest:
    """Rings as a forest of chains, to be verified, drawn and exported.

    Args:
        ring: What :func:`~coppice.planners.ring.best.best_ring` returns.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.ring.best import best_ring
        >>> from coppice.topology.model import Link, Node, Topology
        >>> names = ["a", "b", "c", "d"]
        >>> square = Topology.of("square", [Node(id=n) for n in names],
        ...                      [Link(src=a, dst=b, gb_per_s=Fraction(10)) for a, b in zip(names, "bcda")])
        >>> forest = ring_forest(best_ring(Problem(topology=square, collective=Collective.ALL_GATHER)))
        >>> forest.num_trees, forest.num_edges
        (8, 24)
    """
    problem = ring.problem
    topology, collective = problem.topology, problem.collective
    ranks = topology.num_ranks
    roots = np.array([problem.root or 0]) if collective.rooted else np.arange(ranks)
    phases = {
        Collective.BROADCAST: (Phase.BROADCAST,),
        Collective.ALL_GATHER: (Phase.BROADCAST,),
        Collective.ALL_REDUCE: (Phase.REDUCE, Phase.BROADCAST),
    }.get(collective, (Phase.REDUCE,))
    shares = np.array(problem.weights or [1] * ranks, dtype=np.int64)[roots]
    roots, shares = roots[shares > 0], shares[shares > 0]
    trees = len(ring.orders) * len(roots) * len(phases)
    if trees * (ranks - 1) > _MAX_EDGES:
        raise InputError(
            f"expected at most 2^27 edges in all chains, found {trees * (ranks - 1)}: "
            "keep the rings as orders and weights."
        )
    common = lcm(*(weight.denominator for weight in ring.weights))
    nodes: list[np.ndarray] = []
    hops: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for number, (order, weight) in enumerate(zip(ring.orders, ring.weights, strict=True)):
        place = np.empty(ranks, dtype=np.int64)
        place[list(order)] = np.arange(ranks)
        for phase in phases:
            first = place[roots] + (1 if phase is Phase.REDUCE else 0)
            hops.append(number * ranks + (first[:, None] + np.arange(ranks - 1)) % ranks)
            nodes.append(topology.rank_nodes[roots])
            weights.append(shares * int(weight * common))
    paths = [path for each in ring.paths for path in each]
    hop = np.concatenate(hops).reshape(-1)
    return Forest(
        topology=topology,
        collective=collective,
        tree_root=np.concatenate(nodes).astype(np.int32),
        tree_weight=np.concatenate(weights),
        tree_phase=np.tile(np.repeat(np.array(phases, dtype=np.int8), len(roots)), len(ring.orders)),
        tree_start=np.arange(trees + 1, dtype=np.int64) * (ranks - 1),
        edge_src=np.array([path[0] for path in paths], dtype=np.int32)[hop],
        edge_dst=np.array([path[-1] for path in paths], dtype=np.int32)[hop],
        edge_path=hop.astype(np.int32),
        path_start=offsets(np.array([len(path) for path in paths], dtype=np.int64)),
        path_nodes=np.array([node for path in paths for node in path], dtype=np.int32),
    )


def ring_schedule(ring: RingPlan) -> Schedule:
    """Rings as a schedule.

    Args:
        ring: What :func:`~coppice.planners.ring.best.best_ring` returns.
    """
    return lower(ring_forest(ring))
