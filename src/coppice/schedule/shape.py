"""Structure of a forest's edges and its shape: distinct trees, heights in GPU-to-GPU hops.

Every edge has a *child*, the vertex farther from the root (the receiver in a broadcast tree, the sender in a
reduce tree), and a *parent*. Each vertex but the root is the child of exactly one edge, so the edge above the
parent is unique: its row is the *parent row*. Chains of parent rows are followed by pointer doubling, which
takes log2(height) passes over the columns instead of one step per hop.

Heights count ranks, not wires: an edge that ends at a rank is one hop, however many switches lie on it, and a
copying or adding switch between two ranks makes no hop of its own. An all-reduce has two phases; data go up a
reduce tree and then down a broadcast tree of the same root, so its heights are sums over the phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError
from coppice.rows import positions
from coppice.schedule.exact_sums import exact_total, grouped_sums
from coppice.schedule.forest import Forest, Phase

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
    nodes = forest.topology.num_nodes
    root_of = np.arange(nodes) if forest.symmetry is None else forest.symmetry.node_orbit
    highest_at_root = np.zeros((len(Phase), nodes), dtype=np.int64)
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
        np.maximum.at(highest_at_root[phase], root_of[forest.tree_root[rows]], heights[rows])
    return ForestShape(
        trees_per_root=_trees_per_root(forest),
        distinct_trees=sum(distinct.values()) * forest.num_images,
        max_height=int(highest_at_root.sum(axis=0).max()),
        mean_height=sum((part.mean_height for part in phases.values()), start=Fraction(0)),
        phases=phases,
    )


def tree_heights(forest: Forest) -> NDArray[np.int64]:
    """Height of each tree in hops between ranks."""
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
