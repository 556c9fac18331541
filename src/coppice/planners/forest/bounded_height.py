"""Forests of bounded height: few hops for small messages, at the best rate that can be had with them.

How fast a large message is depends on the links alone, and the trees that fill them all may be deep. A small message
waits for every hop: here each tree has at most a given number of them. Finding the best such trees is hard (a Steiner
tree with a limit of hops is), so they are found by negotiated congestion, as routers of circuits do (McMurchie and
Ebeling, "PathFinder", FPGA 1995) with lengths that grow exponentially with load (Garg and Koenemann, SIAM J. Comput.
37, 2007): a tree takes what is cheapest now, and each is taken out and grown anew while that helps.

A tree grows by the cheapest path to a rank outside it that keeps the limit (Takahashi and Matsuyama, Math. Japonica 24,
1980): layers of Bellman and Ford, one for each hop. Where that leaves a rank out of reach it grows by its farthest
ranks first. Where ranks are alike, one tree of each orbit stands for its images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.network import TRANSPOSED, Network
from coppice.bounds.partition import is_even_both_ways
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.forest.packed import PackedTrees, forest_of, same_weight
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.schedule import hops_of
from coppice.topology.model import Topology
from coppice.topology.symmetry import find_symmetry

_STEEPNESS = 8.0
"""A link that is loaded as much as the bound allows is so many times e longer than an idle one."""
_LONGEST = 60.0
_PASSES = 3
_MOST_PATHS = 4
"""Equally short paths of two ranks that are told apart."""


Costs = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Length of the shortest arc between each two ranks, and which arc it is."""
Tree = NDArray[np.int64]
"""Sender, receiver and arc of each edge, an edge a row."""

_NO_EDGES = np.zeros((0, 3), dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Arcs:
    """Paths over switches between ranks that have one, by pair of ranks."""

    pair: NDArray[np.int64]  # `src * ranks + dst` of each pair, ascending
    first: NDArray[np.int64]  # Arcs of pair p are `first[p] .. first[p + 1] - 1`
    path_start: NDArray[np.int64]
    path_nodes: NDArray[np.int32]
    links: NDArray[np.int64]
    link_start: NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundedTrees:
    """Trees of bounded height, not yet written out."""

    problem: Problem
    phases: list[PackedTrees]
    inv_rate: (
        float  # Time for which the busiest link of each phase is busy, in ns per byte of a shard, summed up
    )

    def forest(self) -> Forest:
        """The trees as a forest."""
        return forest_of(self.problem, same_weight(*self.phases))


def bounded_trees(problem: Problem, *, height: int, trees: int, inv_rate: Fraction) -> BoundedTrees | None:
    """Trees of at most so many hops, whose busiest link is as little loaded as was found.

    Args:
        problem: Equal shares, or a root.
        height: Hops from a root to any rank at most; in an all-reduce in each phase.
        trees: Trees of each root, all of one weight.
        inv_rate: The bound of a phase in ns per byte of a shard, by which loads are measured.

    Returns:
        The trees; None where some rank is farther away than ``height``.

    Examples:
        >>> from coppice.schedule.shape import shape
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("dgx-1v"), collective="all_gather")
        >>> found = bounded_trees(problem, height=2, trees=4, inv_rate=Fraction(7, 150))
        >>> shape(found.forest()).max_height
        2
    """

    def pack(network: Network) -> tuple[PackedTrees, float] | None:
        growth = TreeGrowth(problem, network, height, trees=trees, inv_rate=inv_rate)
        packed = growth.packed()
        return None if packed is None else (packed, growth.least / trees)

    return in_phases(problem, pack)


def in_phases(
    problem: Problem, pack: Callable[[Network], tuple[PackedTrees, float] | None]
) -> BoundedTrees | None:
    """Trees of all phases of a collective; of phases that mirror each other only one is packed.

    Args:
        pack: Packs trees on the network of a phase and says for how long they keep the busiest link busy; None where
            there are none.
    """
    collective = problem.collective
    both = collective is Collective.ALL_REDUCE
    mirrored = both and is_even_both_ways(problem.topology)
    phases: list[PackedTrees] = []
    busy = 0.0
    for reduces in (True, False) if both else (collective in TRANSPOSED,):
        if reduces and mirrored:
            continue
        found = pack(Network.of(problem, reduce=reduces))
        if found is None:
            return None
        packed, spent = found
        busy += spent
        phases.append(packed.reversed() if reduces else packed)
    if mirrored:
        phases, busy = [phases[0].reversed(), *phases], 2 * busy
    return BoundedTrees(problem=problem, phases=phases, inv_rate=busy)


def least_height(problem: Problem) -> int | None:
    """Hops between the ranks that are farthest apart (or farthest from the root), over the ranks between.

    None where they are not connected.

    >>> from coppice.topology.presets import preset
    >>> least_height(Problem(topology=preset("dgx-1v"), collective="all_gather"))
    2
    """
    transposed = problem.collective in TRANSPOSED
    topology = problem.topology.transposed() if transposed else problem.topology
    hops = _hop_counts(_arcs(topology), topology.num_ranks)
    farthest = hops.max() if problem.root is None else hops[problem.root].max()
    return None if np.isinf(farthest) else int(farthest)


class TreeGrowth:
    """Trees of all roots that share the links of a topology, as broadcasts see it.

    Args:
        network: What the trees are grown in.
        height: Hops from a root to any rank at most.
        trees: Trees of each root.
        inv_rate: The bound in ns per byte of a shard, by which loads are measured.
    """

    def __init__(
        self, problem: Problem, network: Network, height: int, *, trees: int, inv_rate: Fraction
    ) -> None:
        self.topology, self.height = network.topology, height
        self.arcs = _arcs(network.topology)
        self.hops = _hop_counts(self.arcs, self.topology.num_ranks)
        self.unit = self.topology.denominator / self.topology.capacity
        self.symmetry = find_symmetry(problem.topology) if problem.root is None else None
        self.orbit: NDArray[np.integer] = np.arange(self.topology.num_links)
        images = np.ones(self.topology.num_links)
        if self.symmetry is None:
            first = [problem.root]
        else:
            self.orbit = self.symmetry.link_orbit[network.link]
            images = self.symmetry.order / self.symmetry.link_orbit_size[network.link]
            first = self.topology.rank[self.symmetry.representatives].tolist()
        self.share = self.unit * images  # load of each link of an orbit where a template uses one of them
        self.roots = [rank for _ in range(trees) for rank in first if rank is not None and rank >= 0]
        self.load = np.zeros(int(self.orbit.max(initial=-1)) + 1)
        self.full = float(inv_rate) * trees
        self.grown = [_NO_EDGES for _ in self.roots]
        self.least = np.inf
        used = np.diff(self.arcs.link_start)
        self.links = np.full((len(used), int(used.max(initial=0))), -1)  # of each arc, padded
        self.links[np.arange(self.links.shape[1]) < used[:, None]] = self.arcs.links

    def packed(self) -> PackedTrees | None:
        """The trees as columns; None where a rank is too far away."""
        if self.height < 1:
            return None
        best = None
        for far_first in (True, False):
            self.grown = [_NO_EDGES for _ in self.roots]
            self.load[:] = 0
            before = np.inf
            for _ in range(_PASSES):
                for number, root in enumerate(self.roots):
                    self._count(self.grown[number], -1)
                    tree = self.tree(root, self.costs(self._lengths()), number if far_first else None)
                    if tree is None:
                        return None
                    self.grown[number] = tree
                    self._count(tree, 1)
                reached = float(self.load.max())
                if reached < self.least * (1 - 1e-9):
                    best, self.least = list(self.grown), reached
                if reached >= before * (1 - 1e-9):
                    break
                before = reached
        return None if best is None else self.columns(self.roots, best)

    def _count(self, tree: Tree, times: int) -> None:
        self.load += times * self.load_of(tree)

    def load_of(self, tree: Tree) -> NDArray[np.float64]:
        """Time for which each orbit of links is busy with the tree and its images."""
        links = self.links[tree[:, 2]].reshape(-1)
        links = links[links >= 0]
        busy = np.bincount(self.orbit[links], weights=self.share[links], minlength=len(self.load))
        return np.asarray(busy, dtype=np.float64)

    def tree(self, root: int, costs: Costs, number: int | None) -> Tree | None:
        """The edges, senders after what they receive; None where some rank does not fit.

        With a number it grows by the farthest ranks first, of equally far ones by other ones in each tree.
        """
        cost, arc_of = costs
        ranks = len(cost)
        if ranks == 1:
            return np.zeros((0, 3), dtype=np.int64)
        turn = -1 if number is None else number % ranks
        src, dst = _core.grow_low_tree(ranks, cost.reshape(-1), self.hops[root], root, self.height, turn)
        return edges_of(src, dst, arc_of) if len(src) else None

    def _lengths(self) -> NDArray[np.float64]:
        """Lengths of links that grow with their load."""
        grown = np.exp(np.minimum(_STEEPNESS * self.load / self.full, _LONGEST))
        return np.asarray(self.unit * grown[self.orbit])

    def costs(self, length: NDArray[np.float64]) -> Costs:
        """Length of the shortest arc between each two ranks, and which arc it is; infinite where there is none."""
        arcs, ranks = self.arcs, self.topology.num_ranks
        of_arc = np.add.reduceat(length[arcs.links], arcs.link_start[:-1])
        least = np.minimum.reduceat(of_arc, arcs.first[:-1])
        count = np.diff(arcs.first)
        holder = np.flatnonzero(of_arc == np.repeat(least, count))
        pair_of = np.repeat(np.arange(len(count)), count)[holder]
        chosen = np.empty(len(count), dtype=np.int64)
        chosen[pair_of[::-1]] = holder[::-1]
        cost, arc = np.full(ranks * ranks, np.inf), np.full(ranks * ranks, -1)
        cost[arcs.pair], arc[arcs.pair] = least, chosen
        return cost.reshape(ranks, ranks), arc.reshape(ranks, ranks)

    def columns(self, roots: Sequence[int], trees: Sequence[Tree]) -> PackedTrees:
        """Trees of equal weight, those that are alike as one of their weight together."""
        weights: dict[tuple[int, bytes], int] = {}
        known: list[Tree] = []
        for root, edges in zip(roots, trees, strict=True):
            key = root, edges.tobytes()
            if key not in weights:
                known.append(edges)
            weights[key] = weights.get(key, 0) + 1
        nodes = self.topology.rank_nodes
        columns = np.concatenate([_NO_EDGES, *known])
        return PackedTrees(
            root=nodes[[root for root, _ in weights]].astype(np.int32),
            weight=np.array(list(weights.values()), dtype=np.int64),
            phase=Phase.BROADCAST,
            start=offsets(np.array([len(edges) for edges in known])),
            edge_src=nodes[columns[:, 0]].astype(np.int32),
            edge_dst=nodes[columns[:, 1]].astype(np.int32),
            edge_path=columns[:, 2].astype(np.int32),
            path_start=self.arcs.path_start,
            path_nodes=self.arcs.path_nodes,
            symmetry=self.symmetry,
        )


def edges_of(src: NDArray[np.int32], dst: NDArray[np.int32], arc_of: NDArray[np.int64]) -> Tree:
    """Edges with the arcs that are cheapest between their ranks."""
    return np.stack([src, dst, arc_of[src, dst]], axis=1)


def _arcs(topology: Topology) -> _Arcs:
    """Shortest paths over nodes that are no ranks, between all ranks that have one."""
    out: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for src, dst in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        out[src].append(dst)
    rank, ranks = topology.rank.tolist(), topology.num_ranks
    found: dict[int, list[tuple[int, ...]]] = {}
    for source in topology.rank_nodes.tolist():
        for path in _shortest_paths(out, rank, source):
            pair = rank[source] * ranks + rank[path[-1]]
            known = found.setdefault(pair, [])
            if len(known) < _MOST_PATHS:
                known.append(path)
    pairs = sorted(found)
    paths = [path for pair in pairs for path in found[pair]]
    start = offsets(np.array([len(path) for path in paths]))
    nodes = np.array([node for path in paths for node in path], dtype=np.int32)
    return _Arcs(
        pair=np.array(pairs, dtype=np.int64),
        first=offsets(np.array([len(found[pair]) for pair in pairs])),
        path_start=start,
        path_nodes=nodes,
        links=hops_of(topology, start, nodes).link,
        link_start=offsets(np.diff(start) - 1),
    )


def _shortest_paths(out: list[list[int]], rank: list[int], source: int) -> Iterator[tuple[int, ...]]:
    """All shortest paths from a rank to others that lead over nodes without ranks, up to a number for each node."""
    paths: dict[int, list[tuple[int, ...]]] = {source: [(source,)]}
    front = [source]
    while front:
        reached: dict[int, list[tuple[int, ...]]] = {}
        for node in front:
            for following in out[node]:
                if following not in paths:
                    known = reached.setdefault(following, [])
                    known += [(*path, following) for path in paths[node]][: _MOST_PATHS - len(known)]
        paths.update(reached)
        for node, each in reached.items():
            if rank[node] >= 0:
                yield from each
        front = [node for node in reached if rank[node] < 0]


def _hop_counts(arcs: _Arcs, ranks: int) -> NDArray[np.float64]:
    """Hops from each rank (rows) to each other over ranks between; infinite where there is no way."""
    beside = np.zeros((ranks, ranks))
    beside[arcs.pair // ranks, arcs.pair % ranks] = 1.0
    reached = np.eye(ranks, dtype=np.bool_)
    hops = np.where(reached, 0.0, np.inf)
    count = 0
    while True:
        count += 1
        further = (reached @ beside > 0) & np.isinf(hops)
        if not further.any():
            return hops
        hops[further] = count
        reached = further
