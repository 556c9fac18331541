"""Edge-disjoint spanning trees of a torus, one per link of a node, for reduction to any root.

A node is written by its coordinates relative to the root, so that one family of trees serves every root. Every node but
the root has one next hop in each tree. The trees share no directed link exactly if these hops are different at every
node, and as a node has as many links as there are trees, every directed link that does not leave the root is used once.

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

from coppice.topology.model import Topology

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


@lru_cache(maxsize=16)
def torus_dims(topology: Topology) -> tuple[int, ...] | None:
    """Axis sizes of the torus that a network of ranks is in rank order, the last axis fastest, or None.

    Axes of one node are left out. Rates may differ.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> torus_dims(preset("torus", dims=(2, 4, 3))), torus_dims(preset("ring", gpus=5)), torus_dims(preset("mesh"))
        ((2, 4, 3), (5,), None)
    """
    ranks = topology.num_ranks
    if ranks != topology.num_nodes:
        return None
    links = np.unique(topology.rank[topology.src].astype(np.int64) * ranks + topology.rank[topology.dst])
    beside = set((links[links // ranks == 0] % ranks).tolist())
    return next((dims for dims in _candidates(ranks, 1, beside) if _is_torus(dims, links)), None)


def _candidates(ranks: int, stride: int, beside: set[int]) -> list[tuple[int, ...]]:
    """Sizes of the remaining axes, from the neighbours of rank 0: an axis has its first and its last node there."""
    if stride == ranks:
        return [()]
    if stride not in beside:
        return []
    sizes = sorted(
        {2} | {far // stride + 1 for far in beside if far % stride == 0 and far > stride}, reverse=True
    )
    return [
        (*outer, size)
        for size in sizes
        if ranks % (stride * size) == 0
        for outer in _candidates(ranks, stride * size, beside)
    ]


def _is_torus(dims: tuple[int, ...], links: NDArray[np.int64]) -> bool:
    ranks = prod(dims)
    nodes = np.arange(ranks).reshape(dims)
    wanted = [
        (nodes * ranks + np.roll(nodes, shift, axis)).reshape(-1)
        for axis in range(len(dims))
        for shift in (1, -1)
    ]
    found = np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, dtype=np.int64)
    return np.array_equal(found, links)
