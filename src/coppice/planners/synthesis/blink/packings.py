"""Tree packings: multiplicative weights, few integral trees, and the exact optimum; the builder of a forest from them.

A tree is a tuple of numbers of routes. Packed at a rate, it loads every link of its routes by that rate.

The shortest spanning tree from a root in a directed graph is found after Y. J. Chu and T. H. Liu (1965) and J. Edmonds
(1967).
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, ExactVertex, LinearProgram
from coppice.bounds.lp.simplex import solve_in_integers
from coppice.bounds.network import is_small
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import CoppiceError, InputError, UnreachableError
from coppice.planners.synthesis.blink.routes import EdgeRoute, EdgeRoutes
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase

Length = TypeVar("Length", float, Fraction)


def shortest_arborescence(
    num_nodes: int, root: int, edges: Sequence[tuple[int, int]], lengths: Sequence[Length]
) -> list[int]:
    """Edges of a minimum spanning arborescence from ``root``.

    Every node takes its shortest edge in; a circle among these is drawn together into one node, where an edge in
    costs what it adds to the one that it replaces. Ties go to the edge that comes first.

    Args:
        num_nodes: Nodes are 0 .. num_nodes - 1.
        lengths: Length of each edge, 0 or more; whole numbers, floats or fractions.

    Returns:
        Numbers of the edges, ascending.

    Examples:
        >>> shortest_arborescence(3, 0, [(0, 1), (1, 2), (2, 1), (0, 2)], [5, 1, 1, 5])
        [0, 1]
    """
    best: list[int] = [-1] * num_nodes
    for number, (src, dst) in enumerate(edges):
        if dst != root and src != dst and (best[dst] < 0 or lengths[number] < lengths[best[dst]]):
            best[dst] = number
    for node in range(num_nodes):
        if node != root and best[node] < 0:
            raise UnreachableError(
                f"expected a spanning tree from node {root}, found that none of its edges leads to node {node}."
            )
    circle: list[int] = _circle([edges[each][0] if each >= 0 else -1 for each in best], root)
    if not circle:
        return sorted(each for each in best if each >= 0)
    inside = set(circle)
    drawn, names = [0] * num_nodes, 0
    for node in range(num_nodes):
        if node not in inside:
            drawn[node] = names
            names += 1
    for node in circle:
        drawn[node] = names
    outer = [e for e, (src, dst) in enumerate(edges) if drawn[src] != drawn[dst]]
    added = [lengths[e] - lengths[best[edges[e][1]]] if edges[e][1] in inside else lengths[e] for e in outer]
    chosen = shortest_arborescence(
        names + 1, drawn[root], [(drawn[edges[e][0]], drawn[edges[e][1]]) for e in outer], added
    )
    taken: list[int] = [outer[each] for each in chosen]
    entered: int = next(edges[e][1] for e in taken if edges[e][1] in inside)
    return sorted([*taken, *(best[node] for node in circle if node != entered)])


def _circle(parent: list[int], root: int) -> list[int]:
    """Nodes of a circle that ``parent`` leads round, or none."""
    seen = [-1] * len(parent)
    for start in range(len(parent)):
        node = start
        while node != root and seen[node] < 0:
            seen[node] = start
            node = parent[node]
        if node != root and seen[node] == start:
            found = [node]
            while parent[found[-1]] != node:
                found.append(parent[found[-1]])
            return found
    return []


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Packed(Brief):
    """Trees with their rates."""

    routes: EdgeRoutes  # What their edges run over
    root: int  # Their root, a rank
    trees: tuple[tuple[int, ...], ...]  # Numbers of the routes of each
    rates: tuple[Fraction, ...]  # Rate of each in GB/s
    most: Fraction  # No packing of such trees is faster than this rate in GB/s, exactly
    interrupted: bool = False  # Ctrl-C or the deadline ended the search

    @property
    def rate(self) -> Fraction:
        """Sum of the rates in GB/s."""
        return sum(self.rates, Fraction(0))

    def edges(self, tree: int) -> list[EdgeRoute]:
        """Edges of a tree, parents before children."""
        left = [self.routes.routes[each] for each in self.trees[tree]]
        return _from_root(left, self.root)


def _from_root(routes: list[EdgeRoute], root: int) -> list[EdgeRoute]:
    below: dict[int, list[EdgeRoute]] = {}
    for route in routes:
        below.setdefault(route.parent, []).append(route)
    ordered: list[EdgeRoute] = []
    level = [root]
    while level:
        found = [route for rank in level for route in below.get(rank, ())]
        ordered += found
        level = [route.child for route in found]
    return ordered


@dataclass
class TreeLoads:
    """Known trees and their link loads."""

    routes: EdgeRoutes  # What their edges run over
    root: int  # Their root, a rank
    known: dict[tuple[int, ...], int] = field(default_factory=dict)  # Number of each tree
    # Links of each tree, and how often it loads each
    loads: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Number the members, and gather what each route loads."""
        lost = self.routes.unreached(self.root)
        if lost is not None:
            names, nodes = self.routes.topology.node_ids, self.routes.topology.rank_nodes
            raise UnreachableError(
                f"expected links between {names[nodes[self.root]]} and all GPUs, in both directions for an all-reduce, "
                f"found none that lead to {names[nodes[lost]]} on {self.routes.topology.name}: choose ranks that are "
                "connected, or other links (`parameters=links=together`)."
            )
        place = {rank: number for number, rank in enumerate(self.routes.members)}
        self._edges = [(place[route.parent], place[route.child]) for route in self.routes.routes]
        self._root = place[self.root]
        sizes = [len(route.links) for route in self.routes.routes]
        self._start = np.cumsum([0, *sizes[:-1]]) if sizes else np.zeros(0, dtype=np.int64)
        self._links = np.array([e for route in self.routes.routes for e in route.links], dtype=np.int64)

    def shortest(self, lengths: NDArray[np.float64]) -> int:
        """Number of the tree with the least total link length."""
        of_route = np.add.reduceat(lengths[self._links], self._start).tolist() if self._edges else []
        return self.add(shortest_arborescence(len(self.routes.members), self._root, self._edges, of_route))

    def shortest_exactly(self, lengths: list[Fraction]) -> tuple[int, Fraction]:
        """Number and total length of the shortest tree, as fractions."""
        of_route = [sum((lengths[e] for e in route.links), Fraction(0)) for route in self.routes.routes]
        found = shortest_arborescence(len(self.routes.members), self._root, self._edges, of_route)
        return self.add(found), sum((of_route[each] for each in found), Fraction(0))

    def add(self, tree: list[int]) -> int:
        """Add a tree; return its number."""
        key = tuple(tree)
        if key not in self.known:
            counted = Counter(e for each in tree for e in self.routes.routes[each].links)
            links = np.array(sorted(counted), dtype=np.int64)
            self.loads.append((links, np.array([counted[e] for e in links.tolist()], dtype=np.int64)))
            self.known[key] = len(self.known)
        return self.known[key]

    @property
    def trees(self) -> list[tuple[int, ...]]:
        """Trees by number."""
        return list(self.known)

    def rows(self, chosen: list[int], room: list[int]) -> list[Constraint]:
        """Capacity row of each link that the chosen trees load."""
        columns: dict[int, list[tuple[int, int]]] = {}
        for column, tree in enumerate(chosen):
            links, times = self.loads[tree]
            for e, count in zip(links.tolist(), times.tolist(), strict=True):
                columns.setdefault(e, []).append((column, count))
        return [
            Constraint(
                column=np.array([column for column, _ in entries], dtype=np.int32),
                value=np.array([count for _, count in entries], dtype=np.int64),
                bound=room[e],
            )
            for e, entries in sorted(columns.items())
        ]


_CHECKED = 16
"""Trees between two looks at how near the optimum is."""


def weighted_packing(
    routes: EdgeRoutes,  # What tree edges may run over
    root: int,  # Root of the trees, a rank
    *,
    epsilon: float,  # How fast links get longer: less is nearer to the optimum, and slower
    gap: float,  # End when this near to the optimum (a share of it)
    deadline: float | None = None,  # Of :func:`time.monotonic`, when to end
    on_progress: Callable[[str], None] | None = None,  # Called with a few words now and then
) -> Packed:
    """Pack trees by multiplicative weights (N. Garg and J. Koenemann 1998), as Blink does.

    Every link has a length. The shortest tree gets as much as its narrowest link can carry, and its links get longer by
    ``1 + epsilon * (what they carry of it) / capacity``. All rates are scaled at the end to what the links can carry.
    The lengths bound the optimum as well: it is at most their sum, weighted by capacity, over the shortest tree.
    """
    found = TreeLoads(routes, root)
    topology = routes.topology
    room = topology.capacity.astype(np.float64)
    lengths = 1.0 / np.maximum(room, 1.0)
    carried = np.zeros(topology.num_links)
    weights: list[float] = []
    most, reached, interrupted, grown = np.inf, 0.0, False, _growth(len(room), epsilon)
    best = lengths
    try:
        for count in itertools.count():
            tree = found.shortest(lengths)
            if tree == len(weights):
                weights.append(0.0)
            links, times = found.loads[tree]
            if not len(links):
                break
            found_most = float(lengths @ room) / float(lengths[links] @ times)
            if found_most < most:
                most, best = found_most, lengths.copy()
            amount = float((room[links] / times).min())
            weights[tree] += amount
            carried[links] += amount * times
            lengths[links] *= 1.0 + epsilon * amount * times / room[links]
            if count % _CHECKED == 0:
                reached = sum(weights) / float((carried / room).max())
                if reached >= (1.0 - gap) * most or float(lengths @ room) > grown:
                    break
                if deadline is not None and time.monotonic() > deadline:
                    interrupted = True
                    break
            if on_progress is not None and count % 512 == 511:
                on_progress(f"{len(weights)} trees at {reached / most:.1%} of the optimum")
    except KeyboardInterrupt:
        if not weights:
            raise
        interrupted = True
    return Packed(
        routes=routes,
        root=root,
        trees=tuple(found.trees[: len(weights)]),
        rates=_scaled_to_room(found, weights),
        most=_inflated(most) / topology.denominator if interrupted else _most(found, best),
        interrupted=interrupted,
    )


_GRID = 2**30


def _inflated(most: float) -> Fraction:
    """A bound in floats with more room than they can be wrong by: what an interrupted search has time for."""
    return Fraction(most) * (1 + Fraction(1, _GRID))


def _most(found: TreeLoads, lengths: NDArray[np.float64]) -> Fraction:
    """The rate in GB/s that these lengths of links prove to be the most, counted in fractions.

    That of a small network is the optimum itself, by column generation from the trees that were found.
    """
    topology = found.routes.topology
    if is_small(topology):
        return exact_packing(found.routes, found.root).most
    largest = float(lengths.max(initial=0.0)) or 1.0
    whole = [Fraction(max(1, round(length / largest * _GRID))) for length in lengths.tolist()]
    _, shortest = found.shortest_exactly(whole)
    offered = sum(length * c for length, c in zip(whole, topology.capacity.tolist(), strict=True))
    return offered / shortest / topology.denominator if shortest else Fraction(0)


def _growth(links: int, epsilon: float) -> float:
    """Sum of lengths times capacities, 1 for each link at first, where the trees are near the optimum in any case."""
    return float(links * min((1.0 + epsilon) * links, 1e250**epsilon) ** (1.0 / epsilon))


_STEPS = 10**9


def _scaled_to_room(found: TreeLoads, weights: list[float]) -> tuple[Fraction, ...]:
    """Rates in proportion to ``weights`` that fill the fullest link exactly."""
    topology = found.routes.topology
    largest = max(weights, default=0.0)
    whole = [round(weight / largest * _STEPS) if largest else 1 for weight in weights]
    carried = [0] * topology.num_links
    for tree, amount in enumerate(whole):
        links, times = found.loads[tree]
        for e, count in zip(links.tolist(), times.tolist(), strict=True):
            carried[e] += amount * count
    fullest = [Fraction(int(topology.capacity[e]), load) for e, load in enumerate(carried) if load]
    factor = min(fullest, default=Fraction(1)) / topology.denominator
    return tuple(amount * factor for amount in whole)


def exact_packing(routes: EdgeRoutes, root: int) -> Packed:
    """Fastest packing, by column generation, with fractional rates and a proof.

    The linear program over the trees that are known gives prices of links; the shortest tree under these prices is
    added while it is shorter than 1. When none is, the prices prove that no packing is faster.
    """
    found = TreeLoads(routes, root)
    topology = routes.topology
    unit = gcd(*topology.capacity.tolist()) if topology.num_links else 1
    room = (topology.capacity // max(unit, 1)).tolist()
    found.shortest(1.0 / np.maximum(topology.capacity, 1))
    while True:
        vertex = _vertex(found, room)
        prices = [Fraction(0)] * topology.num_links
        chosen = list(range(len(found.trees)))
        loaded = sorted({int(e) for links, _ in found.loads for e in links})
        for e, price in zip(loaded, vertex.multipliers, strict=True):
            prices[e] = price
        before = len(chosen)
        _, length = found.shortest_exactly(prices)
        if length >= 1 or len(found.trees) == before:
            break
    gb = Fraction(unit, topology.denominator)
    kept = [(tree, rate * gb) for tree, rate in zip(found.trees, vertex.values, strict=False) if rate]
    return Packed(
        routes=routes,
        root=root,
        trees=tuple(tree for tree, _ in kept),
        rates=tuple(rate for _, rate in kept),
        most=vertex.objective * gb,
    )


def _vertex(found: TreeLoads, room: list[int]) -> ExactVertex:
    """The optimum over the trees that are known."""
    chosen = list(range(len(found.trees)))
    program = LinearProgram([1] * len(chosen), [None] * len(chosen))
    program.add_rows(found.rows(chosen, room))
    vertex = program.exact_vertex() if program.solve() is not None else None
    vertex = solve_in_integers(program) if vertex is None else vertex
    if vertex is None:
        raise CoppiceError("the packing of trees has no limit: this is an error in the planner.")
    return vertex


@dataclass
class GrowingForest:
    """Collect trees."""

    problem: Problem  # What they carry out
    _roots: list[int] = field(default_factory=list)
    _weights: list[Fraction] = field(default_factory=list)
    _phases: list[Phase] = field(default_factory=list)
    _edges: list[list[tuple[int, ...]]] = field(default_factory=list)

    def add(self, root: int, edges: Sequence[EdgeRoute], weight: Fraction) -> None:
        """Add a tree, in both directions for an all-reduce.

        Args:
            weight: Its share of the data, relative to that of others.
        """
        collective = self.problem.collective
        if collective not in (Collective.BROADCAST, Collective.ALL_GATHER):
            self._add(root, [route.up for route in reversed(edges)], weight, Phase.REDUCE)
        if collective not in (Collective.REDUCE, Collective.REDUCE_SCATTER):
            self._add(root, [route.down for route in edges], weight, Phase.BROADCAST)

    def add_packed(self, packed: Packed, share: Fraction) -> None:
        """Add the trees of a packing, which carry ``share`` of the data together."""
        total = packed.rate
        for tree, rate in enumerate(packed.rates):
            self.add(packed.root, packed.edges(tree), rate / total * share)

    def _add(self, root: int, paths: list[tuple[int, ...]], weight: Fraction, phase: Phase) -> None:
        self._roots.append(int(self.problem.topology.rank_nodes[root]))
        self._weights.append(weight)
        self._phases.append(phase)
        self._edges.append(paths)

    def forest(self) -> Forest:
        """Build the forest, reduce phase first."""
        order = sorted(range(len(self._roots)), key=lambda tree: self._phases[tree] is Phase.BROADCAST)
        scale = lcm(*(weight.denominator for weight in self._weights))
        whole = [int(self._weights[tree] * scale) for tree in order]
        shared = gcd(*whole) or 1
        if sum(whole) // shared >= 2**62:
            raise InputError(
                "the trees need weights below 2^62: choose another packing (`parameters=packing=integer`)."
            )
        index: dict[tuple[int, ...], int] = {}
        edges = [path for tree in order for path in self._edges[tree]]
        places = [index.setdefault(path, len(index)) for path in edges]
        return Forest(
            topology=self.problem.topology,
            collective=self.problem.collective,
            tree_root=np.array([self._roots[tree] for tree in order], dtype=np.int32),
            tree_weight=np.array([value // shared for value in whole], dtype=np.int64),
            tree_phase=np.array([self._phases[tree] for tree in order], dtype=np.int8),
            tree_start=offsets(np.array([len(self._edges[tree]) for tree in order], dtype=np.int64)),
            edge_src=np.array([path[0] for path in edges], dtype=np.int32),
            edge_dst=np.array([path[-1] for path in edges], dtype=np.int32),
            edge_path=np.array(places, dtype=np.int32),
            path_start=offsets(np.array([len(path) for path in index], dtype=np.int64)),
            path_nodes=np.array([node for path in index for node in path], dtype=np.int32),
        )
