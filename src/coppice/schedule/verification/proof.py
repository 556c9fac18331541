"""Check proofs of bounds: families of cuts, or link lengths, that hold for every plan.

Nothing here believes a witness. From its weights alone a bound is counted that holds by weak duality, whatever the
weights are; a witness is right if that bound is as good as it says.

**Cuts and potentials.** Let c_b(e) and c_r(e) be what broadcast trees and reduce trees put on link e per unit of time,
x(v) the rate of the trees rooted at v. Each of these is necessary: broadcast trees rooted outside a set S with a rank
enter it; reduce trees rooted outside leave it; a node that cannot copy sends no more broadcast data than it gets; one
that cannot add gets no more reduce data than it sends; c_b(e) + c_r(e) <= b(e). Add the first two with the weights y of
the cuts, and the next two with the potentials z of the nodes. What link e gets is its *price* q(e): in the broadcast
phase the weights of the sets that it enters, plus z of its head, minus z of its tail; in the reduce phase the weights
of the sets that it leaves, plus z of its tail, minus z of its head. Then

    sum over v of x(v) * (weight of the sets without v) <= sum over e of b(e) * max(0, q_b(e), q_r(e)).

In an all-reduce the roots are free, so the least weight at a possible root counts; elsewhere x is given.

**Lengths.** Data that goes from i to j uses up length times flow of at least its distance, and the links offer no more
than the sum of length times capacity.

**Whole trees.** With k trees per unit of weight and less than T of time per shard, a link of rate b carries a whole
number of trees below k T b, hence at most ceil(k T b) - 1, and no more than all trees have edges. The cuts prove that
this is too little; or they do so in either of two cases, at most m trees or at least m + 1 on some link.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.bounds.result import CutFamily, LinkLengths, LinkRange, NodePotential, WeightedCut, WholeTrees
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry, check_symmetry

_PHASES = {
    Collective.ALL_GATHER: (True, False),
    Collective.BROADCAST: (True, False),
    Collective.REDUCE_SCATTER: (False, True),
    Collective.REDUCE: (False, True),
    Collective.ALL_REDUCE: (True, True),
}
"""Whether a collective has broadcast trees, and reduce trees."""

_Numbers = NDArray[np.object_]


@dataclass(frozen=True, kw_only=True)
class ProvedBound:
    """Bound that a proof establishes."""

    # Time per shard that nothing of this kind goes below; None where it is impossible altogether
    inv_rate: Fraction | None
    # It holds for schedules of any kind; otherwise for those of reduce trees and broadcast trees
    for_schedules: bool


def prove_by_cuts(problem: Problem, proof: CutFamily, *, helped: bool = False) -> ProvedBound:
    """Derive the bound that cuts and potentials prove.

    Args:
        problem: A collective made of trees, on its topology.
        helped: The bound is to hold for plans in which the switches that can copy and add do so, too.

    Examples:
        >>> from coppice.bounds.result import NodePotential, partitioned
        >>> from coppice.topology.presets import preset
        >>> star = Problem(topology=preset("star", gpus=4, gb_per_s=3), collective=Collective.ALL_REDUCE)
        >>> sets, none, one = [[0], [1], [2], [3]], Fraction(0), Fraction(1)
        >>> prove_by_cuts(star, partitioned(sets, [], none)).inv_rate
        Fraction(1, 4)
        >>> switch = NodePotential(node=4, reduce=one)
        >>> prove_by_cuts(star, partitioned(sets, [switch], none)).inv_rate
        Fraction(1, 2)
    """
    dual = _Dual.of(problem, proof, helped=helped)
    topology = problem.topology
    if problem.collective is Collective.ALL_REDUCE:
        roots = topology.rank >= 0
        if helped:
            roots = roots | (topology.multicast & topology.aggregate)
        needed = min(dual.outside[np.flatnonzero(roots)].tolist())
    else:
        needed = sum(
            weight * outside
            for weight, outside in zip(
                _root_weights(problem), dual.outside[topology.rank_nodes].tolist(), strict=True
            )
        )
    room = sum(
        capacity * max(0, *prices)
        for capacity, *prices in zip(
            topology.capacity.tolist(), *(price.tolist() for price in dual.price), strict=True
        )
    )
    if not needed:
        return ProvedBound(inv_rate=Fraction(0), for_schedules=True)
    apart = problem.collective is not Collective.ALL_REDUCE or dual.disjoint
    inv_rate = Fraction(needed * topology.denominator, room) if room else None
    return ProvedBound(inv_rate=inv_rate, for_schedules=apart)


def prove_by_lengths(problem: Problem, proof: LinkLengths) -> ProvedBound:
    """Derive the bound that link lengths prove for an all-to-all, gather or scatter.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> ring = Problem(topology=preset("ring", gpus=4, gb_per_s=1), collective=Collective.ALL_TO_ALL)
        >>> prove_by_lengths(ring, LinkLengths(inv_rate=Fraction(0), length=(1,) * 8)).inv_rate
        Fraction(2, 1)
    """
    topology = problem.topology
    if problem.collective not in (Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER):
        raise CheckError(f"lengths of links prove nothing about {problem.collective}.")
    if len(proof.length) != topology.num_links or min(proof.length, default=0) < 0:
        raise CheckError(f"expected {topology.num_links} lengths of 0 or more, found others.")
    following: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_nodes)]
    for a, b, length in zip(topology.src.tolist(), topology.dst.tolist(), proof.length, strict=True):
        following[a].append((b, length))
    nodes, work, reachable = topology.rank_nodes.tolist(), 0, True
    for rank, node in enumerate(nodes):
        sizes = _sizes(problem, rank)
        if not any(sizes):
            continue
        distance = _distances(following, node)
        for size, target in zip(sizes, nodes, strict=True):
            if size and distance[target] < 0:
                reachable = False
            work += size * distance[target]
    room = sum(c * length for c, length in zip(topology.capacity.tolist(), proof.length, strict=True))
    if not reachable or (work and not room):
        return ProvedBound(inv_rate=None, for_schedules=True)
    inv_rate = Fraction(work * topology.denominator, room) if work else Fraction(0)
    return ProvedBound(inv_rate=inv_rate, for_schedules=True)


def link_prices(problem: Problem, proof: CutFamily | LinkLengths) -> tuple[list[int], Fraction]:
    """Price of a byte on each link by a witness, and what a byte of the message pays at least, whatever the schedule.

    Raises:
        CheckError: If the witness says nothing about all schedules: sets that overlap, of an all-reduce.
    """
    if isinstance(proof, LinkLengths):
        found = prove_by_lengths(problem, proof)
        price, room = (
            list(proof.length),
            sum(
                c * length for c, length in zip(problem.topology.capacity.tolist(), proof.length, strict=True)
            ),
        )
    else:
        found = prove_by_cuts(problem, proof)
        prices = _Dual.of(problem, proof, helped=False).price
        price = [max(0, *pair) for pair in zip(*(each.tolist() for each in prices), strict=True)]
        room = sum(c * each for c, each in zip(problem.topology.capacity.tolist(), price, strict=True))
    if not found.for_schedules:
        raise CheckError("the sets of this proof overlap, so it binds pairs of trees only.")
    if found.inv_rate is None:
        raise CheckError("this proof says that the collective is impossible.")
    return price, found.inv_rate * room / (problem.topology.denominator * problem.shards)


def check_whole_trees(problem: Problem, proof: WholeTrees) -> None:
    """Check a proof about forests with a given number of trees; raise where it fails.

    Args:
        problem: A collective of one phase of trees, without help of switches, on its topology.
    """
    topology = problem.topology
    if problem.collective not in _PHASES or all(_PHASES[problem.collective]) or proof.trees < 1:
        raise CheckError(
            f"whole trees are counted in one phase of trees, found {problem.collective} with {proof.trees}."
        )
    scale = proof.trees * proof.inv_rate / topology.denominator
    edges = proof.trees * sum(_root_weights(problem)) * (topology.num_ranks - 1)
    most = [
        min(edges, max(0, -(-c * scale.numerator // scale.denominator) - 1))
        for c in topology.capacity.tolist()
    ]
    bounds = {0: ([0] * topology.num_links, most)}  # trees on each link, at least and at most, in each case
    if not proof.cases:
        raise CheckError("there is no case in it.")
    for number, case in enumerate(proof.cases):
        if number not in bounds:
            raise CheckError(f"no case leads to case {number}.")
        least, most = bounds.pop(number)
        if isinstance(case, LinkRange):
            following = {case.below, case.above}
            if not 0 <= case.link < topology.num_links or len(following) < 2 or following & bounds.keys():
                raise CheckError(f"case {number} must be about a link and lead to two cases of its own.")
            if not all(number < each < len(proof.cases) for each in following):
                raise CheckError(f"case {number} must lead to later cases.")
            below, above = list(most), list(least)
            below[case.link] = min(below[case.link], case.most)
            above[case.link] = max(above[case.link], case.most + 1)
            bounds |= {case.below: (least, below), case.above: (above, most)}
        elif all(low <= high for low, high in zip(least, most, strict=True)):
            _check_case(problem, case, proof, least, most)


def _check_case(
    problem: Problem, case: CutFamily, proof: WholeTrees, least: list[int], most: list[int]
) -> None:
    """Within these whole numbers of trees on the links, some cut would not let in what it must."""
    dual = _Dual.of(problem, case, helped=False)
    outside = dual.outside[problem.topology.rank_nodes].tolist()
    needed = proof.trees * sum(w * o for w, o in zip(_root_weights(problem), outside, strict=True))
    price = (dual.price[0] if _PHASES[problem.collective][0] else dual.price[1]).tolist()
    room = sum(p * (high if p > 0 else low) for p, low, high in zip(price, least, most, strict=True))
    if room >= needed:
        raise CheckError(
            f"{proof.trees} trees in less than {proof.inv_rate} per shard are not excluded by its cuts in every case."
        )


@dataclass(frozen=True, eq=False)
class _Dual:
    """Prices and weights, as integers in a common unit: ``outside[v]`` is the weight of the sets without node v."""

    price: tuple[_Numbers, _Numbers]
    outside: _Numbers
    disjoint: bool

    @classmethod
    def of(cls, problem: Problem, proof: CutFamily, *, helped: bool) -> _Dual:
        """Add up a witness, with all its images."""
        if problem.collective not in _PHASES:
            raise CheckError(f"a family of cuts proves nothing about {problem.collective}.")
        topology = problem.topology
        group = None if proof.symmetry is None or not proof.symmetry.orders else proof.symmetry
        if group is not None:
            check_symmetry(topology, group, free=False)
        rows: list[WeightedCut | NodePotential] = [*proof.cuts, *proof.potentials]
        _check_weights(problem, rows)
        unit = lcm(*(w.denominator for row in rows for w in (row.broadcast, row.reduce)))
        price = (_zeros(topology.num_links), _zeros(topology.num_links))
        outside, times = _zeros(topology.num_nodes), np.zeros(topology.num_nodes, dtype=np.int64)
        for k, cut in enumerate(proof.cuts):
            inside = _members(topology, cut.nodes, k)
            times += inside
            entering = ~inside[topology.src] & inside[topology.dst]
            leaving = inside[topology.src] & ~inside[topology.dst]
            broadcast, reduce = int(cut.broadcast * unit), int(cut.reduce * unit)
            _add_to_links(price[0], entering, broadcast, group)
            _add_to_links(price[1], leaving, reduce, group)
            _add_to_nodes(outside, np.flatnonzero(~inside), broadcast + reduce, group)
        down, up = _zeros(topology.num_nodes), _zeros(topology.num_nodes)
        for potential in proof.potentials:
            _check_potential(topology, potential.node, potential.broadcast, potential.reduce, helped=helped)
            at = np.array([potential.node])
            _add_to_nodes(down, at, int(potential.broadcast * unit), group)
            _add_to_nodes(up, at, int(potential.reduce * unit), group)
        price[0][:] += down[topology.dst] - down[topology.src]
        price[1][:] += up[topology.src] - up[topology.dst]
        return cls(price, outside, group is None and bool((times <= 1).all()))


def _check_weights(problem: Problem, rows: list[WeightedCut | NodePotential]) -> None:
    """Weights are 0 or more, and 0 for trees that the collective does not have."""
    broadcasts, reduces = _PHASES[problem.collective]
    for row in rows:
        if row.broadcast < 0 or row.reduce < 0:
            raise CheckError(f"weights must be 0 or more, found {min(row.broadcast, row.reduce)}.")
        if (row.broadcast and not broadcasts) or (row.reduce and not reduces):
            raise CheckError(f"weights are given to trees that {problem.collective} does not have.")


def _check_potential(
    topology: Topology, node: int, broadcast: Fraction, reduce: Fraction, *, helped: bool
) -> None:
    """Only nodes that cannot copy (or add) are held to sending what they get."""
    if not 0 <= node < topology.num_nodes:
        raise CheckError(f"a potential is at node {node}, which does not exist.")
    ranked = topology.rank[node] >= 0
    copies = ranked or (helped and topology.multicast[node])
    adds = ranked or (helped and topology.aggregate[node])
    if (broadcast and copies) or (reduce and adds):
        what = "copy" if broadcast and copies else "add"
        raise CheckError(f"{topology.node_ids[node]} can {what}, so a potential there proves nothing.")


def _members(topology: Topology, nodes: tuple[int, ...], cut: int) -> NDArray[np.bool_]:
    """The set of a cut, which must hold a rank: nothing else has to be entered or left."""
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    if any(not 0 <= v < topology.num_nodes for v in nodes):
        raise CheckError(f"cut {cut} names a node that does not exist.")
    inside[list(nodes)] = True
    if not inside[topology.rank_nodes].any():
        raise CheckError(f"cut {cut} holds no rank, so nothing has to cross it.")
    return inside


def _add_to_links(total: _Numbers, chosen: NDArray[np.bool_], weight: int, group: Symmetry | None) -> None:
    """Add a weight to the chosen links and to all their images."""
    if group is None:
        total[chosen] += weight
        return
    counts = np.bincount(group.link_orbit[chosen], minlength=group.num_link_orbits)
    images = counts[group.link_orbit] * (group.order // group.link_orbit_size)
    total += images.astype(np.object_) * weight


def _add_to_nodes(total: _Numbers, chosen: NDArray[np.int64], weight: int, group: Symmetry | None) -> None:
    """Add a weight to the chosen nodes and to all their images."""
    if group is None:
        total[chosen] += weight
        return
    size = np.bincount(group.node_orbit)
    counts = np.bincount(group.node_orbit[chosen], minlength=len(size))
    images = (counts * (group.order // size))[group.node_orbit]
    total += images.astype(np.object_) * weight


def _zeros(size: int) -> _Numbers:
    return np.full(size, 0, dtype=np.object_)


def _root_weights(problem: Problem) -> list[int]:
    """Share of the data of each rank, in shards."""
    ranks = problem.topology.num_ranks
    if problem.root is not None:
        return [int(rank == problem.root) for rank in range(ranks)]
    return list(problem.weights or (1,) * ranks)


def _sizes(problem: Problem, source: int) -> list[int]:
    """What a rank sends to each rank, in shards; nothing to itself."""
    ranks = problem.topology.num_ranks
    match problem.collective:
        case Collective.GATHER:
            sizes = [int(target == problem.root) for target in range(ranks)]
        case Collective.SCATTER:
            sizes = [int(source == problem.root)] * ranks
        case _:
            sizes = [1] * ranks if problem.demands is None else list(problem.demands[source])
    sizes[source] = 0
    return sizes


def _distances(following: list[list[tuple[int, int]]], start: int) -> list[int]:
    """Least total length of a path from a node to each node (Dijkstra, 1959); -1 where there is none."""
    distance = [-1] * len(following)
    heap = [(0, start)]
    while heap:
        so_far, node = heappop(heap)
        if distance[node] >= 0:
            continue
        distance[node] = so_far
        for head, length in following[node]:
            if distance[head] < 0:
                heappush(heap, (so_far + length, head))
    return distance
