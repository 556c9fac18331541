"""Trees of a forest: ranks, parents and paths by name, distinct trees, heights in GPU-to-GPU hops.

Every edge has a *child*, the vertex farther from the root (the receiver in a broadcast tree, the sender in a
reduce tree), and a *parent*. Each vertex but the root is the child of exactly one edge, so the edge above the
parent is unique: its row is the *parent row*. Chains of parent rows are followed by pointer doubling, which
takes log2(height) passes over the columns instead of one step per hop.

Heights count ranks, not wires: an edge that ends at a rank is one hop, however many switches lie on it, and a
copying or adding switch between two ranks makes no hop of its own. An all-reduce has two phases; data go up a
reduce tree and then down a broadcast tree of the same root, so its heights are sums over the phases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.rows import positions
from coppice.schedule.forest import Forest, Phase, expanded
from coppice.schedule.loads import exact_total, grouped_sums
from coppice.schedule.walk import walk


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """One tree of a forest, along which a share of the data is broadcast from, or reduced to, its root."""

    forest: Forest  # The forest, written out
    index: int  # Row of the tree in its columns

    @property
    def phase(self) -> str:
        """``broadcast`` (data flows away from the root) or ``reduce`` (towards it)."""
        return Phase(int(self.forest.tree_phase[self.index])).name.lower()

    @property
    def root(self) -> str:
        """Name of the root node."""
        return self._name(int(self.forest.tree_root[self.index]))

    @property
    def weight(self) -> int:
        """Weight; :attr:`share` is relative to all trees."""
        return int(self.forest.tree_weight[self.index])

    @property
    def share(self) -> Fraction:
        """Share of all data that travels along this tree, exact."""
        return Fraction(self.weight, self.forest.phase_weight(Phase(int(self.forest.tree_phase[self.index]))))

    @cached_property
    def parents(self) -> Mapping[str, str]:
        """Parent of every node but the root, by name; parents come before their children."""
        edges = [
            (sender, receiver) if self._away else (receiver, sender)
            for sender, receiver, _ in self.forest.edges(self.index)
        ]
        return {
            self._name(child): self._name(parent) for parent, child in (edges if self._away else edges[::-1])
        }

    @cached_property
    def paths(self) -> Mapping[str, tuple[str, ...]]:
        """For every node but the root the nodes on its edge, in the direction of the data, both ends included."""
        return {
            self._name(receiver if self._away else sender): tuple(map(self._name, path))
            for sender, receiver, path in self.forest.edges(self.index)
        }

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of the tree, its root first, and parents before their children."""
        topology = self.forest.topology
        nodes = [topology.node_index[name] for name in (self.root, *self.parents)]
        return tuple(int(topology.rank[node]) for node in nodes if topology.rank[node] >= 0)

    @cached_property
    def height(self) -> int:
        """Edges between the root and the node farthest from it."""
        depth = {self.root: 0}
        for child, parent in self.parents.items():
            depth[child] = depth[parent] + 1
        return max(depth.values())

    def children(self, node: str) -> tuple[str, ...]:
        """Names of the children of a node."""
        return tuple(child for child, parent in self.parents.items() if parent == node)

    @property
    def _away(self) -> bool:
        return bool(self.forest.tree_phase[self.index] == Phase.BROADCAST)

    def _name(self, node: int) -> str:
        return self.forest.topology.node_ids[node]

    def __str__(self) -> str:
        return "\n".join(draw_tree(self.forest, self.index))

    def __repr__(self) -> str:
        return f"<Tree of {len(self.ranks)} ranks, {self.phase} at {self.root}, {self.share} of the data>"


class Trees(Sequence[Tree]):
    """Lazy sequence of all trees of a forest, templates expanded.

    Examples:
        >>> import coppice
        >>> trees = coppice.plan(coppice.load("ring", gpus=3), "broadcast").plan.trees
        >>> [(tree.root, tree.ranks, str(tree.share)) for tree in trees]
        [('gpu0', (0, 1, 2), '1/2'), ('gpu0', (0, 2, 1), '1/2')]
        >>> trees[0].parents, trees[0].paths["gpu2"]
        ({'gpu1': 'gpu0', 'gpu2': 'gpu1'}, ('gpu1', 'gpu2'))
    """

    def __init__(self, forest: Forest) -> None:
        self._listed = forest

    @cached_property
    def _forest(self) -> Forest:
        return expanded(self._listed)

    def __len__(self) -> int:
        return self._listed.num_trees * self._listed.num_images

    @overload
    def __getitem__(self, index: int) -> Tree: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tree]: ...

    def __getitem__(self, index: int | slice) -> Tree | list[Tree]:
        if isinstance(index, slice):
            return [Tree(self._forest, each) for each in range(len(self))[index]]
        return Tree(self._forest, range(len(self))[index])

    def __iter__(self) -> Iterator[Tree]:
        return (Tree(self._forest, index) for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} trees on {self._listed.topology.name}>"


def draw_tree(forest: Forest, tree: int) -> list[str]:
    r"""Draw a tree as lines of text, with the switches on each edge.

    Examples:
        >>> import numpy as np
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.model import Link, Node, NodeKind, Topology
        >>> star = Topology.of(
        ...     "star",
        ...     [*(Node(id=name) for name in "abc"), Node(id="hub", kind=NodeKind.SWITCH)],
        ...     [Link(src=name, dst="hub", gb_per_s=Fraction(25)) for name in "abc"],
        ... )
        >>> forest = Forest(topology=star, collective=Collective.BROADCAST, tree_root=np.array([0]),
        ...                 tree_weight=np.array([1]), tree_phase=np.array([0]), tree_start=np.array([0, 2]),
        ...                 edge_src=np.array([0, 1]), edge_dst=np.array([1, 2]), edge_path=np.array([0, 1]),
        ...                 path_start=np.array([0, 3, 6]), path_nodes=np.array([0, 3, 1, 1, 3, 2]))
        >>> print(*draw_tree(forest, 0), sep="\n")
        a
        └─ b  via hub
           └─ c  via hub
    """
    names = forest.topology.node_ids
    upward = forest.tree_phase[tree] == Phase.REDUCE
    children: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for sender, receiver, path in forest.edges(tree):
        parent, child = (receiver, sender) if upward else (sender, receiver)
        children[parent].append((child, path[1:-1]))
    root = int(forest.tree_root[tree])
    lines = [names[root]]
    stack = [(child, via, "", place == 0) for place, (child, via) in enumerate(reversed(children[root]))]
    while stack:
        node, via, indent, last = stack.pop()
        passing = f"  via {', '.join(names[v] for v in via)}" if via else ""
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{names[node]}{passing}")
        deeper = indent + ("   " if last else "│  ")
        stack += [
            (child, passed, deeper, place == 0)
            for place, (child, passed) in enumerate(reversed(children[node]))
        ]
    return lines


ROOT_PARENT = -1
"""Parent row of an edge at the root."""

NO_PARENT = -2
"""Parent row of an edge whose parent is neither the root nor the child of any edge of the tree."""

_BLOCK_CELLS = 2**22

_Number = TypeVar("_Number", np.int64, np.float64)


def children(forest: Forest) -> NDArray[np.int32]:
    """Child vertex of each edge: the one farther from the root."""
    return np.where(_broadcasts(forest), forest.edge_dst, forest.edge_src).astype(np.int32, copy=False)


def parents(forest: Forest) -> NDArray[np.int32]:
    """Parent vertex of each edge: the one nearer to the root."""
    return np.where(_broadcasts(forest), forest.edge_src, forest.edge_dst).astype(np.int32, copy=False)


def _broadcasts(forest: Forest) -> NDArray[np.bool_]:
    return np.repeat(forest.tree_phase == Phase.BROADCAST, np.diff(forest.tree_start))


def tree_blocks(forest: Forest) -> list[tuple[int, int]]:
    """Ranges of trees whose (tree, node) tables fit in some tens of MiB."""
    step = max(1, _BLOCK_CELLS // max(1, forest.topology.num_nodes))
    return [(low, min(low + step, forest.num_trees)) for low in range(0, forest.num_trees, step)]


def parent_rows(forest: Forest) -> NDArray[np.int64]:
    """Row of the edge above each edge; `ROOT_PARENT` at the root, `NO_PARENT` where there is none.

    Where a vertex is the child of several edges (the forest is then wrong) the last of them counts.
    """
    num_nodes = forest.topology.num_nodes
    child, parent = children(forest), parents(forest)
    above = np.empty(forest.num_edges, dtype=np.int64)
    for low, high in tree_blocks(forest):
        rows = slice(int(forest.tree_start[low]), int(forest.tree_start[high]))
        base = (forest.edge_tree[rows].astype(np.int64) - low) * num_nodes
        row_of = np.full((high - low) * num_nodes, NO_PARENT, dtype=np.int64)
        row_of[base + child[rows]] = np.arange(rows.start, rows.stop)
        row_of[np.arange(high - low) * num_nodes + forest.tree_root[low:high]] = ROOT_PARENT
        above[rows] = row_of[base + parent[rows]]
    return above


def sums_to_root(parent_row: NDArray[np.int64], value: NDArray[_Number]) -> NDArray[_Number]:
    """For each edge the sum of ``value`` over the edges from the root down to it, itself included.

    Examples:
        >>> sums_to_root(np.array([-1, 0, 1]), np.array([1, 1, 1]))
        array([1, 2, 3])
    """
    total, pointer = value.copy(), parent_row.copy()
    active = np.flatnonzero(pointer >= 0)
    for _ in range(len(value).bit_length() + 1):
        if not len(active):
            break
        ahead = pointer[active]
        total[active] += total[ahead]
        pointer[active] = pointer[ahead]
        active = active[pointer[active] >= 0]
    if len(active) or (pointer == NO_PARENT).any():
        raise InputError(
            "expected trees, found an edge that does not lead to the root: verify the forest first."
        )
    return total


@dataclass(frozen=True, kw_only=True)
class PhaseShape:
    """Shape of the trees of one phase."""

    distinct_trees: int  # Trees that differ in root or in an edge's ends or path
    max_height: int  # Most hops between the root and a rank
    mean_height: Fraction  # Mean of the trees' heights, weighted by tree weight


@dataclass(frozen=True, kw_only=True)
class ForestShape:
    """Shape of a forest."""

    # Trees of equal size at every root (k): the weight at a root over the greatest common divisor of all tree
    # weights. None where roots differ.
    trees_per_root: int | None
    distinct_trees: int  # Distinct trees, over all roots and phases
    # Most hops between a root and a rank; for all-reduce the most on the way up plus the most on the way down
    # at one root
    max_height: int
    # Mean height of the trees weighted by their weights; for all-reduce the sum of both phases' means
    mean_height: Fraction
    phases: Mapping[Phase, PhaseShape]  # The same for each phase that occurs

    @property
    def together(self) -> str:
        """What heights are of, where not of single trees, as the end of a sentence about them."""
        return ", of a reduce and a broadcast tree together" if len(self.phases) > 1 else ""


def shape(forest: Forest) -> ForestShape:
    """Count the trees and heights of a verified forest."""
    heights = tree_heights(forest)
    distinct = distinct_trees(forest)
    phases: dict[Phase, PhaseShape] = {}
    for phase in Phase:
        rows = np.flatnonzero(forest.tree_phase == phase)
        if not len(rows):
            continue
        weight = forest.tree_weight[rows].tolist()
        total = sum(height * share for height, share in zip(heights[rows].tolist(), weight, strict=True))
        phases[phase] = PhaseShape(
            distinct_trees=distinct[phase] * forest.num_images,
            max_height=int(heights[rows].max()),
            mean_height=Fraction(total, sum(weight)),
        )
    return ForestShape(
        trees_per_root=_trees_per_root(forest),
        distinct_trees=sum(distinct.values()) * forest.num_images,
        max_height=highest(forest, heights),
        mean_height=sum((part.mean_height for part in phases.values()), start=Fraction(0)),
        phases=phases,
    )


def highest(forest: Forest, heights: NDArray[np.integer]) -> int:
    """Most hops between a root and a rank; for all-reduce the most on the way up plus the most down at one root."""
    nodes = forest.topology.num_nodes
    root_of = np.arange(nodes) if forest.symmetry is None else forest.symmetry.node_orbit
    at_root = np.zeros((len(Phase), nodes), dtype=np.int64)
    np.maximum.at(at_root, (forest.tree_phase, root_of[forest.tree_root]), heights)
    return int(at_root.sum(axis=0).max(initial=0))


def tree_heights(forest: Forest) -> NDArray[np.int64]:
    """Height of each tree in hops between ranks."""
    walked = walk(forest)
    if walked is not None:
        return walked.height.astype(np.int64)
    return tree_maxima(forest, rank_depths(forest))


def rank_depths(forest: Forest) -> NDArray[np.int64]:
    """Hops between ranks from the root to the child of each edge."""
    counts = (forest.topology.rank[children(forest)] >= 0).astype(np.int64)
    return sums_to_root(parent_rows(forest), counts)


def tree_maxima(forest: Forest, value: NDArray[_Number]) -> NDArray[_Number]:
    """Largest value among the edges of each tree, 0 for a tree without edges."""
    result = np.zeros_like(value, shape=forest.num_trees)
    filled = np.flatnonzero(np.diff(forest.tree_start) > 0)
    if len(filled):
        result[filled] = np.maximum.reduceat(value, forest.tree_start[filled])
    return result


def distinct_trees(forest: Forest) -> dict[Phase, int]:
    """Number of trees of each phase that differ in root, edges or paths.

    Trees are compared by two independent 64-bit sums over their edges, which do not depend on the order of
    the edges; two different trees share both with probability 2^-128.
    """
    prints = []
    for seed in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F):
        edge = _mixed(_path_prints(forest, seed)[forest.edge_path], seed)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(edge, dtype=np.uint64)])
        prints.append(sums[forest.tree_start[1:]] - sums[forest.tree_start[:-1]])
    table = np.stack([forest.tree_root.astype(np.uint64), *prints], axis=1)
    result = {}
    for phase in Phase:
        rows = table[forest.tree_phase == phase]
        if len(rows):
            result[phase] = len(np.unique(rows, axis=0))
    return result


def _path_prints(forest: Forest, seed: int) -> NDArray[np.uint64]:
    """A 64-bit print of the node sequence of each path."""
    start = forest.path_start
    if len(start) < 2:
        return np.zeros(0, dtype=np.uint64)
    place = positions(np.diff(start))
    cell = (place.astype(np.uint64) << np.uint64(32)) ^ forest.path_nodes.astype(np.uint64)
    return np.add.reduceat(_mixed(cell, seed ^ 0x5851F42D4C957F2D), start[:-1], dtype=np.uint64)


def _mixed(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Scatter 64-bit values (the finaliser of splitmix64, Steele, Lea and Flood, 2014)."""
    mixed = values + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _trees_per_root(forest: Forest) -> int | None:
    """Trees of equal size at every rank, or None where they differ between ranks."""
    if not forest.num_trees:
        return None
    unit = gcd(*forest.tree_weight.tolist())
    nodes = forest.topology.num_nodes
    root_of = np.arange(nodes) if forest.symmetry is None else forest.symmetry.node_orbit
    root = root_of[forest.tree_root]
    weights = set()
    for phase in Phase:
        rows = forest.tree_phase == phase
        if rows.any():
            sums = grouped_sums(root[rows], forest.tree_weight[rows], nodes)
            at_ranks = [sums[root_of[node]] for node in forest.topology.rank_nodes.tolist()]
            if sum(at_ranks) != exact_total(forest.tree_weight[rows]) * forest.num_images:
                return None
            weights.update(at_ranks)
    return weights.pop() // unit if len(weights) == 1 else None
