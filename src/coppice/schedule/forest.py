"""Forests: spanning trees with exact weights, the form in which optimal plans are found and verified.

A forest says *who forwards what to whom over which physical path*. In a broadcast tree data flows from the root
to all terminals; in a reduce tree it flows from all of them to the root. An all-gather is broadcast trees at every
rank, a reduce-scatter reduce trees at every rank, an all-reduce both: a share of the data that is reduced at a root
is broadcast from there.

Shares are exact. Tree t carries ``tree_weight[t] / sum(tree_weight of its phase)`` of all M bytes. One unit of
weight loads every link of a tree by one unit, so with W the sum of the weights of one phase, a link that is used
by ``load`` units of weight carries ``load * M / W`` bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.equality import ByContent
from coppice.errors import InputError
from coppice.rows import offsets, ranges
from coppice.text import plural
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry

MOST_EDGES = 50_000_000
"""More tree edges than this are not written out (about 2 GB)."""


class Phase(enum.IntEnum):
    """Direction of the data in a tree."""

    BROADCAST = 0
    REDUCE = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Forest(ByContent):
    """Trees of one collective on one topology, as columns.

    Edges of a tree come in an order in which data can flow: in a broadcast tree every sender but the root has
    received in an earlier row; in a reduce tree every sender has received everything before.
    """

    topology: Topology  # Where the trees live
    collective: Collective  # What they implement
    tree_root: NDArray[np.int32]  # `tree_root[t]` is the root node of tree t (int32)
    tree_weight: NDArray[np.int64]  # `tree_weight[t]` is its weight in units (int64, positive)
    tree_phase: NDArray[np.int8]  # `tree_phase[t]` is a :class:`Phase` (int8)
    # Edges of tree t are rows `tree_start[t] .. tree_start[t + 1] - 1` (int64, length trees + 1).
    tree_start: NDArray[np.int64]
    edge_src: NDArray[np.int32]  # Node that sends on an edge, in the direction of the data (int32)
    # Node that receives on it (int32). Ends are GPUs, or switches that copy (broadcast) or add (reduce).
    edge_dst: NDArray[np.int32]
    edge_path: NDArray[np.int32]  # Row of the path that the edge takes (int32)
    # Nodes of path p are `path_nodes[path_start[p] : path_start[p + 1]]`, both ends included (int64)
    path_start: NDArray[np.int64]
    path_nodes: NDArray[np.int32]  # Node sequences of all paths (int32)
    # Where given, the trees are *templates*: each stands for its images under this group of automorphisms, at
    # every root of its orbit and with its own weight. None: the trees are all there are.
    symmetry: Symmetry | None = None

    def __repr__(self) -> str:
        """In short what it is.

        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> plan(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)).plan.forest
        Forest(all_gather on 'ring of 4': 8 trees, 24 edges, total weight 8)
        """
        sizes = f"{plural(self.num_trees, 'tree')}, {plural(self.num_edges, 'edge')}"
        images = f", each for {self.num_images} images" if self.symmetry is not None else ""
        place = f"{self.collective} on {self.topology.name[:80]!r}"
        return f"Forest({place}: {sizes}{images}, total weight {self.total_weight})"

    @property
    def num_images(self) -> int:
        """Trees that each listed tree represents: 1, or the order of the group."""
        return 1 if self.symmetry is None else self.symmetry.order

    @property
    def num_trees(self) -> int:
        """Number of trees listed; images are not counted."""
        return len(self.tree_root)

    @property
    def num_edges(self) -> int:
        """Number of tree edges listed; images are not counted."""
        return len(self.edge_src)

    @cached_property
    def edge_tree(self) -> NDArray[np.int32]:
        """Tree of each edge."""
        return np.repeat(np.arange(self.num_trees, dtype=np.int32), np.diff(self.tree_start))

    @cached_property
    def branches_at_switches(self) -> bool:
        """Whether a tree begins, ends or branches at a switch, which then multicasts or reduces."""
        rank = self.topology.rank
        return any(bool((rank[ends] < 0).any()) for ends in (self.tree_root, self.edge_src, self.edge_dst))

    def phase_weight(self, phase: Phase) -> int:
        """Sum of the weights of the trees of one phase, images included (0 where the phase has no trees)."""
        weights: list[int] = self.tree_weight[self.tree_phase == phase].tolist()
        return sum(weights) * self.num_images

    @property
    def total_weight(self) -> int:
        """W: total weight, which stands for all M bytes."""
        return max(self.phase_weight(Phase.BROADCAST), self.phase_weight(Phase.REDUCE))

    def path(self, path: int) -> tuple[int, ...]:
        """Nodes of a path, both ends included."""
        return tuple(self.path_nodes[self.path_start[path] : self.path_start[path + 1]].tolist())

    def edges(self, tree: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """(sender, receiver, path) of each edge of a tree, in row order."""
        for row in range(int(self.tree_start[tree]), int(self.tree_start[tree + 1])):
            yield int(self.edge_src[row]), int(self.edge_dst[row]), self.path(int(self.edge_path[row]))


def expanded_edges(forest: Forest) -> int:
    """Number of edges that the forest has with all images."""
    return forest.num_edges * forest.num_images


def expanded(forest: Forest) -> Forest:
    """The same forest with templates replaced by their images."""
    symmetry = forest.symmetry
    if symmetry is None:
        return forest
    if expanded_edges(forest) > MOST_EDGES:
        raise InputError(
            f"expected at most {MOST_EDGES} tree edges to write out, found {expanded_edges(forest)}: "
            "keep the templates."
        )
    order = symmetry.order
    elements = np.arange(order)
    trees = np.repeat(np.arange(forest.num_trees), order)
    lengths = np.diff(forest.tree_start)[trees]
    rows = ranges(forest.tree_start[:-1][trees], lengths)
    image = np.repeat(np.tile(elements, forest.num_trees), lengths)
    paths = len(forest.path_start) - 1
    # All images of all paths: path p under element g is path g * paths + p.
    node_images = symmetry.image(forest.path_nodes[None, :], elements[:, None])
    starts = forest.path_start[None, :-1] + elements[:, None] * len(forest.path_nodes)
    return replace(
        forest,
        tree_root=symmetry.image(forest.tree_root[trees], np.tile(elements, forest.num_trees)),
        tree_weight=forest.tree_weight[trees],
        tree_phase=forest.tree_phase[trees],
        tree_start=offsets(lengths),
        edge_src=symmetry.image(forest.edge_src[rows], image),
        edge_dst=symmetry.image(forest.edge_dst[rows], image),
        edge_path=(image * paths + forest.edge_path[rows]).astype(np.int32),
        path_start=np.append(starts.reshape(-1), node_images.size).astype(np.int64),
        path_nodes=node_images.reshape(-1),
        symmetry=None,
    )
