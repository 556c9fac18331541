"""Dimensions of a network, partitions of the ranks, and all-gathers within their groups, solved once per kind.

Ranks get coordinates: the box and the place in it, the leaf switch and the place under it, or what element of an
abelian group of automorphisms (:mod:`coppice.topology.symmetry`) maps the first rank to them. A *dimension* is one
coordinate: its groups hold the ranks that differ in this one only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.planners.forest.planner import planned_forest
from coppice.rows import offsets
from coppice.schedule.forest import expanded
from coppice.schedule.schedule import hops_of
from coppice.topology.model import NodeKind, Topology
from coppice.topology.symmetry import find_symmetry


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Dimension(Brief):
    """A partition of the ranks into groups of one size."""

    name: str  # What it is
    members: NDArray[np.int64]  # `members[g, l]` is the rank at place l of group g (int64)
    group: NDArray[np.int64]  # Group of each rank (int64)
    place: NDArray[np.int64]  # Place of each rank in its group (int64)

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return int(self.members.shape[1])

    @classmethod
    def along(cls, name: str, digits: NDArray[np.int64], axis: int) -> Dimension:
        """The dimension of one coordinate.

        Args:
            digits: ``digits[r, i]`` is coordinate i of rank r; every combination occurs once.
        """
        others = np.delete(digits, axis, axis=1)
        group = np.unique(others, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
        order = np.lexsort((digits[:, axis], group))
        members = order.reshape(int(group.max()) + 1, -1)
        place = np.empty(len(group), dtype=np.int64)
        place[members] = np.arange(members.shape[1])
        return cls(name=name, members=members, group=group, place=place)


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupNetwork:
    """Network between the ranks of a group."""

    topology: Topology  # Places in the group as ranks, and the switches and NICs between them
    nodes: NDArray[np.int64]  # Node of the whole topology for each of its nodes (int64)
    key: bytes  # Equal for groups whose networks are the same, place by place


def coordinate_systems(topology: Topology) -> Iterator[list[Dimension]]:
    """Candidate coordinate systems of the ranks, the most natural first.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> [[each.name for each in dimensions] for dimensions in coordinate_systems(preset("dgx-h100", boxes=4))]
        [['box', 'rail'], ['axis 1', 'axis 2']]
    """
    ranks = topology.num_ranks
    hosts = topology.host[topology.rank_nodes].astype(np.int64)
    seen = set()
    for names, groups in ((("box", "rail"), hosts), (("leaf", "rail"), _leaves(topology))):
        digits = _placed(groups)
        if digits is not None and digits.tobytes() not in seen:
            seen.add(digits.tobytes())
            yield [Dimension.along(name, digits, axis) for axis, name in enumerate(names)]
    symmetry = find_symmetry(topology)
    if symmetry.order == ranks and len(symmetry.orders) > 1:
        element = symmetry.node_element[topology.rank_nodes]
        below = [prod(symmetry.orders[:i]) for i in range(len(symmetry.orders))]
        digits = np.stack([element // b % n for b, n in zip(below, symmetry.orders, strict=True)], axis=1)
        yield [Dimension.along(f"axis {axis + 1}", digits, axis) for axis in range(len(symmetry.orders))]


def whole(topology: Topology) -> Dimension:
    """All ranks as one group."""
    ranks = np.arange(topology.num_ranks, dtype=np.int64)
    return Dimension(name="all", members=ranks[None, :], group=np.zeros_like(ranks), place=ranks)


def _leaves(topology: Topology) -> NDArray[np.int64]:
    """The first switch of each rank, or -1."""
    found = np.full(topology.num_nodes, -1, dtype=np.int64)
    up = topology.kind[topology.dst] == NodeKind.SWITCH
    # The widest link counts: a box's own switch rather than that of the network.
    order = np.argsort(topology.capacity[up], kind="stable")
    found[topology.src[up][order]] = topology.dst[up][order]
    return found[topology.rank_nodes]


def _placed(groups: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """(place in the group, group) of each rank, where there are several groups of one size of 2 or more."""
    if not len(groups) or groups.min() < 0:
        return None
    names, group = np.unique(groups, return_inverse=True)
    sizes = np.bincount(group)
    if len(names) < 2 or sizes.min() < 2 or sizes.min() != sizes.max():
        return None
    place = np.empty(len(groups), dtype=np.int64)
    order = np.argsort(group, kind="stable")
    place[order] = np.tile(np.arange(sizes[0]), len(names))
    return np.stack([place, group.astype(np.int64)], axis=1)


def group_network(topology: Topology, members: NDArray[np.int64]) -> GroupNetwork:
    """Network of a group without other GPUs: within their box where they share one."""
    own = topology.rank_nodes[members]
    hosts = set(topology.host[own].tolist())
    keeps = topology.rank < 0
    keeps &= topology.kind != NodeKind.GPU
    if len(hosts) == 1 and -1 not in hosts:
        keeps &= topology.host == next(iter(hosts))
    keeps[own] = True
    terminal = np.zeros(topology.num_nodes, dtype=np.bool_)
    terminal[own] = True
    keeps = _useful(topology, keeps, terminal)
    others = np.flatnonzero(keeps & ~terminal)
    nodes = np.concatenate([own, others]).astype(np.int64)
    new_id = np.full(topology.num_nodes, -1, dtype=np.int32)
    new_id[nodes] = np.arange(len(nodes), dtype=np.int32)
    links = np.flatnonzero(keeps[topology.src] & keeps[topology.dst])
    src, dst = new_id[topology.src[links]], new_id[topology.dst[links]]
    order = np.lexsort((dst, src))
    links = links[order]
    rank = np.full(len(nodes), -1, dtype=np.int32)
    rank[: len(own)] = np.arange(len(own), dtype=np.int32)
    capacity = topology.capacity[links]
    divisor = int(np.gcd.reduce(np.append(capacity, topology.denominator)))
    found = Topology(
        name=f"group of {len(own)} in {topology.name}",
        node_ids=tuple(topology.node_ids[v] for v in nodes.tolist()),
        kind=topology.kind[nodes],
        host=np.full(len(nodes), -1, dtype=np.int32),
        hosts=(),
        rank=rank,
        multicast=np.zeros(len(nodes), dtype=np.bool_),
        aggregate=np.zeros(len(nodes), dtype=np.bool_),
        src=src[order],
        dst=dst[order],
        capacity=capacity // divisor,
        denominator=topology.denominator // divisor,
        latency_us=topology.latency_us[links],
    )
    columns = (found.kind, found.src, found.dst, found.capacity, found.latency_us)
    key = b"|".join([*(column.tobytes() for column in columns), str((len(own), found.denominator)).encode()])
    return GroupNetwork(topology=found, nodes=nodes, key=key)


def _useful(topology: Topology, keeps: NDArray[np.bool_], terminal: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Without the switches and NICs that lead from no member to another one."""
    keeps = keeps.copy()
    while True:
        links = keeps[topology.src] & keeps[topology.dst]
        pairs = np.stack([topology.src[links], topology.dst[links]])
        into = np.bincount(pairs[1], minlength=topology.num_nodes)
        out = np.bincount(pairs[0], minlength=topology.num_nodes)
        both = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
        neighbours = np.bincount(both[0], minlength=topology.num_nodes)
        idle = keeps & ~terminal & ((into == 0) | (out == 0) | (neighbours < 2))
        if not idle.any():
            return keeps
        keeps &= ~idle


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
