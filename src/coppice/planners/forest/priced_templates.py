"""Templates of a symmetric network that a linear program puts together: low trees, and as few as fill the links.

The packer grows one template after the other in whole units and leaves room for those to come. Here each tree is grown
as if it were alone, where links have prices; a linear program finds the weights of the trees at which least is
overloaded, and its prices say where the next trees should go (column generation). Ways of one price are taken towards
the nodes that come first, from any root alike, so that images of a tree differ as little as the network lets them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.network import Network
from coppice.planners.forest.moved_tree import neighbours
from coppice.planners.forest.packed import PackedTrees
from coppice.rows import offsets
from coppice.schedule.forest import Phase
from coppice.topology.symmetry import Symmetry

MOST_ROUNDS = 24
"""Linear programs after which no templates are looked for any more."""

MOST_WORK = 600_000
"""Links of the network, once for every tree, up to which trees are grown."""

_SPARE = 1e-3
"""Share of the price of a full link that a free one costs: among ways of one price the short one is taken."""

MANNERS = ((8.0, 0.5), (8.0, _SPARE), (2.0, _SPARE), (1.0, _SPARE))
"""How trees are grown, one after the other where the one before brings nothing new.

How many times as much a way costs one hop further from the root, as low trees are wanted; and the share in its price of
what every link costs by its rate, as prices alone lead from one extreme to the other.
"""

_STEEPEST = 1e30

GrownTree = tuple[tuple[int, ...], ...]
"""The links of each edge, from parent to child, in the order in which the tree reaches its ranks."""


def priced_templates(network: Network, best: Fraction, symmetry: Symmetry) -> PackedTrees | None:
    """Templates that take no longer than ``best`` where all shards are equal; None where none are found.

    Args:
        network: In the broadcasting direction.
        best: Time per shard, in 1 / (GB/s).
    """
    topology, kind = network.topology, symmetry.link_orbit[network.link]
    alike = np.bincount(kind)
    capacity = np.zeros(len(alike), dtype=np.int64)
    capacity[kind] = topology.capacity
    usual = 1 / np.maximum(capacity, 1)
    usual /= usual.max()
    roots = [node for node in symmetry.representatives.tolist() if topology.rank[node] >= 0]
    prices, manners = usual, list(MANNERS)
    grower = TreeGrower(network)
    trees: dict[GrownTree, int] = {}  # and their roots
    carried: list[NDArray[np.int64]] = []  # by all images of a tree together, on links of each kind
    for _ in range(min(MOST_ROUNDS, MOST_WORK // (len(roots) * topology.num_links))):
        known = len(trees)
        while len(trees) == known:
            if not manners:
                return None
            steepness, even = manners[0]
            price = (prices * (1 - even) + usual * even)[kind].tolist()
            for root in roots:
                tree = grower.grow(root, price, steepness)
                if tree is None:
                    return None
                if tree not in trees:
                    trees[tree] = root
                    links = [link for path in tree for link in path]
                    carried.append(symmetry.order * np.bincount(kind[links], minlength=len(alike)))
            if len(trees) == known:
                del manners[0]
        of_root = np.array(list(trees.values()))
        rates = [(np.flatnonzero(of_root == root), topology.denominator / best) for root in roots]
        found = least_overload(np.array(carried), rates, capacity * alike, alike)
        if found is None:
            return None
        weights, prices = found
        if not prices.any():
            return _packed(network, trees, weights, symmetry)
        prices /= prices.max()
    return None


class TreeGrower:
    """Grows single trees where links have prices."""

    def __init__(self, network: Network) -> None:
        topology = network.topology
        usable = topology.capacity > 0
        self.leaving = [
            [(other, link) for other, link in links if usable[link]] for links in neighbours(topology)[1]
        ]
        self.rank: list[int] = topology.rank.tolist()
        self.src: list[int] = topology.src.tolist()
        self.ranks = topology.num_ranks

    def grow(
        self, root: int, price: Sequence[float], steepness: float, tallest: int | None = None
    ) -> GrownTree | None:
        """A tree to which the next rank is always the one with the cheapest way; None where it does not reach all.

        Args:
            root: Its root.
            price: Of each link.
            steepness: How many times as much a way costs one hop further from the root.
            tallest: Hops from the root at most; None is any number.
        """
        depth = {root: 0}
        way: dict[
            int, tuple[float, int, int]
        ] = {}  # to each node: its price, the depth it starts from, its last link
        heap: list[tuple[float, int, int]] = []
        tree: list[tuple[int, ...]] = []

        def offer(node: int, paid: float, start: int) -> None:
            steep = min(steepness**start, _STEEPEST)
            for other, link in self.leaving[node]:
                there = paid + price[link] * steep, start
                if other not in depth and (other not in way or there < way[other][:2]):
                    way[other] = *there, link
                    heapq.heappush(heap, (*there, other))

        offer(root, 0.0, 0)
        while heap and len(depth) < self.ranks:
            paid, start, node = heapq.heappop(heap)
            if node in depth or way[node][:2] != (paid, start):
                continue
            if self.rank[node] < 0:
                offer(node, paid, start)
                continue
            path = [way[node][2]]
            while self.rank[at := self.src[path[-1]]] < 0:
                path.append(way[at][2])
            tree.append(tuple(path[::-1]))
            depth[node] = start + 1
            if tallest is None or start + 1 < tallest:
                offer(node, 0.0, start + 1)
        return tuple(tree) if len(depth) == self.ranks else None


def least_overload(
    carried: NDArray[np.int64],
    rates: Sequence[tuple[NDArray[np.int64], Fraction]],
    capacity: NDArray[np.int64],
    alike: NDArray[np.int64],
) -> tuple[list[Fraction], NDArray[np.float64]] | None:
    """Weights of trees, in capacity units, with least overload; and the price of each kind of link, 0 if all fits.

    Args:
        carried: How often a unit of weight of each tree (rows) loads links of each kind (columns).
        rates: Trees whose weights have a given sum, with that.
        capacity: Of all links of each kind together.
        alike: Links of each kind.
    """
    trees, kinds = carried.shape
    program = LinearProgram([0] * trees + (-alike).tolist(), [None] * (trees + kinds))
    for kind in range(kinds):
        some = np.flatnonzero(carried[:, kind])
        program.add_rows(
            [
                Constraint(
                    column=np.append(some, trees + kind).astype(np.int32),
                    value=np.append(carried[some, kind], -alike[kind]),
                    bound=int(capacity[kind]),
                )
            ]
        )
    for some, rate in rates:
        value = np.full(len(some), rate.denominator, dtype=np.int64)
        program.add_rows(
            [Constraint(column=some.astype(np.int32), value=value, bound=rate.numerator, equal=True)]
        )
    exact = program.exact_vertex() if program.solve() is not None else None
    if exact is None:
        return None
    if not exact.objective:
        return exact.values[:trees], np.zeros(kinds)
    return exact.values[:trees], np.array([float(each) for each in exact.multipliers[:kinds]])


def _spread(tree: GrownTree, root: int, network: Network, symmetry: Symmetry) -> list[tuple[int, ...]]:
    """The same tree with edges that leave one switch shared among all parents as deep, whose links to it are alike.

    Each rank takes the parent that is nearest in the group. From any root that is the same step, so few trees differ.
    """
    src, dst = network.topology.src, network.topology.dst
    kind = symmetry.link_orbit[network.link]
    depth = np.full(network.topology.num_nodes, -1)
    depth[root] = 0
    for path in tree:
        depth[dst[path[-1]]] = depth[src[path[0]]] + 1
    onto: dict[
        tuple[int, int, int], NDArray[np.int64]
    ] = {}  # links of parents to a switch, by kind and depth
    paths = []
    for path in tree:
        parent, child = src[path[0]], dst[path[-1]]
        group = int(dst[path[0]]), int(kind[path[0]]), int(depth[parent])
        if group not in onto:
            onto[group] = np.flatnonzero((dst == group[0]) & (kind == group[1]) & (depth[src] == group[2]))
        links = onto[group]
        if len(path) > 1 and len(links) > 1:
            steps = symmetry.product(
                symmetry.node_element[child], symmetry.inverse(symmetry.node_element[src[links]])
            )
            path = (int(links[np.argmin(steps)]), *path[1:])
        paths.append(path)
    return paths


def _packed(
    network: Network, trees: dict[GrownTree, int], weights: Sequence[Fraction], symmetry: Symmetry
) -> PackedTrees:
    """The trees that have a weight, in whole units."""
    src, dst = network.topology.src, network.topology.dst
    used = [(tree, trees[tree]) for tree, weight in zip(trees, weights, strict=True) if weight]
    scale = Fraction(
        lcm(*(weight.denominator for weight in weights)), gcd(*(weight.numerator for weight in weights))
    )
    paths = [path for tree, root in used for path in _spread(tree, root, network, symmetry)]
    links = np.array([link for path in paths for link in path], dtype=np.int64)
    start = offsets(np.array([len(path) for path in paths]))
    nodes = start + np.arange(len(start))  # every path has one more node than links
    path_nodes = np.empty(nodes[-1], dtype=np.int32)
    path_nodes[nodes[:-1]] = src[links[start[:-1]]]
    path_nodes[np.setdiff1d(np.arange(nodes[-1]), nodes[:-1])] = dst[links]
    return PackedTrees(
        root=np.array([root for _, root in used], dtype=np.int32),
        weight=np.array([int(scale * weight) for weight in weights if weight], dtype=np.int64),
        phase=Phase.BROADCAST,
        start=offsets(np.array([len(tree) for tree, _ in used])),
        edge_src=path_nodes[nodes[:-1]],
        edge_dst=path_nodes[nodes[1:] - 1],
        edge_path=np.arange(len(paths), dtype=np.int32),
        path_start=nodes,
        path_nodes=path_nodes,
        symmetry=symmetry,
    )
