"""Reductions whose sums are all in one order: for each block a tree of transfers that follows a tree of additions.

Theory. Let one tree of additions be given, whose leaves are the ranks: each inner node adds the sums of its two parts.
A block can be summed in that order at any rank r by n - 1 transfers, each of the block's size, which is as little as
any reduction sends. On the way from the leaf of r to the root, r holds the sum of one part of each node and gets that
of the other one from a rank in that part, to which it was summed in the same way. Every rank but r sends exactly once,
so all ranks send alike if each sums one block; who stands for a part is free. A rank that is near is taken, and of
these the one that sends and gets least over ways as long as these so far: where the parts have 2^k ranks this comes to
recursive halving (Thakur, Rabenseifner, Gropp, IJHPCA 2005), and for other numbers of ranks none has to stand for two.
Where links are few, near ranks have the same ones: on up to 64 ranks :mod:`coppice.planners.spread_trees` chooses ranks
and ways by how busy links are, and what is better is taken.

The same transfers backwards, last one first, spread the blocks: a reduce-scatter and this gather are an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.choice import PlannerOutput
from coppice.planners.spread_trees import MOST_NODES, OrderedTransfer, SumNode, spread
from coppice.schedule.loads import body_loads
from coppice.schedule.schedule import Op, Schedule, routed
from coppice.schedule.verification.sums import PAIRS, named_order
from coppice.topology.model import NodeKind, Topology

NAME = "ordered-trees"

MOST_SPREAD = 64
"""Trees of more ranks are not spread over all links by prices."""

SPREAD_PARTS = 4
"""Parts of a block that go different ways where trees are spread."""

MOST_RANKS = 256
"""Every rank sends to sum each block: more transfers than so many ranks make are not worth their number."""

SERVED = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)


def plan_ordered(problem: Problem, *, relay_gpus: bool = False) -> PlannerOutput:
    """Reduce in the order of pairs of ranks, whatever their number is.

    Args:
        problem: A collective that reduces, of equal blocks.
        relay_gpus: Where no path of switches and NICs exists, other GPUs may forward.

    Raises:
        InputError: If the collective is another one, or blocks differ.
        UnreachableError: If a transfer has no route.

    Examples:
        Six ranks add ((0 + 1) + (2 + 3)) + (4 + 5), and each sends both halves of five blocks of six:

        >>> from coppice.schedule.verification.sums import sum_order
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(topology=preset("star", gpus=6), collective=Collective.REDUCE_SCATTER)
        >>> body = plan_ordered(problem).body
        >>> sum_order(body).order, np.bincount(body.src).tolist()
        ('(((0+1)+(2+3))+(4+5))', [10, 10, 10, 10, 10, 10])
    """
    if problem.collective not in SERVED or problem.weights is not None:
        raise InputError(
            f"{NAME} sums equal blocks, found {problem.collective}: plan a collective that reduces, without `weights`."
        )
    if problem.topology.num_ranks > MOST_RANKS:
        raise InputError(
            f"{NAME} serves up to {MOST_RANKS} ranks, found {problem.topology.num_ranks}: choose another algorithm."
        )
    found = [*_near(problem, relay_gpus=relay_gpus), *_spread(problem, relay_gpus=relay_gpus)]
    if not found:
        found = [
            _made(problem, _Trees(problem.topology), 1, relay_gpus=relay_gpus)
        ]  # raises for want of a route
    return min(found, key=lambda each: body_loads(each.body, problem).inv_rate)


def _near(problem: Problem, *, relay_gpus: bool) -> Iterator[PlannerOutput]:
    """Ranks that are near stand for parts."""
    for parts in (1, 2):
        with suppress(UnreachableError):
            yield _made(problem, _Trees(problem.topology), parts, relay_gpus=relay_gpus)


def _spread(problem: Problem, *, relay_gpus: bool) -> Iterator[PlannerOutput]:
    """Trees that use all links, and ways through other GPUs where they may be used."""
    topology = problem.topology
    if topology.num_ranks > MOST_SPREAD or topology.num_nodes > MOST_NODES:
        return
    trees = spread(
        topology,
        named_order(PAIRS, topology.num_ranks),
        _owners(problem, SPREAD_PARTS),
        backwards=problem.collective is Collective.ALL_REDUCE,
        relay_gpus=relay_gpus,
    )
    if trees is not None:
        yield _made(problem, trees, SPREAD_PARTS, relay_gpus=relay_gpus)


def _owners(problem: Problem, parts: int) -> list[int]:
    """Rank that sums each part of each block."""
    rooted = problem.collective is Collective.REDUCE
    owners = [problem.root or 0] if rooted else range(problem.topology.num_ranks)
    return [owner for owner in owners for _ in range(parts)]


def _made(
    problem: Problem, trees: _Trees | list[list[OrderedTransfer]], parts: int, *, relay_gpus: bool
) -> PlannerOutput:
    """The transfers where each block is cut into parts, for which different ranks may stand."""
    case = AlgorithmCase(
        topology=problem.topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
    )
    rooted = problem.collective is Collective.REDUCE
    if isinstance(trees, _Trees):
        taken = list(trees.transfers(_owners(problem, parts)))
        ways: list[tuple[int, ...]] = []
    else:
        taken = [(each.step, each.src, each.dst, block) for block, tree in enumerate(trees) for each in tree]
        ways = [each.way for tree in trees for each in tree]
    rows = np.array(taken, dtype=np.int64).reshape(-1, 4)
    step, src, dst, chunk = rows.T
    moves = Moves(case, whole(case, parts) if rooted else blocks(case, parts))
    moves.add(step, src, dst, chunk, Op.REDUCE)
    if problem.collective is Collective.ALL_REDUCE and len(rows):
        last = int(step.max())
        moves.add(2 * last + 1 - step, dst, src, chunk)
        ways += [way[::-1] for way in ways]
    body: Schedule = moves.schedule(ordered=True)
    if ways:
        by_step = np.argsort(
            np.concatenate([step, 2 * int(step.max()) + 1 - step])[: len(ways)], kind="stable"
        )
        body = _along(body, [ways[row] for row in by_step])
    body = routed(body, relay_gpus=relay_gpus)
    return PlannerOutput(body=body, parameters={"sums": PAIRS, "parts": parts, "relay_gpus": relay_gpus})


def _along(body: Schedule, ways: list[tuple[int, ...]]) -> Schedule:
    """The schedule whose transfers take these ways."""
    number: dict[tuple[int, ...], int] = {}
    path = np.array([number.setdefault(way, len(number)) for way in ways], dtype=np.int32)
    return replace(
        body,
        path=path,
        path_start=np.concatenate([[0], np.cumsum([len(way) for way in number])]).astype(np.int64),
        path_nodes=np.array([node for way in number for node in way], dtype=np.int32),
    )


class _Trees:
    """Trees of transfers, which spread what ranks get evenly."""

    def __init__(self, topology: Topology) -> None:
        self.order = SumNode.of(named_order(PAIRS, topology.num_ranks))
        self.hops = _hops(topology)
        self.near: dict[
            tuple[range, int], tuple[list[int], int]
        ] = {}  # ranks of a part near one, and how near
        self.load: dict[
            tuple[int, int], int
        ] = {}  # transfers that a rank sends or gets, by length of their ways

    def transfers(self, owners: list[int]) -> Iterator[tuple[int, int, int, int]]:
        """Step, sender, receiver and block of each transfer."""
        for block, owner in enumerate(owners):
            yield from self._summed(self.order, owner, block)

    def _summed(self, node: SumNode, at: int, block: int) -> Iterator[tuple[int, int, int, int]]:
        """Sum up a node at a rank of it."""
        if not node.parts:
            return
        own, other = node.parts if at in node.parts[0].ranks else node.parts[::-1]
        sender = self._chosen(other.ranks, at)
        yield from self._summed(own, at, block)
        yield from self._summed(other, sender, block)
        yield node.height - 1, sender, at, block

    def _chosen(self, ranks: range, at: int) -> int:
        """Who stands for a part: near, and with the least to do over ways as long as these."""
        if (ranks, at) not in self.near:
            hops = self.hops[ranks.start : ranks.stop, at]
            self.near[ranks, at] = (
                (np.flatnonzero(hops == hops.min()) + ranks.start).tolist(),
                int(hops.min()),
            )
        near, length = self.near[ranks, at]
        taken = min(near, key=lambda rank: (self.load.get((rank, length), 0), (rank - at) % len(ranks)))
        for rank in (taken, at):
            self.load[rank, length] = self.load.get((rank, length), 0) + 1
        return taken


def _hops(topology: Topology) -> NDArray[np.int64]:
    """Links of the shortest way from each rank to each without other GPUs; the number of nodes where there is none."""
    nodes, gpus = topology.rank_nodes, topology.kind == NodeKind.GPU
    found = np.full((topology.num_ranks, topology.num_nodes), topology.num_nodes, dtype=np.int64)
    seen = np.zeros((topology.num_nodes, topology.num_ranks), dtype=np.bool_)
    seen[nodes, np.arange(topology.num_ranks)] = True
    front = seen.copy()
    by_end = np.argsort(topology.dst, kind="stable")
    ends, starts = np.unique(topology.dst[by_end], return_index=True)
    length = 0
    while front.any():
        found.T[front] = length
        if length:
            front[gpus] = False
        reached = np.zeros_like(front)
        reached[ends] = np.logical_or.reduceat(front[topology.src[by_end]], starts, axis=0)
        front = reached & ~seen
        seen |= front
        length += 1
    return found[:, nodes]
