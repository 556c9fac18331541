"""Several machines in three phases: reduce inside each, one hop between them for each partition, broadcast inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.synthesis.blink.packings import GrowingForest
from coppice.planners.synthesis.blink.routes import EdgeRoute, EdgeRoutes, routes_between
from coppice.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalTrees:
    """Trees within one machine."""

    members: tuple[int, ...]  # Its ranks
    routes: EdgeRoutes  # What tree edges run over inside
    trees: tuple[tuple[EdgeRoute, ...], ...]  # Edges of each tree
    shares: tuple[Fraction, ...]  # Share of the data of each; they add up to 1


def machines_of(topology: Topology) -> list[tuple[int, ...]]:
    """Ranks of each host, or all in one where hosts are unknown."""
    hosts = topology.host[topology.rank_nodes].tolist()
    if min(hosts, default=-1) < 0:
        return [tuple(range(topology.num_ranks))]
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return [tuple(members) for _, members in sorted(found.items())]


def partition_roots(
    topology: Topology, machines: Sequence[tuple[int, ...]]
) -> tuple[list[list[int]], dict[tuple[int, int], EdgeRoute]]:
    """Roots of each partition, one per machine, and the links between them."""
    routes = routes_between(topology, range(topology.num_ranks), Collective.ALL_REDUCE)
    at = {(route.parent, route.child): route for route in routes.routes}
    free = [list(members) for members in machines]
    roots = []
    for place, first in enumerate(machines[0]):
        row = [first]
        for members, others in zip(machines[1:], free[1:], strict=True):
            # The GPU of the same place where it can be reached: that spreads the partitions over the NICs.
            same = [rank for rank in members[place : place + 1] if rank in others]
            met = (rank for rank in [*same, *others] if all((rank, known) in at for known in row))
            row.append(next(met, -1))
        if min(row) >= 0:
            roots.append(row)
            for others, rank in zip(free, row, strict=True):
                others.remove(rank)
    if not roots:
        raise InputError(
            f"expected GPUs of all machines of {topology.name} that reach each other through the network, found "
            "none: choose ranks with NICs, or pack over all links at once (`parameters=machines=flat`)."
        )
    return roots, at


def grow_three_phases(
    forest: GrowingForest,
    machines: Sequence[LocalTrees],
    roots: Sequence[Sequence[int]],  # For each partition its root in every machine
    across: dict[tuple[int, int], EdgeRoute],
) -> int:
    """Add the trees of all three phases; return their number."""
    partitions = [Fraction(p, len(roots)) for p in range(len(roots))]
    starts = [_starts(machine) for machine in machines]
    cuts = sorted({*partitions, *(start for each in starts for start in each)})
    trees = 0
    for begin, end in zip(cuts, [*cuts[1:], Fraction(1)], strict=True):
        partition = roots[_falls_on(partitions, begin)]
        inside = [
            _hung(machine.trees[_falls_on(start, begin)], partition[m], machine)
            for m, (machine, start) in enumerate(zip(machines, starts, strict=True))
        ]
        for main in range(len(machines)):
            edges = list(inside[main])
            for m, local in enumerate(inside):
                if m != main:
                    edges += [across[partition[main], partition[m]], *local]
            forest.add(partition[main], edges, (end - begin) / len(machines))
            trees += 1
    return trees


def _starts(machine: LocalTrees) -> list[Fraction]:
    found, total = [], Fraction(0)
    for share in machine.shares:
        found.append(total)
        total += share
    return found


def _falls_on(starts: Sequence[Fraction], place: Fraction) -> int:
    return max(number for number, start in enumerate(starts) if start <= place)


def _hung(tree: Sequence[EdgeRoute], root: int, machine: LocalTrees) -> list[EdgeRoute]:
    """The edges of a tree hung from ``root``, parents before children."""
    at = {(route.parent, route.child): route for route in machine.routes.routes}
    beside: dict[int, list[int]] = {}
    for route in tree:
        beside.setdefault(route.parent, []).append(route.child)
        beside.setdefault(route.child, []).append(route.parent)
    ordered, level, seen = [], [root], {root}
    while level:
        following = []
        for rank in level:
            for other in sorted(set(beside.get(rank, ())) - seen):
                ordered.append(at[rank, other])
                seen.add(other)
                following.append(other)
        level = following
    return ordered
