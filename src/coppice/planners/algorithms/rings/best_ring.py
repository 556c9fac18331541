"""The rings that a search finds for the topology, with the shares of the data that suit them best.

Rings visit every rank once, along routes of their own; several of them share the work by exact weights. The result is
the chains of blocks along these rings, as trees with paths: P - 1 hops for all-gather, reduce-scatter, broadcast and
reduce, 2 (P - 1) for all-reduce. What a rank sends and how long it takes depend on the topology.

The search is that of :mod:`coppice.planners.ring.best`.
"""

from __future__ import annotations

from functools import lru_cache

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.ring.best import RingPlan, best_ring
from coppice.planners.ring.schedule import ring_forest
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology

__all__ = ["ALGORITHMS"]


@lru_cache(maxsize=4)
def _rings(topology: Topology, collective: Collective, root: int | None) -> RingPlan | None:
    return best_ring(Problem(topology=topology, collective=collective, root=root))


def _build(case: Case) -> Schedule | Forest:
    if case.size == 1:
        return Moves(case, whole(case) if case.collective.rooted else blocks(case)).schedule()
    root = None
    if case.root >= 0:
        root = case.root if case.order is None else case.order[case.root]
    found = _rings(case.topology, case.collective, root)
    if found is None:
        msg = (
            f"best-ring found no ring through all ranks of {case.topology.name} whose hops pass no other rank: "
            "choose `forest`, or `ring` with `--relay-gpus`."
        )
        raise UnreachableError(msg)
    return ring_forest(found)


ALGORITHMS = tuple(
    Algorithm(
        name="best-ring",
        collective=collective,
        build=_build,
        summary="the best rings that a search finds, with exact shares and routes",
        source="rings in the manner of NCCL, searched with exact prices",
        topological=True,
    )
    for collective in (
        Collective.ALL_REDUCE,
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.BROADCAST,
        Collective.REDUCE,
    )
)
