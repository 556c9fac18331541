"""The best switches to add in, by trying all: every set within the budget, every root of every group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product

from coppice.errors import UnreachableError
from coppice.topology.model import NodeKind, Topology
from coppice.topology.routing import Router


def parents_towards(topology: Topology, members: Sequence[int], root: int) -> dict[int, int] | None:
    """The next node on the default route to the root, of every node that streams pass."""
    router, found = Router(topology), {}
    try:
        for node in members:
            while node != root:
                found[node] = router.node_path(node, root)[1]
                node = found[node]
    except UnreachableError:
        return None
    return found


def streams(parents: dict[int, int], members: Sequence[int], root: int, adding: set[int]) -> dict[int, int]:
    """How many streams each node sends up."""

    def sent(node: int) -> int:
        coming = sum(sent(child) for child, parent in parents.items() if parent == node)
        return 1 if node in members or (node in adding and coming) else coming

    return {node: sent(node) for node in parents if node != root}


def group_times(
    topology: Topology, ranks: Sequence[int], root: int, adding: set[int], size: Fraction
) -> dict[tuple[int, int], Fraction] | None:
    """Nanoseconds that a group needs of each directed link, or None where it has no route to its root."""
    members = [int(topology.rank_nodes[rank]) for rank in ranks]
    parents = parents_towards(topology, members, root)
    if parents is None:
        return None
    return {
        link: count * size / topology.gb_per_s(topology.link_index[link])
        for node, count in streams(parents, members, root, adding).items()
        for link in ((node, parents[node]), (parents[node], node))  # up, and the result down
    }


def link_times(
    topology: Topology,
    groups: Sequence[Sequence[int]],
    roots: Sequence[int],
    adding: set[int],
    size: Fraction,
) -> dict[tuple[int, int], Fraction] | None:
    """The same of all groups together."""
    each = [
        group_times(topology, ranks, root, adding, size) for ranks, root in zip(groups, roots, strict=True)
    ]
    return together([times for times in each if times is not None]) if None not in each else None


def together(times: Sequence[dict[tuple[int, int], Fraction]]) -> dict[tuple[int, int], Fraction]:
    """Times of links, summed."""
    found: dict[tuple[int, int], Fraction] = {}
    for each in times:
        for link, time in each.items():
            found[link] = found.get(link, Fraction(0)) + time
    return found


def choices(topology: Topology, budget: int) -> Iterator[set[int]]:
    """All sets of switches that add: those that do, and as many others as the budget has."""
    given = set((topology.aggregate & topology.multicast).nonzero()[0].tolist())
    switches = [
        v for v, kind in enumerate(topology.kind.tolist()) if kind == NodeKind.SWITCH and v not in given
    ]
    for count in range(budget + 1):
        for chosen in combinations(switches, count):
            yield given | set(chosen)


def best_with(
    topology: Topology, groups: Sequence[Sequence[int]], adding: set[int], size: Fraction
) -> Fraction | None:
    """The least time of the busiest link with some switches, over all roots; None where there are none."""
    ways = [
        [times for root in sorted(adding) if (times := group_times(topology, ranks, root, adding, size))]
        for ranks in groups
    ]
    return min((max(together(each).values()) for each in product(*ways)), default=None)


def best_time(
    topology: Topology, groups: Sequence[Sequence[int]], budget: int, size: Fraction
) -> Fraction | None:
    """The same over all sets within the budget."""
    found = [best_with(topology, groups, adding, size) for adding in choices(topology, budget)]
    return min((time for time in found if time is not None), default=None)
