"""The contention-free ring on a tree of switches.

The machines of a switched tree are numbered as a depth-first walk from a switch meets them. A ring in that order
crosses every link at most once in each direction in a step, so that all messages run at full rate, and the ring
algorithms reach the bandwidth bound of every such tree with equal links. They are those of ``ring``, with its steps,
bytes and time.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009, section 4.
"""

from __future__ import annotations

from dataclasses import replace

from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.boxes import in_order
from coppice.planners.algorithms.parts.orders import depth_first
from coppice.planners.algorithms.rings import ring
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology

__all__ = ["ALGORITHMS"]


def _needs(case: Case) -> str | None:
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
        "choose `ring` with `--order topology`."
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
    def build(case: Case) -> Schedule | Forest:
        return entry.build(in_order(case, depth_first(case.topology)))

    return replace(
        entry,
        name="patarasuk-yuan",
        build=build,
        needs=_needs,
        summary="the ring in depth-first order on a tree of switches: no link is crossed twice",
        source="Patarasuk and Yuan, JPDC 2009",
        topological=True,
    )


ALGORITHMS = tuple(_entry(entry) for entry in ring.ALGORITHMS)
