"""Camdoop: reductions in the nodes of a torus along edge-disjoint trees.

The buffer is cut into as many equal stripes as a node has links, six on a 3D torus. Every node adds what comes from
below in the tree of a stripe to its own and passes on the sum, so that the root receives M in all, over all its links
at once, where it would receive (P - 1) M from nodes that only forward. The trees are those of
:mod:`~coppice.planners.algorithms.parts.torus_trees`; a broadcast runs backwards along them.

With d links of rate B at every node and large messages:

    reduce, broadcast                 M / (d B): as fast as the root can receive or send, so optimal
    all_reduce, roots=one             2 M / (d B): both directions of nearly all links are used twice
    all_reduce, roots=all             2 (P - 1)/P M / (d B): optimal
    reduce_scatter, all_gather        (P - 1)/P M / (d B): optimal

``roots=all`` makes every rank the root of trees for its own share of the buffer, as all servers of Camdoop are reducers
at the same time. A translation takes the trees of one root to those of another, so that all links of a direction carry
the same. Latency grows with the height of the trees, ``sum(k - 1) + 1`` on a torus of k x k x k.

Costa, Donnelly, Rowstron and O'Shea, "Camdoop: exploiting in-network aggregation for big data applications", NSDI
2012; the rule by which the trees are kept apart is ours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.torus_trees import LONG_AXES, torus_dims, torus_trees
from coppice.schedule.forest import Forest, Phase

_PHASES = {
    Collective.REDUCE: (Phase.REDUCE,),
    Collective.REDUCE_SCATTER: (Phase.REDUCE,),
    Collective.BROADCAST: (Phase.BROADCAST,),
    Collective.ALL_GATHER: (Phase.BROADCAST,),
    Collective.ALL_REDUCE: (Phase.REDUCE, Phase.BROADCAST),
}


def _roots(case: AlgorithmCase) -> NDArray[np.int64]:
    """Ranks at which trees end or begin."""
    if case.collective.rooted:
        return np.array([case.root if case.order is None else case.order[case.root]])
    return np.arange(1 if case.parameters.get("roots") == "one" else case.size)


def _camdoop(case: AlgorithmCase) -> Forest:
    topology = case.topology
    dims = torus_dims(topology)
    assert dims is not None  # refused before
    trees, roots = torus_trees(dims), _roots(case)
    nodes = topology.rank_nodes
    phases, senders, receivers = [], [], []
    for phase in _PHASES[case.collective]:
        for tree in range(trees.count):
            below, above = trees.upward(tree, roots)
            up = phase is Phase.REDUCE
            phases += [phase] * len(roots)
            senders.append(nodes[below if up else above[:, ::-1]].reshape(-1))
            receivers.append(nodes[above if up else below[:, ::-1]].reshape(-1))
    none = np.zeros(0, dtype=np.int32)
    src, dst = (np.concatenate(ends) if ends else none for ends in (senders, receivers))
    hops, row = np.unique(np.stack([src, dst], axis=1), axis=0, return_inverse=True)
    return Forest(
        topology=topology,
        collective=case.collective,
        tree_root=np.tile(nodes[roots], len(senders)).astype(np.int32),
        tree_weight=np.ones(len(phases), dtype=np.int64),
        tree_phase=np.array(phases, dtype=np.int8),
        tree_start=np.arange(len(phases) + 1, dtype=np.int64) * (topology.num_ranks - 1),
        edge_src=src.astype(np.int32),
        edge_dst=dst.astype(np.int32),
        edge_path=row.reshape(-1).astype(np.int32),
        path_start=np.arange(len(hops) + 1, dtype=np.int64) * 2,
        path_nodes=hops.reshape(-1).astype(np.int32),
    )


def _needs_a_torus(case: AlgorithmCase) -> str | None:
    name = case.topology.name
    dims = torus_dims(case.topology)
    if dims is None:
        return (
            f"camdoop needs a torus of ranks alone, in rank order with the last axis fastest, found {name}: "
            "choose another algorithm."
        )
    long = sum(size > 2 for size in dims)
    if long > LONG_AXES:
        return (
            f"camdoop needs a torus with at most {LONG_AXES} axes of three and more ranks, found {long} on {name}: "
            "choose another algorithm."
        )
    return None


_ROOTS = AlgorithmParameter(
    default="all",
    choices=("all", "one"),
    summary="ranks at which stripes are added up: each for its share, or one",
)

CAMDOOP = tuple(
    Algorithm(
        name="camdoop",
        collective=collective,
        build=_camdoop,
        summary="added up hop by hop on a torus, along trees that share no directed link",
        source="Camdoop (Costa et al., NSDI 2012)",
        needs=_needs_a_torus,
        parameters={"roots": _ROOTS} if collective is Collective.ALL_REDUCE else {},
        topological=True,
    )
    for collective in _PHASES
)
