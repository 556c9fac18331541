"""Camdoop: reductions in the nodes of a torus along edge-disjoint spanning trees, one per link of a node.

The buffer is cut into as many equal stripes as a node has links, six on a 3D torus. Every node adds what comes from
below in the tree of a stripe to its own and passes on the sum, so that the root receives M in all, over all its links
at once, where it would receive (P - 1) M from nodes that only forward. A broadcast runs backwards along them.

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

Edge-disjoint spanning trees of a torus, one per link of a node, for reduction to any root. A node is written by its
coordinates relative to the root, so that one family of trees serves every root. Every node but the root has one next
hop in each tree. The trees share no directed link exactly if these hops are different at every node, and as a node has
as many links as there are trees, every directed link that does not leave the root is used once.

**Axes of three and more.** A tree for every axis and direction. Tree a moves along axis a until its coordinate is that
of the root, then along other axes in their order. What keeps the trees apart is what they do where some coordinates are
the root's (up to three axes; the same in both directions):

    none                 tree a moves along axis a
    axis z alone         trees z and z + 1 change places
    two of three         tree a moves along axis a - 1

Paths have at most ``sum(k - 1) + 1`` hops where all axes have k nodes.

**Axes of two** have one link where the others have two. Let G be the torus so far with trees 1 .. d, and r_i the node
from which tree i enters the root r. On the half of the root, trees stay as they are. On the other half, tree i >= 2
ends in r_i instead of r: r moves to r_i, and r_i crosses. Tree 1 crosses at every node that no other tree crosses at;
r_i moves to r, and r to r_1. The new tree, on the half of the root, crosses away from it, takes the hops of tree 1 on
the other half, and crosses at r.

Inspired by Camdoop (Costa, Donnelly, Rowstron and O'Shea, NSDI 2012), which has six such trees on a 3D torus, by paths
along the axes in different orders and directions; the rule above is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.grids import torus_dims
from coppice.schedule.forest import Forest, Phase

LONG_AXES = 3
"""Most axes of three and more nodes."""

Hops = NDArray[np.int64]
"""``hops[t, v]`` is the node after v on its way to the root in tree t; of the root itself, the root."""


@dataclass(frozen=True, eq=False)
class TorusTrees:
    """Trees rooted at node 0 of a torus; translations give those of other roots."""

    dims: tuple[int, ...]  # Size of each axis; nodes count the last axis fastest
    hops: Hops  # The next node on the way to node 0, per tree and node

    @property
    def count(self) -> int:
        """Number of trees: the degree of a node."""
        return len(self.hops)

    @cached_property
    def depth(self) -> Hops:
        """Depth of each node, by tree and node."""
        trees = np.arange(self.count)[:, None]
        depth = np.zeros_like(self.hops)
        at = np.broadcast_to(np.arange(self.hops.shape[1]), self.hops.shape)
        while (at != 0).any():
            depth += at != 0
            at = self.hops[trees, at]
        return depth

    @property
    def height(self) -> int:
        """Largest depth."""
        return int(self.depth.max(initial=0))

    def upward(self, tree: int, roots: NDArray[np.integer]) -> tuple[Hops, Hops]:
        """Senders and receivers of a tree to each of ``roots`` (one row each), the deepest first."""
        order = np.argsort(-self.depth[tree], kind="stable")[:-1]
        return self.translated(order, roots), self.translated(self.hops[tree, order], roots)

    def translated(self, nodes: NDArray[np.integer], roots: NDArray[np.integer]) -> Hops:
        """Images of ``nodes`` under the translation to each of ``roots`` (one row each)."""
        columns = [
            (node[None, :] + root[:, None]) % size
            for node, root, size in zip(
                np.unravel_index(nodes, self.dims), np.unravel_index(roots, self.dims), self.dims, strict=True
            )
        ]
        return np.asarray(np.ravel_multi_index(columns, self.dims), dtype=np.int64)


@lru_cache(maxsize=16)
def torus_trees(dims: tuple[int, ...]) -> TorusTrees:
    """Trees of a torus with at most three axes of three or more nodes, and any number of axes of two.

    Examples:
        >>> trees = torus_trees((3, 3, 3))
        >>> trees.count, trees.height
        (6, 7)
        >>> torus_trees((2, 4)).hops[:, 1].tolist()  # of node (0, 1): all three are different
        [2, 0, 5]
    """
    long = tuple(size for size in dims if size > 2)
    hops = (
        np.concatenate([_one_way(long, +1), _one_way(long, -1)]) if long else np.zeros((0, 1), dtype=np.int64)
    )
    twos = sum(size == 2 for size in dims)
    for _ in range(twos):
        hops = _doubled(hops)
    # The axes were taken in the order twos, long ones: to the places of ``dims``.
    rest = iter(range(twos, twos + len(long)))
    two = iter(range(twos))
    axes = [next(two) if size == 2 else next(rest) for size in dims if size > 1]
    built = (2,) * twos + long
    wanted = tuple(size for size in dims if size > 1)
    old_of_new = np.arange(prod(built)).reshape(built).transpose(axes).reshape(-1)
    new_of_old = np.argsort(old_of_new)
    return TorusTrees(wanted or (1,), new_of_old[hops[:, old_of_new]])


def _one_way(dims: tuple[int, ...], sign: int) -> Hops:
    """A tree for every axis, whose hops all lead in one direction along the axes."""
    count = len(dims)
    where = np.array(np.unravel_index(np.arange(prod(dims)), dims), dtype=np.int64).reshape(count, -1)
    done = where == 0
    zeros = done.sum(axis=0)
    hops = np.zeros((count, prod(dims)), dtype=np.int64)
    for tree in range(count):
        before, after = (tree - 1) % count, (tree + 1) % count
        axis = np.full(prod(dims), tree)
        alone = zeros == 1
        if count > 1:
            axis[alone & done[tree]] = after
            axis[alone & done[before]] = before
        if count > 2:
            axis[zeros == 2] = before
        moved = where.copy()
        every = np.arange(prod(dims))
        moved[axis, every] = (moved[axis, every] + sign) % np.array(dims)[axis]
        hops[tree] = np.ravel_multi_index(list(moved), dims)
        hops[tree, 0] = 0
    return hops


def _doubled(near: Hops) -> Hops:
    """The trees of the torus times an axis of two, from those of the torus: the other half's nodes come after."""
    trees, size = near.shape
    nodes = np.arange(size)
    enters = [int(np.flatnonzero((hops == 0) & (nodes > 0))[0]) for hops in near]
    far = near + size
    for tree in range(1, trees):
        far[tree, 0] = enters[tree] + size
        far[tree, enters[tree]] = enters[tree]
    if trees:
        far[0] = nodes
        far[0, 0] = enters[0] + size
        far[0, enters[1:]] = size
    new = np.concatenate([nodes + size, near[0] + size if trees else nodes + size])
    new[0] = new[size] = 0
    return np.concatenate([np.concatenate([near, far], axis=1), new[None, :]])


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
