"""Low trees of a network with faults, from the symmetry that these leave.

A fault makes a few parts of a network unlike all others, but what is alike still is: of a thousand GPUs one is without
its NIC, seven are its neighbours in the box, and the others are of two kinds. So one tree of a root of each kind stands
for all its images under the group that is left (:func:`coppice.topology.symmetry.remaining_symmetry`), and a linear
program over kinds of links, which are a few dozen, finds weights at which least is overloaded; its prices say where the
next trees should go (:mod:`coppice.planners.forest.priced_templates`). Averages over the group lose nothing, so nothing
is lost by asking for images. A root that the group leaves where it is gets all images of its tree; they share its rate.

An all-reduce on links that run at one rate both ways needs only its broadcast trees: turned round they reduce, so a
tree loads each link in both directions, and roots share the data as suits the links.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.network import Network
from coppice.bounds.partition import is_even_both_ways
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.forest.packed import WRITTEN_OUT, PackedTrees, forest_of
from coppice.planners.forest.priced_templates import GrownTree, TreeGrower, least_overload
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase
from coppice.topology.symmetry import Symmetry, remaining_symmetry

MOST_ROUNDS = 24
"""Linear programs after which no trees are looked for any more."""

MOST_WORK = 1_500_000
"""Links of the network, once for every tree, up to which trees are grown."""

MOST_COLUMNS = 600
"""Trees that the linear program chooses from at most."""

_SPARE = 1e-3

MANNERS = ((8.0, 0.5), (2.0, 0.5), (8.0, _SPARE), (2.0, _SPARE), (1.0, _SPARE))
"""How trees are grown: by how much a way costs more one hop further from the root, and the share of usual prices."""

_LARGEST = 2**61


def orbit_trees(problem: Problem, best: Fraction, *, tallest: int | None = None) -> Forest | None:
    """Trees that take ``best``, written out; None where none are found, or the problem is none of equal shares.

    Args:
        problem: A collective without a root or weights; of an all-reduce, on links that run at one rate both ways.
        best: Time per shard, in 1 / (GB/s), that trees can reach.
        tallest: Hops that a tree may have at most; None is any number.
    """
    topology = problem.topology
    both = problem.collective is Collective.ALL_REDUCE
    if problem.root is not None or problem.weights is not None or not best:
        return None
    if both and not is_even_both_ways(topology):
        return None
    symmetry = remaining_symmetry(topology)
    network = Network.of(problem, reduce=False) if both else Network.of(problem)
    kind = symmetry.link_orbit[network.link]
    if both:
        kind = _kinds_both_ways(network, kind)
    found = _weighed(network, kind, topology.denominator / best, symmetry, tallest, both=both)
    if found is None:
        return None
    edges = sum(len(tree) for tree, _, _ in found) * symmetry.order * len(problem.phases)
    if edges > WRITTEN_OUT:
        return None
    packed = _written_out(network, found, symmetry)
    if packed is None:
        return None
    if both:
        return forest_of(problem, [packed.reversed(), packed])
    return forest_of(problem, [packed.reversed() if problem.collective.reduces else packed])


def _kinds_both_ways(network: Network, kind: NDArray[np.int32]) -> NDArray[np.int32]:
    """Kinds of links at which those of one cable are of one kind."""
    topology = network.topology
    nodes = topology.num_nodes
    key = topology.src.astype(np.int64) * nodes + topology.dst
    order = np.argsort(key)
    back = order[np.searchsorted(key[order], topology.dst.astype(np.int64) * nodes + topology.src)]
    first = np.minimum(kind, kind[back])
    return np.unique(first, return_inverse=True)[1].astype(np.int32)


def _weighed(
    network: Network,
    kind: NDArray[np.int32],
    rate: Fraction,
    symmetry: Symmetry,
    tallest: int | None,
    *,
    both: bool,
) -> list[tuple[GrownTree, int, Fraction]] | None:
    """Trees, their roots and the weight of each of their images in capacity units; None where they do not fit.

    Args:
        rate: Of each root; of a forest in both directions, of all roots together.
    """
    topology, order = network.topology, symmetry.order
    alike = np.bincount(kind)
    capacity = np.zeros(len(alike), dtype=np.int64)
    capacity[kind] = topology.capacity
    usual = 1 / np.maximum(capacity, 1)
    usual /= usual.max()
    roots = [node for node in symmetry.representatives.tolist() if topology.rank[node] >= 0]
    size = np.bincount(symmetry.node_orbit)[symmetry.node_orbit[roots]].tolist()
    grower = TreeGrower(network)
    trees: dict[GrownTree, int] = {}
    carried: list[NDArray[np.int64]] = []
    prices = usual
    rounds = MOST_WORK // (len(roots) * len(MANNERS) * topology.num_links)
    for number in range(min(MOST_ROUNDS, rounds)):
        known = len(trees)
        for steepness, even in MANNERS if number else MANNERS[:2]:
            price = (prices * (1 - even) + usual * even)[kind].tolist()
            for root in roots:
                tree = grower.grow(root, price, steepness, tallest)
                if tree is None or tree in trees:
                    continue
                trees[tree] = root
                links = [link for path in tree for link in path]
                carried.append((1 + both) * order * np.bincount(kind[links], minlength=len(alike)))
        of_root = np.array(list(trees.values()))
        if len(trees) == known or len(trees) > MOST_COLUMNS or set(roots) - set(trees.values()):
            return None
        rates = [
            (np.flatnonzero(of_root == root), rate * n / order) for root, n in zip(roots, size, strict=True)
        ]
        if both:
            rates = [(np.arange(len(trees)), rate / order)]
        found = least_overload(np.array(carried), rates, capacity * alike, alike)
        if found is None:
            return None
        weights, prices = found
        if not prices.any():
            every = zip(trees.items(), weights, strict=True)
            return [(tree, root, weight) for (tree, root), weight in every if weight]
        prices /= prices.max()
    return None


def _written_out(
    network: Network, trees: list[tuple[GrownTree, int, Fraction]], symmetry: Symmetry
) -> PackedTrees | None:
    """All images of trees, with weights in whole units; None where these are too large."""
    order = symmetry.order
    src, dst = network.topology.src, network.topology.dst
    scale = Fraction(
        lcm(*(weight.denominator for _, _, weight in trees)),
        gcd(*(weight.numerator for _, _, weight in trees)),
    )
    weights = [int(scale * weight) for _, _, weight in trees]
    if sum(weights) * order * network.topology.num_nodes >= _LARGEST:
        return None
    elements = np.arange(order)
    product = symmetry.product(elements[:, None], elements[None, :]).astype(np.int32)
    image = symmetry.table[symmetry.node_orbit[None, :], product[:, symmetry.node_element]]
    # Paths are images of each other if they are one path once their first nodes are brought to a representative.
    back = symmetry.inverse(symmetry.node_element)
    paths: dict[tuple[int, ...], int] = {}
    ends: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]] = []
    for tree, _, _ in trees:
        number = []
        for path in tree:
            nodes = [src[path[0]], *dst[list(path)]]
            first = tuple(image[back[nodes[0]], nodes].tolist())
            number.append(paths.setdefault(first, len(paths)))
        first_links, last_links = [path[0] for path in tree], [path[-1] for path in tree]
        ends.append((src[first_links], dst[last_links], np.array(number, dtype=np.int32)))
    lengths = np.array([len(path) for path in paths])
    every = np.array([node for path in paths for node in path])
    return PackedTrees(
        root=np.concatenate([image[:, root] for _, root, _ in trees]),
        weight=np.repeat(np.array(weights, dtype=np.int64), order),
        phase=Phase.BROADCAST,
        start=offsets(np.repeat([len(tree) for tree, _, _ in trees], order)),
        edge_src=np.concatenate([image[:, above].reshape(-1) for above, _, _ in ends]),
        edge_dst=np.concatenate([image[:, below].reshape(-1) for _, below, _ in ends]),
        edge_path=np.concatenate(
            [
                (product[:, symmetry.node_element[above]] * np.int32(len(paths)) + number).reshape(-1)
                for above, _, number in ends
            ]
        ),
        path_start=offsets(np.tile(lengths, order)),
        path_nodes=image[:, every].reshape(-1),
    )
