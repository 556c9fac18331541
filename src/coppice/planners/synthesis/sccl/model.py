"""Model of an SCCL instance: blocks on routes in S steps, reduced by symmetry.

A schedule is *symmetric* if every symmetry of the network maps it to itself, chunks of a rank to chunks of its image.
It is decided by what happens to the blocks of one representative of each orbit, and so has as many times fewer
decisions as the group has elements. Searched for first, symmetric schedules are found much sooner; that there is none
proves nothing, except for fractions of chunks, where the mean over all images of a schedule is symmetric and as good.

Commodities of a collective: blocks with one source and their destinations. Collectives that add are the mirror image of
others: a reduction tree is a broadcast tree on the network with every link turned round, run backwards in time. So
reduce is planned as broadcast, and reduce-scatter as all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.planners.synthesis.sccl.routes import RouteGroup, StepRoutes
from coppice.topology.symmetry import Symmetry, find_symmetry

_DUALS = {Collective.REDUCE: Collective.BROADCAST, Collective.REDUCE_SCATTER: Collective.ALL_GATHER}


@dataclass(frozen=True)
class Commodity:
    """A slot that has to move."""

    slot: int  # Which one
    source: int  # Rank that has it
    targets: frozenset[int]  # Ranks that want it, without the source
    weight: int  # Relative size; it is cut into so many chunks for each chunk of a block of weight 1


def dual(problem: Problem) -> Problem | None:
    """Problem whose time-reversed schedules perform a reducing one; None for a problem that does not reduce.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> dual(Problem(preset("ring", gpus=4), Collective.REDUCE, root=1))
        Problem(broadcast from rank 1, Topology('ring of 4', 4 ranks, 4 nodes, 8 links))
    """
    turned = _DUALS.get(problem.collective)
    if turned is None:
        return None
    return replace(problem, topology=problem.topology.transposed(), collective=turned)


def blocks_of(problem: Problem) -> tuple[Commodity, ...]:
    """Blocks of a non-reducing collective; empty and stationary ones are omitted.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> [sorted(block.targets) for block in blocks_of(Problem(preset("ring", gpus=3), Collective.SCATTER, root=0))]
        [[1], [2]]
    """
    ranks = problem.topology.num_ranks
    everybody = frozenset(range(ranks))
    root = -1 if problem.root is None else problem.root
    weights = problem.weights or (1,) * ranks
    match problem.collective:
        case Collective.ALL_GATHER:
            blocks = [Commodity(u, u, everybody - {u}, weights[u]) for u in range(ranks)]
        case Collective.BROADCAST:
            blocks = [Commodity(0, root, everybody - {root}, 1)]
        case Collective.GATHER:
            blocks = [Commodity(u, u, frozenset({root}), 1) for u in range(ranks) if u != root]
        case Collective.SCATTER:
            blocks = [Commodity(u, root, frozenset({u}), 1) for u in range(ranks) if u != root]
        case _:
            sizes = problem.demands or ((1,) * ranks,) * ranks
            pairs = [(u, v) for u in range(ranks) for v in range(ranks) if u != v]
            blocks = [Commodity(u * ranks + v, u, frozenset({v}), sizes[u][v]) for u, v in pairs]
    moving = [block for block in blocks if block.weight and block.targets]
    return tuple(moving)


def unweighted(problem: Problem) -> bool:
    """Whether all blocks are equal, so that topology symmetries are problem symmetries."""
    if problem.demands is not None:
        sizes = {size for i, row in enumerate(problem.demands) for j, size in enumerate(row) if i != j}
        return len(sizes) == 1
    return problem.weights is None or len(set(problem.weights)) == 1


def slot_weights(problem: Problem) -> np.ndarray:
    """Relative size of every slot (int64)."""
    ranks = problem.topology.num_ranks
    if problem.demands is not None:
        return np.array([size for row in problem.demands for size in row], dtype=np.int64)
    if problem.weights is not None:
        return np.array(problem.weights, dtype=np.int64)
    match problem.collective:
        case Collective.BROADCAST | Collective.REDUCE:
            return np.ones(1, dtype=np.int64)
        case Collective.ALL_TO_ALL:
            return np.ones(ranks * ranks, dtype=np.int64)
        case _:
            return np.ones(ranks, dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SymmetryImages(Brief):
    """A symmetry group as permutations, the identity first."""

    route: list[list[int]]  # `route[e][i]` is the image of route i under element e
    slot: list[list[int]]  # `slot[e][s]` is the image of slot s

    @property
    def order(self) -> int:
        """Number of elements."""
        return len(self.route)


@dataclass(frozen=True)
class SendWindow:
    """Steps ``first .. last`` (from 1) in which a block may use a route."""

    route: int
    first: int
    last: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class StepModel(Brief):
    """A non-reducing problem with its routes."""

    problem: Problem  # What is asked
    routes: StepRoutes  # StepRoutes and groups
    blocks: tuple[Commodity, ...]  # What has to move
    images: SymmetryImages  # The symmetries; the identity alone where none is known
    trivial: SymmetryImages  # The identity alone

    @cached_property
    def distances(self) -> NDArray[np.int64]:
        """Steps from rank to rank."""
        return self.routes.distances()

    @cached_property
    def fewest_steps(self) -> int:
        """Lower bound on the steps: the largest distance of any block."""
        return max((int(self.distances[b.source, v]) for b in self.blocks for v in b.targets), default=0)

    @cached_property
    def into(self) -> list[list[int]]:
        """Routes to each rank."""
        found: list[list[int]] = [[] for _ in range(self.problem.topology.num_ranks)]
        for route, rank in enumerate(self.routes.dst):
            found[rank].append(route)
        return found

    def span(self, block: Commodity, steps: int) -> list[tuple[int, int]]:
        """For each rank the earliest step after which it can have a block, and the latest useful one.

        A rank with ``earliest > latest`` never needs it.
        """
        targets = sorted(block.targets)
        found = []
        for rank in range(self.problem.topology.num_ranks):
            earliest = int(self.distances[block.source, rank])
            onward = self.distances[rank, targets]
            onward = onward[onward >= 0]
            rest = int(onward.min()) if len(onward) else steps + 1
            found.append((earliest if earliest >= 0 else steps + 1, steps - rest))
        return found

    def windows(self, block: Commodity, steps: int) -> list[SendWindow]:
        """The steps at which each route can be of use to a block."""
        span = self.span(block, steps)
        found = []
        for route, (src, dst) in enumerate(zip(self.routes.src, self.routes.dst, strict=True)):
            if dst != block.source:
                first, last = span[src][0] + 1, span[dst][1]
                if first <= last:
                    found.append(SendWindow(route, first, last))
        return found

    def representatives(self, images: SymmetryImages) -> list[Commodity]:
        """The first block of each orbit."""
        return [
            block for block in self.blocks if all(slots[block.slot] >= block.slot for slots in images.slot)
        ]

    def groups(self, images: SymmetryImages) -> list[tuple[RouteGroup, list[list[int]]]]:
        """The first group of each orbit, with what loads it.

        Beside each group stand, for every element e, the routes whose images under e are in the group: what a
        representative sends on one of these, its image under e sends through the group.
        """
        seen: set[tuple[int, ...]] = set()
        found = []
        inverse = [np.argsort(np.array(routes, dtype=np.int64)).tolist() for routes in images.route]
        for group in self.routes.groups:
            if group.routes in seen:
                continue
            for routes in images.route:
                seen.add(tuple(sorted(routes[i] for i in group.routes)))
            found.append((group, [[back[i] for i in group.routes] for back in inverse]))
        return found


def model_of(problem: Problem, routes: StepRoutes) -> StepModel:
    """The model of a problem that adds nothing on routes of its topology."""
    blocks = blocks_of(problem)
    trivial = _images(problem, routes, None)
    images = trivial
    if not problem.collective.rooted and unweighted(problem):
        symmetry = find_symmetry(problem.topology)
        if symmetry.order > 1:
            images = _images(problem, routes, symmetry)
    return StepModel(problem=problem, routes=routes, blocks=blocks, images=images, trivial=trivial)


def _images(problem: Problem, routes: StepRoutes, symmetry: Symmetry | None) -> SymmetryImages:
    topology = problem.topology
    ranks = topology.num_ranks
    place = {path: i for i, path in enumerate(routes.path)}
    slots = 1 + max((block.slot for block in blocks_of(problem)), default=0)
    route, slot = [], []
    for element in range(1 if symmetry is None else symmetry.order):
        nodes = np.arange(topology.num_nodes, dtype=np.int32)
        if symmetry is not None:
            nodes = symmetry.image(nodes, element)
        to = topology.rank[nodes[topology.rank_nodes]].tolist()
        route.append([place[tuple(nodes[list(path)].tolist())] for path in routes.path])
        if slots > ranks:
            slot.append([to[s // ranks] * ranks + to[s % ranks] for s in range(ranks * ranks)])
        elif problem.collective.rooted:
            slot.append(list(range(slots)))
        else:
            slot.append(to)
    return SymmetryImages(route=route, slot=slot)
