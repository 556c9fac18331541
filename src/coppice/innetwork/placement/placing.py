"""Placement of K aggregating switches in a network, so that all-reduces load its busiest link least.

The question is one of "When In-Network Computing Meets Distributed ML" (IEEE Network 2024): where to deploy switches
that add. The model is that of :mod:`trees`: every tree of a job has a root that adds, and the streams of its ranks take
the default routes there; the busiest link is the one with the most bytes for its rate. The root is a switch with the
feature, chosen with the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from coppice.arguments import checked
from coppice.display import Shown
from coppice.errors import InputError
from coppice.innetwork.placement.search import AddingRanks, search
from coppice.innetwork.placement.trees import (
    AddingNetwork,
    AggregationTree,
    build_tree,
    busiest,
    stream_counts,
)
from coppice.text import shortened, size_of
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.switches import AggregationPlacementJson, BusiestLinkJson


@dataclass(frozen=True, kw_only=True)
class BusiestLink:
    """The link that takes longest to carry its load."""

    ends: tuple[str, str]  # Names of its ends
    load_bytes: Fraction  # What it carries in each direction
    time_us: Fraction  # That over its rate

    def record(self) -> BusiestLinkJson:
        """The link as JSON values."""
        return {"ends": list(self.ends), "load_bytes": float(self.load_bytes), "time_us": float(self.time_us)}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class AggregationPlacement(Shown):
    """Switches that should aggregate, and how much that gains."""

    topology: Topology  # The network
    budget: int  # Switches that could be chosen
    candidates: int  # Switches that there are without the feature
    given: tuple[str, ...]  # Names of switches that have it
    # Names of those that should get it; fewer than the budget where more bring nothing
    chosen: tuple[str, ...]
    jobs: tuple[tuple[int, ...], ...]  # Ranks of each job
    size_bytes: int  # What each rank adds
    roots: tuple[tuple[str, ...], ...]  # Names of the roots of each job's trees
    busiest: BusiestLink  # The busiest link with these switches
    least_time_us: Fraction  # With no choice within the budget the busiest link takes less
    everywhere_us: Fraction  # What it takes at least if all switches have the feature
    # The busiest link without the chosen ones. Where no switch is left that adds, ranks of the jobs do.
    without: BusiestLink
    ring: BusiestLink  # The busiest link of rings of hosts, each job in the order of its ranks

    @property
    def proved(self) -> bool:
        """Whether no choice within the budget is better."""
        return self.busiest.time_us == self.least_time_us

    @property
    def gap(self) -> Fraction:
        """Optimality gap: the largest share of its time by which the busiest link could still be faster."""
        if not self.busiest.time_us:
            return Fraction(0)
        return 1 - self.least_time_us / self.busiest.time_us

    def __repr__(self) -> str:
        """Summarise the result in one line."""
        time = float(self.busiest.time_us)
        return f"AggregationPlacement({', '.join(self.chosen) or 'none'!r}, busiest link {time:.6g} us)"

    def record(self) -> AggregationPlacementJson:
        """The figures as JSON values."""
        return {
            "topology": self.topology.name,
            "budget": self.budget,
            "candidate_count": self.candidates,
            "candidates": self.candidates,
            "given": list(self.given),
            "chosen": list(self.chosen),
            "size_bytes": self.size_bytes,
            "jobs": [
                {
                    "rank_list": list(ranks),
                    "ranks": list(ranks),
                    "root_switches": list(roots),
                    "roots": list(roots),
                }
                for ranks, roots in zip(self.jobs, self.roots, strict=True)
            ],
            "busiest": self.busiest.record(),
            "least_time_us": float(self.least_time_us),
            "proved": self.proved,
            "gap": float(self.gap),
            "everywhere_us": float(self.everywhere_us),
            "without": self.without.record(),
            "ring": self.ring.record(),
        }


_MOST_WORK = 4_000_000
_MOST_RANKS_TRIED = 16


@checked
def place_aggregation(
    # The network. Switches that it says add and copy have the feature already, and cost nothing.
    topology: Topology,
    *,
    budget: int,  # How many others can get it, 1 or more
    # Ranks of each job, which all-reduce at once; None: one of all ranks
    jobs: Sequence[Sequence[int]] | None = None,
    trees: int = 1,  # Equal parts that every job is cut into, each with a root of its own
    size: int | str = "64M",
    most_work: int = _MOST_WORK,  # How long to search for several trees, in nodes of trees that are looked at
) -> AggregationPlacement:
    """Choose the switches that should get aggregation: those with which the busiest link takes the least time.

    One job on one tree is solved exactly on networks of any size. Several trees at once are solved exactly where branch
    and bound comes to its end; where it has to stop, the result says how much faster the busiest link could be at most.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> network = preset("fat-tree", leaves=4, gpus_per_leaf=4, spines=2)
        >>> found = place_aggregation(network, budget=3, size="1M")
        >>> found.chosen, found.roots, found.proved
        (('spine0',), (('spine0',),), True)
        >>> [float(each.time_us / found.busiest.time_us) for each in (found.busiest, found.without, found.ring)]
        [1.0, 7.5, 0.9375]
    """
    network = AddingNetwork(topology)
    size_bytes = size_of(size)
    for name, value in (("budget", budget), ("trees", trees), ("most_work", most_work)):
        if value < 1:
            raise InputError(f"expected `{name}` of 1 or more, found {value}.")
    if not network.switches and not network.given:
        raise InputError(
            f"expected a network with switches, found {topology.name} without: GPUs add themselves there."
        )
    groups = [each for group in _groups(network, jobs, size_bytes) for each in [group] * trees]
    if not all(group.trees for group in groups):
        raise InputError(
            f"expected a switch that all ranks of a job reach through switches and NICs, found none on "
            f"{topology.name}: place what shares a switch as jobs (`jobs`), such as the ranks of each rail."
        )
    found = search(network, groups, budget, most_work=most_work)
    if found is None:
        raise InputError(
            f"expected a `budget` with which every job has a switch to add in, found {budget}: raise it, "
            f"{_enough_roots(groups)} suffice, or place the jobs alone."
        )
    without = search(network, groups, 0, most_work=most_work)
    ids = topology.node_ids
    to_us = network.nanoseconds / 1000 / trees
    return AggregationPlacement(
        topology=topology,
        budget=budget,
        candidates=len(network.switches),
        given=tuple(ids[v] for v in sorted(network.given)),
        chosen=tuple(ids[v] for v in found.chosen),
        jobs=tuple(group.ranks for group in groups[::trees]),
        size_bytes=size_bytes,
        roots=tuple(
            tuple(ids[tree.root] for tree in found.trees[at : at + trees])
            for at in range(0, len(groups), trees)
        ),
        busiest=_busiest_link(network, groups, found.trees, found.chosen, trees),
        least_time_us=found.least * to_us,
        everywhere_us=_least_everywhere(network, groups) * to_us,
        without=_busiest_link(
            network, groups, without.trees if without else _at_ranks(network, groups), (), trees
        ),
        ring=_ring(network, groups[::trees]),
    )


def _groups(
    network: AddingNetwork, jobs: Sequence[Sequence[int]] | None, size_bytes: int
) -> list[AddingRanks]:
    """The jobs with their trees."""
    count = len(network.ranks)
    groups = []
    for at, ranks in enumerate([range(count)] if jobs is None else jobs):
        members = sorted({int(rank) for rank in ranks})
        if len(members) != len(ranks) or len(members) < 2 or not 0 <= members[0] <= members[-1] < count:
            raise InputError(
                f"expected two or more different ranks from 0 to {count - 1} in `jobs`, found "
                f"{shortened(list(ranks), 8)} in job {at}."
            )
        nodes = [network.ranks[rank] for rank in members]
        trees = [build_tree(network, nodes, root) for root in sorted({*network.switches, *network.given})]
        groups.append(
            AddingRanks(
                ranks=tuple(members), size_bytes=size_bytes, trees=tuple(tree for tree in trees if tree)
            )
        )
    if not groups:
        raise InputError("expected one job or more in `jobs`, found none: leave it out for one of all ranks.")
    return groups


def _enough_roots(groups: Sequence[AddingRanks]) -> int:
    """Choose switches greedily until every group has a possible root."""
    left, count = list(groups), 0
    while left:
        roots = Counter(tree.root for group in left for tree in group.trees)
        root = max(roots, key=lambda v: (roots[v], -v))
        left = [group for group in left if all(tree.root != root for tree in group.trees)]
        count += 1
    return count


def _least_everywhere(network: AddingNetwork, groups: Sequence[AddingRanks]) -> int:
    """Lower bound on the cost of the busiest link: every switch adds, one stream a group on links of all its trees."""
    load: dict[int, int] = {}
    least = 0
    for group in groups:
        ways = [max(network.cost[edge] for edge in stream_counts(tree, tree.nodes)) for tree in group.trees]
        least = max(least, min(ways) * group.size_bytes)
        for edge in frozenset.intersection(*(frozenset(stream_counts(tree, ())) for tree in group.trees)):
            load[edge] = load.get(edge, 0) + group.size_bytes
    return max([least, *(network.cost[edge] * each for edge, each in load.items())])


def _busiest_link(
    network: AddingNetwork,
    groups: Sequence[AddingRanks],
    trees: Sequence[AggregationTree],
    chosen: Sequence[int],
    parts: int,
) -> BusiestLink:
    """Find the busiest link under a choice of switches, with each group weighted by its size."""
    featured = network.given.union(chosen)
    loads = [stream_counts(tree, featured) for tree in trees]
    sizes = [group.size_bytes for group in groups]
    cost, edge = busiest(network.cost, loads, sizes)
    load = sum(each.get(edge, 0) * size for each, size in zip(loads, sizes, strict=True))
    a, b = network.edges[edge]
    ids = network.topology.node_ids
    return BusiestLink(
        ends=(ids[a], ids[b]),
        load_bytes=Fraction(load, parts),
        time_us=cost * network.nanoseconds / 1000 / parts,
    )


def _at_ranks(network: AddingNetwork, groups: Sequence[AddingRanks]) -> list[AggregationTree]:
    """Place aggregation at ranks instead of switches, greedily: each group at the rank that loads the network least."""
    taken: list[AggregationTree] = []
    loads: list[dict[int, int]] = []
    sizes = [group.size_bytes for group in groups]
    for at, group in enumerate(groups):
        members = [network.ranks[rank] for rank in group.ranks]
        roots = members[:: -(-len(members) // _MOST_RANKS_TRIED)]
        trees = [tree for root in roots if (tree := build_tree(network, members, root)) is not None]
        if not trees:
            raise InputError(
                f"expected routes between the ranks of a job, found none on {network.topology.name}."
            )
        tried = [stream_counts(tree, network.given) for tree in trees]
        costs = [busiest(network.cost, [*loads, each], sizes[: at + 1])[0] for each in tried]
        best = costs.index(min(costs))
        taken.append(trees[best])
        loads.append(tried[best])
    return taken


def _ring(network: AddingNetwork, groups: Sequence[AddingRanks]) -> BusiestLink:
    """Find the busiest link of ring all-reduces, in which each rank sends 2 (n-1)/n of the size to the next."""
    topology = network.topology
    load = np.zeros(topology.num_links, dtype=object)
    for group in groups:
        count = len(group.ranks)
        ranks = np.array(group.ranks)
        start, nodes = network.router.paths(ranks, np.roll(ranks, -1), np.zeros(count, dtype=np.int64))
        share = Fraction(2 * (count - 1) * group.size_bytes, count)
        for first, last in zip(start[:-1].tolist(), start[1:].tolist(), strict=True):
            path = nodes[first:last].tolist()
            for a, b in pairwise(path):
                load[topology.link_index[a, b]] += share
    times = [Fraction(each) / topology.gb_per_s(link) for link, each in enumerate(load)]
    link = max(range(len(times)), key=lambda at: (times[at], -at))
    ids = topology.node_ids
    return BusiestLink(
        ends=(ids[topology.src[link]], ids[topology.dst[link]]),
        load_bytes=Fraction(load[link]),
        time_us=times[link] / 1000,
    )
