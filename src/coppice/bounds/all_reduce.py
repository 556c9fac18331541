"""All-reduce with both phases planned together: the combined optimum, and partition bounds on it.

Reduce-scatter then all-gather has every rank as a root at the same rate. Where nodes or links are unequal
more is possible: a share of the data is reduced to a root and broadcast from there, the shares are free, and
every link is split between the two directions of trees (ForestColl, arXiv 2402.06787, appendix on
all-reduce). The linear program is solved by cut generation and its vertex proved in fractions, so the rates
can be packed as they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.lp.cuts import CutOutcome, CutProgram, ForestRates, TreePhase
from coppice.bounds.network import Network, check_problem, cut_bound
from coppice.bounds.partition import PartitionBound, free_roots, is_even_both_ways, partition_bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import CombinedAllReduce, CutFamily
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry, find_symmetry

_MANY_RANKS = 2_000
"""From this many ranks on a few sets are found and the others are taken as their images."""

_FEW_SETS = 16

_WORTH_GUESSING = 64
"""From this many ranks on the linear program starts from cuts that probably count."""

_LARGEST = 2**61


def bottleneck_parts(topology: Topology, inv_rate: Fraction) -> list[tuple[int, ...]]:
    """Disjoint sets that are tight, or nearly so, at the all-gather optimum ``inv_rate`` (1 / (GB/s)).

    Just above the optimum every bottleneck is violated; the least violated sets are taken while they are
    disjoint.
    """
    many = topology.num_ranks >= _MANY_RANKS
    sets = _overloaded(topology, inv_rate, most=_FEW_SETS if many else topology.num_nodes)
    if many:
        sets = _with_images(topology, sets)
    taken = np.zeros(topology.num_nodes, dtype=np.bool_)
    parts = []
    for nodes in sorted(sets, key=len):
        if not taken[nodes].any():
            taken[nodes] = True
            parts.append(tuple(nodes.tolist()))
    return parts


def likely_cuts(problem: Problem) -> list[NDArray[np.int32]]:
    """Candidate cuts: hosts, and sets overloaded by twice the rate of an all-gather or reduce-scatter."""
    topology = problem.topology
    hosts = range(int(topology.host.max(initial=-1)) + 1)
    found = [np.flatnonzero(topology.host == host).astype(np.int32) for host in hosts]
    for reduce in (False, True):
        network = Network.of(problem, reduce=reduce)
        found += _overloaded(network.topology, cut_bound(network).inv_rate, times=2, most=topology.num_nodes)
    return [nodes for nodes in found if (topology.rank[nodes] >= 0).any()]


def _overloaded(
    topology: Topology, inv_rate: Fraction, *, times: int = 1, most: int
) -> list[NDArray[np.int32]]:
    """At most one set for each rank that cannot take in shards a little faster than ``times`` the optimum."""
    units = inv_rate / (topology.denominator * times)  # time per shard in 1 / capacity units
    size = int(topology.capacity.sum()) * units.numerator + topology.num_ranks * units.denominator
    scale = min(2**20, _LARGEST // (2 * size))
    if scale == 0:
        return []
    capacity = topology.capacity * (units.numerator * scale)
    supply = np.where(topology.rank >= 0, units.denominator * (scale + 1), 0).astype(np.int64)
    return _core.violated_cuts(
        topology.num_nodes,
        topology.src,
        topology.dst,
        capacity,
        supply,
        topology.rank >= 0,
        int(supply.sum()),
        most,
    )


def _with_images(topology: Topology, sets: list[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
    """The sets and all their images under the automorphisms of the topology."""
    symmetry = find_symmetry(topology)
    elements = np.arange(symmetry.order)
    images: dict[bytes, NDArray[np.int32]] = {}
    for nodes in sets:
        if np.sort(nodes).tobytes() not in images:
            for image in np.sort(symmetry.image(nodes[None, :], elements[:, None]), axis=1):
                images.setdefault(image.tobytes(), image)
    return list(images.values())


def combined_all_reduce(
    problem: Problem,
    *,
    # A group of automorphisms; nodes or links of one orbit then have the same rate, which loses nothing and
    # makes the program small
    symmetry: Symmetry | None = None,
    # Switches that every tree spans: those that can copy in the broadcast phase, those that can add in the
    # reduce phase. The result is packable with them as further terminals.
    spanning: Collection[int] = (),
    # Do not hold switches that copy or add to sending what they get. The rate is then an upper bound: trees
    # that reach it need not exist.
    in_network: bool = False,
    shortcut: bool = True,  # Try the proof by disjoint sets before the linear program
    reached: Fraction | None = None,  # Rate of reduce-scatter then all-gather, where the caller has it
    time_limit: float = math.inf,
) -> CombinedAllReduce:
    """Maximise the rate of an all-reduce over root rates and a split of every link between the phases.

    Examples:
        >>> from coppice.topology.model import Link, Node, NodeKind
        >>> nodes = [*(Node(id=f"g{i}") for i in range(4)), Node(id="sw", kind=NodeKind.SWITCH)]
        >>> star = Topology.of("star", nodes,
        ...     [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(3 if i else 1)) for i in range(4)])
        >>> problem = Problem(topology=star, collective=Collective.ALL_REDUCE)
        >>> result = combined_all_reduce(problem)  # reduce-scatter then all-gather reaches 2/3
        >>> result.rate, result.exact, is_two_phase_optimal(problem)
        (Fraction(1, 1), True, False)
    """
    check_problem(problem)
    if problem.collective is not Collective.ALL_REDUCE:
        raise InputError(
            f"the combined optimum is one of all_reduce, found {problem.collective}: ask for its bound."
        )
    topology = problem.topology
    phases = _phases(topology, spanning, in_network=in_network)
    if topology.num_ranks == 1:
        return _nothing_to_do(topology)
    two_phase = _two_phase(problem, phases)
    partition = two_phase_bound(problem)
    if in_network or spanning:
        partition = None
    if shortcut and two_phase is not None and partition is not None and two_phase.rate == partition.rate:
        return _known(topology, two_phase, partition.rate, proof=partition.proof, method=_BY_PARTS)
    if shortcut and partition is not None and reached == partition.rate:  # though a switch is short of input
        return _known(topology, None, partition.rate, proof=partition.proof, method=_BY_PARTS)
    if shortcut and partition is not None and is_even_both_ways(topology):
        parts, at_roots = free_roots(
            topology, partition.parts, lambda sets: partition_bound(topology, sets).rate
        )
        partition = partition_bound(topology, parts)
        if at_roots is not None:
            return _with_free_roots(topology, at_roots, partition)
    program = CutProgram(
        topology=topology,
        phases=phases,
        group=_groups(topology, symmetry, virtual=_virtual_roots(topology) if in_network else None),
        weight=np.ones(topology.num_nodes, dtype=np.int64),
        link_orbit=None if symmetry is None else symmetry.link_orbit,
        likely=likely_cuts(problem) if topology.num_ranks >= _WORTH_GUESSING else (),
    )
    known = None if two_phase is None or not shortcut else two_phase.rate * topology.denominator
    outcome = program.solve(known=known, time_limit=time_limit)
    proof = _dual(topology, program, outcome, symmetry)
    if outcome.rates is not None:
        return _solved(topology, outcome.rates, rounds=outcome.rounds, proof=proof)
    if partition is not None and (proof is None or partition.rate < 1 / proof.inv_rate):
        proof = partition.proof
    upper = None if proof is None else 1 / proof.inv_rate
    method = _BY_PROGRAM if two_phase is not None and two_phase.rate == upper else _OUT_OF_TIME
    return _known(topology, two_phase, upper, proof=proof, method=method)


def _dual(
    topology: Topology, program: CutProgram, outcome: CutOutcome, symmetry: Symmetry | None
) -> CutFamily | None:
    """The witness of the bound that the linear program found."""
    if outcome.multipliers is None or not outcome.upper:
        return None
    return program.witness(outcome.multipliers, topology.denominator / outcome.upper, symmetry)


_BY_PARTS = "reduce-scatter then all-gather, proved optimal by disjoint sets"
_BY_PROGRAM = "reduce-scatter then all-gather, proved optimal by a linear program"
_BY_FREE_ROOTS = "roots at the rates that disjoint sets leave, which prove them optimal"
_OUT_OF_TIME = "combined optimum not computed within the limits: bounds only"


def is_two_phase_optimal(problem: Problem) -> bool:
    """Whether disjoint sets prove, in milliseconds, that reduce-scatter then all-gather is optimal.

    False means that this proof does not apply, not that something better exists.
    """
    partition = two_phase_bound(problem)
    forward, backward = (cut_bound(Network.of(problem, reduce=reduce)) for reduce in (False, True))
    time = forward.inv_rate + backward.inv_rate
    return (
        partition is not None and time > 0 and Fraction(problem.topology.num_ranks) / time == partition.rate
    )


def two_phase_bound(problem: Problem) -> PartitionBound | None:
    """Best upper bound on all-reduce without in-network reduction, from bottleneck sets, hosts and ranks."""
    topology = problem.topology
    hosts = (np.flatnonzero(topology.host == host) for host in range(len(topology.hosts)))
    boxes = [nodes.tolist() for nodes in hosts if (topology.rank[nodes] >= 0).any()]
    ranks = [[v] for v in topology.rank_nodes.tolist()]
    found = [partition_bound(topology, parts) for parts in (boxes, ranks) if len(parts) > 1]
    for reduce in (False, True):
        network = Network.of(problem, reduce=reduce)
        parts = bottleneck_parts(network.topology, cut_bound(network).inv_rate)
        if len(parts) > 1:
            found.append(partition_bound(topology, parts))
    return min(found, key=lambda bound: bound.rate, default=None)


@dataclass(frozen=True, kw_only=True)
class _TwoPhase:
    """Reduce-scatter then all-gather as one split of the links, by the time that each phase takes."""

    rate: Fraction
    broadcast_part: Fraction


def _two_phase(problem: Problem, phases: Sequence[TreePhase]) -> _TwoPhase | None:
    """The split of reduce-scatter then all-gather, where all link capacity can be used in both directions."""
    topology = problem.topology
    forward, backward = (cut_bound(Network.of(problem, reduce=reduce)).inv_rate for reduce in (False, True))
    surplus = topology.capacity_in - topology.capacity_out
    spanned = phases[0].spanned | phases[1].spanned
    if (surplus[phases[0].balanced] < 0).any() or (surplus[phases[1].balanced] > 0).any():
        return None
    if spanned[topology.rank < 0].any():
        return None
    time = forward + backward
    return _TwoPhase(rate=Fraction(topology.num_ranks) / time, broadcast_part=forward / time)


def _phases(topology: Topology, spanning: Collection[int], *, in_network: bool) -> list[TreePhase]:
    ranks = topology.rank >= 0
    extra = np.zeros(topology.num_nodes, dtype=np.bool_)
    for v in spanning:
        if (
            not 0 <= v < topology.num_nodes
            or ranks[v]
            or not (topology.multicast[v] or topology.aggregate[v])
        ):
            raise InputError(
                f"expected switches that copy or add, found node {v} to span: choose among those that do."
            )
        extra[v] = True
    phases = []
    for reverse, able in ((False, topology.multicast), (True, topology.aggregate)):
        spanned = ranks | (extra & able)
        free = spanned | able if in_network else spanned
        phases.append(TreePhase(reverse=reverse, spanned=spanned, balanced=~free))
    return phases


def _virtual_roots(topology: Topology) -> NDArray[np.bool_]:
    """Switches that add and copy: data may be reduced there and broadcast from there."""
    return topology.multicast & topology.aggregate & (topology.rank < 0)


def _groups(
    topology: Topology, symmetry: Symmetry | None, *, virtual: NDArray[np.bool_] | None
) -> NDArray[np.int32]:
    """Number of the root rate variable of each node: one for each rank, or for each orbit of ranks."""
    roots = topology.rank >= 0 if virtual is None else (topology.rank >= 0) | virtual
    label = np.arange(topology.num_nodes) if symmetry is None else symmetry.node_orbit
    group = np.full(topology.num_nodes, -1, dtype=np.int32)
    group[roots] = np.unique(label[roots], return_inverse=True)[1]
    return group


def _solved(
    topology: Topology, rates: ForestRates, *, rounds: int, proof: CutFamily | None
) -> CombinedAllReduce:
    unit = topology.denominator
    roots = (
        (int(topology.rank[v]), rate)
        for v, rate in enumerate(rates.root_rate)
        if rate and topology.rank[v] >= 0
    )
    return CombinedAllReduce(
        rate=rates.rate / unit,
        upper=rates.rate / unit,
        root_rates={rank: rate / unit for rank, rate in sorted(roots)},
        broadcast_capacity=[rate / unit for rate in rates.link_rate[0]],
        reduce_capacity=[rate / unit for rate in rates.link_rate[1]],
        proof=proof,
        method=f"linear program over cuts ({rounds} rounds), vertex and dual proved in fractions",
    )


def _known(
    topology: Topology,
    split: _TwoPhase | None,
    upper: Fraction | None,
    *,
    proof: CutFamily | None,
    method: str,
) -> CombinedAllReduce:
    """Reduce-scatter then all-gather as the best that is known."""
    rates = [Fraction(each, topology.denominator) for each in topology.capacity.tolist()]
    part = Fraction(0) if split is None else split.broadcast_part
    ranks = topology.num_ranks
    return CombinedAllReduce(
        rate=None if split is None else split.rate,
        upper=upper,
        root_rates={} if split is None else dict.fromkeys(range(ranks), split.rate / ranks),
        broadcast_capacity=[] if split is None else [part * rate for rate in rates],
        reduce_capacity=[] if split is None else [(1 - part) * rate for rate in rates],
        proof=proof,
        method=method,
    )


def _with_free_roots(
    topology: Topology, at_roots: dict[int, Fraction], partition: PartitionBound
) -> CombinedAllReduce:
    half = [Fraction(each, 2 * topology.denominator) for each in topology.capacity.tolist()]
    return CombinedAllReduce(
        rate=partition.rate,
        upper=partition.rate,
        root_rates=at_roots,
        broadcast_capacity=half,
        reduce_capacity=half,
        proof=partition.proof,
        method=_BY_FREE_ROOTS,
    )


def _nothing_to_do(topology: Topology) -> CombinedAllReduce:
    zeros = [Fraction(0)] * topology.num_links
    return CombinedAllReduce(
        rate=None,
        upper=None,
        root_rates={},
        broadcast_capacity=zeros,
        reduce_capacity=zeros,
        proof=None,
        method="one rank: nothing has to move",
    )
