"""Rings fitted to the topology: depth-first through the switches, or by search.

**patarasuk-yuan:** the contention-free ring on a tree of switches. The machines of a switched tree are numbered as a
depth-first walk from a switch meets them. A ring in that order crosses every link at most once in each direction in a
step, so that all messages run at full rate, and the ring algorithms reach the bandwidth bound of every such tree with
equal links. They are those of ``ring``, with its steps, bytes and time.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009, section 4.

**best-ring:** the rings that a search finds for the topology, with the shares of the data that suit them best. Rings
visit every rank once, along routes of their own; several of them share the work by exact weights. The result is the
chains of blocks along these rings, as trees with paths: P - 1 hops for all-gather, reduce-scatter, broadcast and
reduce, 2 (P - 1) for all-reduce. What a rank sends and how long it takes depend on the topology.

The search is that of :mod:`coppice.planners.ring.best`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.boxes import in_order
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.algorithms.parts.orders import depth_first
from coppice.planners.algorithms.rings.ring import COLLECTIVES, RING
from coppice.planners.ring.best import RingPlan, best_ring, ring_forest
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology


def _tree_of_switches(case: AlgorithmCase) -> str | None:
    topology = case.topology
    if case.size == 1:
        return None
    pairs = {
        (min(a, b), max(a, b)) for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    }
    one_way = [(a, b) for a, b in pairs if not {(a, b), (b, a)} <= topology.link_index.keys()]
    ids = topology.node_ids
    if one_way:
        found = f"the one-way link between {ids[one_way[0][0]]} and {ids[one_way[0][1]]}"
    elif len(pairs) != topology.num_nodes - 1 or not _connected(topology):
        found = f"{topology.num_nodes} nodes and {len(pairs)} cables"
    elif inner := [node for node in topology.rank_nodes.tolist() if sum(node in pair for pair in pairs) > 1]:
        found = f"more than one cable at rank {topology.rank[inner[0]]}"
    else:
        return None
    return (
        f"patarasuk-yuan needs ranks that hang on a tree of switches, found {found} on {topology.name}: "
        "choose `ring` with `order=topology`."
    )


def _connected(topology: Topology) -> bool:
    reached, todo = {0}, [0]
    onward: dict[int, list[int]] = {}
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        onward.setdefault(a, []).append(b)
    while todo:
        fresh = [b for b in onward.get(todo.pop(), ()) if b not in reached]
        reached.update(fresh)
        todo += fresh
    return len(reached) == topology.num_nodes


def _entry(entry: Algorithm) -> Algorithm:
    def build(case: AlgorithmCase) -> Schedule | Forest:
        return entry.build(in_order(case, depth_first(case.topology)))

    return replace(
        entry,
        name="patarasuk-yuan",
        build=build,
        needs=_tree_of_switches,
        summary="the ring in depth-first order on a tree of switches: no link is crossed twice",
        source="Patarasuk and Yuan, JPDC 2009",
        topological=True,
    )


PATARASUK_YUAN = tuple(_entry(entry) for entry in RING)


@lru_cache(maxsize=4)
def _rings(topology: Topology, collective: Collective, root: int | None) -> RingPlan | None:
    return best_ring(Problem(topology=topology, collective=collective, root=root))


def _best_ring(case: AlgorithmCase) -> Schedule | Forest:
    if case.size == 1:
        return Moves(case, whole(case) if case.collective.rooted else blocks(case)).schedule()
    root = None
    if case.root >= 0:
        root = case.root if case.order is None else case.order[case.root]
    found = _rings(case.topology, case.collective, root)
    if found is None:
        raise UnreachableError(
            f"best-ring found no ring through all ranks of {case.topology.name} whose hops pass no other rank: "
            "choose `forest`, or `ring` with `relay_gpus`."
        )
    return ring_forest(found)


BEST_RING = tuple(
    Algorithm(
        name="best-ring",
        collective=collective,
        build=_best_ring,
        summary="the best rings that a search finds, with exact shares and routes",
        source="rings in the manner of NCCL, searched with exact prices",
        topological=True,
    )
    for collective in COLLECTIVES
)
