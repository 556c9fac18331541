"""Trees of networks in which all ranks are alike: one tree, at one rank, stands for those of all.

On a thousand ranks an all-gather has a million transfers. Where a group of automorphisms takes any rank to any other,
the images of one tree are a plan, and what happens to one link happens to all of its orbit: a tree loads each orbit by
the number of its edges there, wherever these are. So of all lowest trees the one is best whose edges are spread over
the orbits as evenly as these can carry them: a choice of one way in for each rank, whose busiest orbit is least loaded,
which paths of exchanges find exactly (as augmenting paths find a matching).

The rows of that tree by themselves take what the whole schedule takes (:class:`coppice.schedule.messages.Alike`), if
those of all ranks follow each other in its order, each row with its images.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.in_turns import levels_of
from coppice.planners.ordering import reordered
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.messages import Alike
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry, find_symmetry

_MOST_LINKS = 64
"""Links of a rank at most in a network whose trees are balanced."""


def alike(topology: Topology, symmetry: Symmetry) -> Alike | None:
    """Ranks and links that stand for others; None where some link is its own image.

    No rows of a single rank load such a link as all do.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> ring = preset("ring", gpus=4)
        >>> found = alike(ring, find_symmetry(ring))
        >>> found.rank.tolist(), len(set(found.link.tolist()))
        ([0, 0, 0, 0], 2)
    """
    if not bool((symmetry.link_orbit_size == symmetry.order).all()):
        return None
    first = np.unique(symmetry.link_orbit, return_index=True)[1].astype(np.int32)
    nodes = symmetry.representatives[symmetry.node_orbit[topology.rank_nodes]]
    return Alike(rank=topology.rank[nodes].astype(np.int32), link=first[symmetry.link_orbit])


def turned(found: Alike, topology: Topology) -> Alike:
    """The same where every link goes the other way round.

    Args:
        topology: With links as they are.
    """
    order = np.lexsort((topology.src, topology.dst))  # as transposing puts them
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return Alike(rank=found.rank, link=place[found.link[order]])


def balanced_trees(problem: Problem, *, trees: int = 1, attempt: int = 0) -> Forest | None:
    """The lowest trees of a network of links between ranks that are all alike, its links as evenly loaded as can be.

    The trees of one rank stand for those of all. None where ranks are not alike, or not joined by links of their own.

    Args:
        trees: Trees of each rank: several even out what does not divide by the links.
        attempt: Other numbers choose otherwise among ways that are equally good.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = balanced_trees(Problem(preset("torus", dims=(4, 4)), "all_gather"))
        >>> found.num_trees, found.num_edges, found.num_images
        (1, 15, 16)
    """
    topology = problem.topology
    even = problem.weights is None and problem.demands is None and not problem.collective.rooted
    if not even or not problem.collective.made_of_trees or topology.num_nodes != topology.num_ranks:
        return None
    symmetry = find_symmetry(topology)
    if symmetry.order != topology.num_ranks or topology.num_links > _MOST_LINKS * topology.num_ranks:
        return None
    reduces = problem.collective is Collective.REDUCE_SCATTER
    both = problem.collective is Collective.ALL_REDUCE
    phases: list[Phase] = []
    edges: list[NDArray[np.int64]] = []
    for phase in (Phase.REDUCE, Phase.BROADCAST):
        if both or (phase is Phase.REDUCE) == reduces:
            found = _trees(topology, symmetry, trees, attempt, reduces=phase is Phase.REDUCE)
            phases += [phase] * len(found)
            edges += found
    if not edges:
        return None
    root = int(symmetry.representatives[0])
    rows = np.concatenate(edges)
    count = len(rows)
    return Forest(
        topology=topology,
        collective=problem.collective,
        tree_root=np.full(len(edges), root, dtype=np.int32),
        tree_weight=np.ones(len(edges), dtype=np.int64),
        tree_phase=np.array(phases, dtype=np.int8),
        tree_start=offsets(np.array([len(each) for each in edges])),
        edge_src=topology.src[rows],
        edge_dst=topology.dst[rows],
        edge_path=np.arange(count, dtype=np.int32),
        path_start=2 * np.arange(count + 1, dtype=np.int64),
        path_nodes=np.stack([topology.src[rows], topology.dst[rows]], axis=1).reshape(-1).astype(np.int32),
        symmetry=symmetry,
    )


def _trees(
    topology: Topology, symmetry: Symmetry, trees: int, attempt: int, *, reduces: bool
) -> list[NDArray[np.int64]]:
    """Links of each tree, in an order in which data can flow; none where some rank is not reached."""
    src, dst = (topology.dst, topology.src) if reduces else (topology.src, topology.dst)
    root, nodes = int(symmetry.representatives[0]), topology.num_nodes
    hops = np.full(nodes, -1, dtype=np.int64)
    hops[root], away, edge = 0, 0, np.array([root])
    while len(edge):
        edge = np.unique(dst[np.isin(src, edge) & (hops[dst] < 0)])
        away += 1
        hops[edge] = away
    if int(hops.min()) < 0:
        return []
    down = np.flatnonzero(hops[dst] == hops[src] + 1)
    way = np.full((nodes, symmetry.num_link_orbits), -1, dtype=np.int64)  # a link into each node, by orbit
    way[dst[down], symmetry.link_orbit[down]] = down
    rate = np.zeros(symmetry.num_link_orbits)
    rate[symmetry.link_orbit] = topology.capacity / topology.capacity.max()
    others = np.argsort(hops, kind="stable")[1:]
    load, rng = np.zeros(len(rate), dtype=np.int64), np.random.default_rng(attempt)
    found = []
    for _ in range(trees):
        rows, ways = np.arange(len(others)), np.arange(len(rate))
        if attempt:
            rows, ways = rng.permutation(rows), rng.permutation(ways)
        taken = np.empty(len(others), dtype=np.int64)
        added = load[ways]
        taken[rows] = ways[_balanced(way[others[rows]][:, ways] >= 0, rate[ways], added)]
        load[ways] = added
        links = way[others, taken]
        found.append(links[::-1] if reduces else links)
    return found


def _balanced(
    may: NDArray[np.bool_], rate: NDArray[np.float64], load: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each row one of the columns that it may take, such that the busiest column is busy for the least time.

    Args:
        load: Rows that take each column already; those of the result are added.
    """
    count, columns = may.shape
    taken = np.full(count, -1, dtype=np.int64)
    for row in np.argsort(may.sum(axis=1), kind="stable").tolist():
        choices = np.flatnonzero(may[row])
        taken[row] = choices[np.argmin((load[choices] + 1) / rate[choices])]
        load[taken[row]] += 1
    while True:
        busiest = int(np.argmax(load / rate))
        most = load[busiest] / rate[busiest]
        # swaps[a, b]: a row that takes a and may take b
        swaps = np.zeros((columns, columns), dtype=np.bool_)
        for column in range(columns):
            swaps[column] = may[taken == column].any(axis=0)
        before = {busiest: -1}
        line, end = [busiest], -1
        for each in line:
            if each != busiest and (load[each] + 1) / rate[each] < most:
                end = each
                break
            for other in np.flatnonzero(swaps[each]).tolist():
                if other not in before:
                    before[other] = each
                    line.append(other)
        if end < 0:
            return taken
        while before[end] >= 0:
            row = int(np.flatnonzero((taken == before[end]) & may[:, end])[0])
            taken[row] = end
            load[end] += 1
            load[before[end]] -= 1
            end = before[end]


def level_by_level(rows: Schedule) -> Schedule | None:
    """The rows in steps, each as soon as its chunk is there: what goes the same way in a step may be one message.

    None where steps would be too many.

    Args:
        rows: As :func:`coppice.planners.in_turns.levels_of` takes them.
    """
    levels = levels_of(rows)
    if levels is None:
        return None
    order = np.argsort(levels, kind="stable")
    return replace(reordered(rows, order), step=levels[order].astype(np.int32))


def images(rows: Schedule, symmetry: Symmetry) -> Schedule:
    """The schedule of all ranks, of which some rows stand for their images: each row is followed by those.

    Args:
        rows: Without further dependencies, of slots that belong to ranks that stand for others.
        symmetry: The group of the images.

    Examples:
        >>> from coppice.schedule.lower import lower
        >>> from coppice.schedule.verification.transfers import verify_schedule
        >>> from coppice.topology.presets import preset
        >>> trees = balanced_trees(Problem(preset("torus", dims=(4, 4)), "all_gather"))
        >>> found = images(lower(replace(trees, symmetry=None)), trees.symmetry)
        >>> found.num_transfers == 16 * 15, verify_schedule(found).ok
        (True, True)
    """
    topology, order = rows.topology, symmetry.order
    element = np.arange(order)

    def moved(ranks: NDArray[np.integer]) -> NDArray[np.int32]:
        found = symmetry.image(topology.rank_nodes[ranks][:, None], element[None, :])
        return topology.rank[found].astype(np.int32)

    slots = moved(np.arange(topology.num_ranks))
    chunk_slot = slots[rows.chunk_slot].reshape(-1)
    by_slot = np.argsort(chunk_slot, kind="stable")
    number = np.empty(len(by_slot), dtype=np.int32)
    number[by_slot] = np.arange(len(by_slot), dtype=np.int32)
    weight = np.zeros(topology.num_ranks, dtype=np.int64)
    own = np.unique(rows.chunk_slot)
    weight[slots[own]] = rows.slot_weight[own][:, None]
    paths = len(rows.path_start) - 1
    nodes = symmetry.image(rows.path_nodes[None, :], element[:, None])
    starts = rows.path_start[None, :-1] + element[:, None] * len(rows.path_nodes)
    count = rows.num_transfers * order
    return replace(
        rows,
        slot_weight=weight,
        chunk_slot=chunk_slot[by_slot].astype(np.int32),
        chunk_share=np.repeat(rows.chunk_share, order)[by_slot],
        src=slots[rows.src].reshape(-1),
        dst=slots[rows.dst].reshape(-1),
        chunk=number.reshape(-1, order)[rows.chunk].reshape(-1),
        op=np.repeat(rows.op, order),
        path=(rows.path[:, None] + paths * element[None, :]).reshape(-1).astype(np.int32),
        step=np.repeat(rows.step, order),
        after_start=np.zeros(count + 1, dtype=np.int64),
        path_start=np.append(starts.reshape(-1), nodes.size).astype(np.int64),
        path_nodes=nodes.reshape(-1).astype(np.int32),
        ordered=False,
    )
