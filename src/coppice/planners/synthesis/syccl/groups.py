"""All-gathers within the groups of a dimension, solved once per kind of group."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.planners.forest.planner import planned_forest
from coppice.planners.synthesis.syccl.dimensions import Dimension, group_network
from coppice.rows import offsets
from coppice.schedule.forest import expanded
from coppice.schedule.schedule import hops_of
from coppice.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GroupTrees(Brief):
    """Broadcast trees from every member of a group to all others; parents come first."""

    # For each place the ends of its trees' parts of the unit interval, ascending, the last one 1
    ends: tuple[tuple[Fraction, ...], ...]
    first: NDArray[np.int64]  # For each place its first tree
    parent: NDArray[np.int64]  # `parent[t, i]` is the sending place of edge i of tree t (int64)
    child: NDArray[np.int64]  # The receiving place (int64)
    path: NDArray[np.int64]  # Its path (int64)
    depth: NDArray[np.int64]  # How many edges lie before it (int64)
    path_start: NDArray[np.int64]  # Table of paths (int64)
    path_nodes: NDArray[np.int64]  # Their nodes, of the group's network (int64)

    def at(self, where: Fraction) -> NDArray[np.int64]:
        """Tree of each member whose interval contains ``where``."""
        chosen = [sum(end <= where for end in ends) for ends in self.ends]
        return self.first + np.array(chosen, dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SolvedDimension(Brief):
    """A dimension with the trees of its groups."""

    dimension: Dimension  # The dimension
    kinds: tuple[GroupTrees, ...]  # Trees of each kind of group
    kind: NDArray[np.int64]  # Kind of each group (int64)
    # Node of the whole network for each node of a group's network, by group
    nodes: tuple[NDArray[np.int64], ...]
    # What an all-gather of one unit from every rank puts on each link, times `scale` (int64)
    load: NDArray[np.int64]
    scale: int  # Common denominator of the loads

    @property
    def ends(self) -> set[Fraction]:
        """Interval ends of all trees."""
        return {end for trees in self.kinds for place in trees.ends for end in place}


class GroupSolver:
    """Solve the dimensions of a network; isomorphic groups are solved once.

    Args:
        topology: The network.
        trees: Trees from each place; None: the fewest within 1% of the optimum of the group.
    """

    def __init__(self, topology: Topology, trees: int | None) -> None:
        self._topology = topology
        self._trees = trees
        self._known: dict[bytes, GroupTrees] = {}

    @property
    def solved(self) -> int:
        """Number of group kinds solved."""
        return len(self._known)

    def solve(self, dimension: Dimension) -> SolvedDimension:
        """Solve a dimension."""
        networks = [group_network(self._topology, members) for members in dimension.members]
        keys = list(dict.fromkeys(network.key for network in networks))
        for network in networks:
            if network.key not in self._known:
                self._known[network.key] = self._solved(network.topology)
        kinds = tuple(self._known[key] for key in keys)
        kind = np.array([keys.index(network.key) for network in networks], dtype=np.int64)
        scale = lcm(*(end.denominator for trees in kinds for place in trees.ends for end in place))
        load = np.zeros(self._topology.num_links, dtype=np.int64)
        for which, network in zip(kind.tolist(), networks, strict=True):
            trees = kinds[which]
            nodes = network.nodes[trees.path_nodes].astype(np.int32)
            hops = hops_of(self._topology, trees.path_start, nodes)
            uses = np.zeros(hops.num_paths, dtype=np.int64)
            np.add.at(uses, trees.path, _weights(trees, scale)[:, None])
            np.add.at(load, hops.link, uses[hops.path])
        return SolvedDimension(
            dimension=dimension,
            kinds=kinds,
            kind=kind,
            nodes=tuple(network.nodes for network in networks),
            load=load,
            scale=scale,
        )

    def _solved(self, network: Topology) -> GroupTrees:
        tolerance = Fraction(1, 100) if self._trees is None else None
        problem = Problem(network, Collective.ALL_GATHER)
        forest = expanded(planned_forest(problem, trees=self._trees, tolerance=tolerance).forest)
        order = np.argsort(forest.tree_root, kind="stable")
        size = network.num_ranks
        rows = forest.tree_start[:-1][order][:, None] + np.arange(size - 1)
        parent, child = (column[rows].astype(np.int64) for column in (forest.edge_src, forest.edge_dst))
        depth = np.zeros_like(parent)
        reached = np.zeros((len(order), size), dtype=np.int64)
        tree = np.arange(len(order))
        for edge in range(size - 1):
            depth[:, edge] = reached[tree, parent[:, edge]]
            reached[tree, child[:, edge]] = depth[:, edge] + 1
        counts = np.bincount(forest.tree_root, minlength=size)
        weight = forest.tree_weight[order].tolist()
        ends, first = [], offsets(counts)
        for place in range(size):
            own = weight[int(first[place]) : int(first[place + 1])]
            sums = [sum(own[: i + 1]) for i in range(len(own))]
            ends.append(tuple(Fraction(each, sums[-1]) for each in sums))
        return GroupTrees(
            ends=tuple(ends),
            first=first[:-1],
            parent=parent,
            child=child,
            path=forest.edge_path[rows].astype(np.int64),
            depth=depth,
            path_start=forest.path_start,
            path_nodes=forest.path_nodes.astype(np.int64),
        )


def _weights(trees: GroupTrees, scale: int) -> NDArray[np.int64]:
    """Part of each tree in what its root sends, times ``scale``."""
    parts = [
        int((end - (ends[i - 1] if i else 0)) * scale) for ends in trees.ends for i, end in enumerate(ends)
    ]
    return np.array(parts, dtype=np.int64)
