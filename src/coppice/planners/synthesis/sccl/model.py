"""Model of an SCCL instance: blocks on routes in S steps, reduced by symmetry.

A schedule is *symmetric* if every symmetry of the network maps it to itself, chunks of a rank to chunks of its image.
It is decided by what happens to the blocks of one representative of each orbit, and so has as many times fewer
decisions as the group has elements. Searched for first, symmetric schedules are found much sooner; that there is none
proves nothing, except for fractions of chunks, where the mean over all images of a schedule is symmetric and as good.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.display import Brief
from coppice.planners.synthesis.sccl.commodities import Commodity, blocks_of, unweighted
from coppice.planners.synthesis.sccl.routes import RouteGroup, StepRoutes
from coppice.topology.symmetry import Symmetry, find_symmetry


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
