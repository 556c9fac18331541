"""Rings as a forest of chains, and as a schedule.

In an all-gather the shard of each rank follows each ring to the rank before it: a broadcast tree that is a
chain. A block that is reduced starts behind its owner and follows the ring to it: a reduce tree, a chain too.
"""

from __future__ import annotations

from math import lcm

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.ring.best import RingPlan
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule

__all__ = ["ring_forest", "ring_schedule"]

_MAX_EDGES = 2**27


def ring_forest(ring: RingPlan) -> Forest:
    """The chains that the rings consist of, as a forest that can be verified, drawn and exported like any.

    Args:
        ring: What :func:`~coppice.planners.ring.best.best_ring` returns.

    Raises:
        InputError: If the chains have more than 2^27 edges together.

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
        msg = (
            f"expected at most 2^27 edges in all chains, found {trees * (ranks - 1)}: "
            "keep the rings as orders and weights."
        )
        raise InputError(msg)
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
    """The transfers that carry the rings out.

    Args:
        ring: What :func:`~coppice.planners.ring.best.best_ring` returns.

    Raises:
        InputError: If there are more than 2^27 transfers.
    """
    return lower(ring_forest(ring))
