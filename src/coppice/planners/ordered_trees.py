"""Reductions whose sums are all in one order: for each block a tree of transfers that follows a tree of additions.

Theory. Let one tree of additions be given, whose leaves are the ranks: each inner node adds the sums of its two parts.
A block can be summed in that order at any rank r by n - 1 transfers, each of the block's size, which is as little as
any reduction sends. On the way from the leaf of r to the root, r holds the sum of one part of each node and gets that
of the other one from a rank in that part, to which it was summed in the same way. Every rank but r sends exactly once,
so all ranks send alike if each sums one block; who stands for a part is free. A rank that is near is taken, and of
these the one that sends and gets least over ways as long as these so far: where the parts have 2^k ranks this comes to
recursive halving (Thakur, Rabenseifner, Gropp, IJHPCA 2005), and for other numbers of ranks none has to stand for two.

The same transfers backwards, last one first, spread the blocks: a reduce-scatter and this gather are an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.choice import PlannerOutput
from coppice.schedule.loads import body_loads
from coppice.schedule.schedule import Op, Schedule, routed
from coppice.schedule.verification.sums import PAIRS, Addends, named_order
from coppice.topology.model import NodeKind, Topology

NAME = "ordered-trees"

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
    made = [_made(problem, parts, relay_gpus=relay_gpus) for parts in (1, 2)]
    return min(made, key=lambda each: body_loads(each.body, problem).inv_rate)


def _made(problem: Problem, parts: int, *, relay_gpus: bool) -> PlannerOutput:
    """The transfers where each block is cut into parts, for which different ranks may stand."""
    case = AlgorithmCase(
        topology=problem.topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
    )
    rooted = problem.collective is Collective.REDUCE
    owners = [case.root] if rooted else list(range(case.size))
    taken = _Trees(problem.topology).transfers([owner for owner in owners for _ in range(parts)])
    rows = np.array(list(taken), dtype=np.int64).reshape(-1, 4)
    step, src, dst, chunk = rows.T
    moves = Moves(case, whole(case, parts) if rooted else blocks(case, parts))
    moves.add(step, src, dst, chunk, Op.REDUCE)
    if problem.collective is Collective.ALL_REDUCE and len(rows):
        last = int(step.max())
        moves.add(2 * last + 1 - step, dst, src, chunk)
    body: Schedule = routed(moves.schedule(ordered=True), relay_gpus=relay_gpus)
    return PlannerOutput(body=body, parameters={"sums": PAIRS, "parts": parts, "relay_gpus": relay_gpus})


class _Trees:
    """Trees of transfers, which spread what ranks get evenly."""

    def __init__(self, topology: Topology) -> None:
        self.order = named_order(PAIRS, topology.num_ranks)
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

    def _summed(self, node: Addends, at: int, block: int) -> Iterator[tuple[int, int, int, int]]:
        """Sum up a node at a rank of it."""
        if isinstance(node, int):
            return
        own, other = node if at in _ranks(node[0]) else node[::-1]
        sender = self._chosen(_ranks(other), at)
        yield from self._summed(own, at, block)
        yield from self._summed(other, sender, block)
        yield _height(node) - 1, sender, at, block

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


def _ranks(node: Addends) -> range:
    """The ranks of a node, which are neighbours."""
    first = last = node
    while not isinstance(first, int):
        first = first[0]
    while not isinstance(last, int):
        last = last[1]
    return range(first, last + 1)


def _height(node: Addends) -> int:
    return 0 if isinstance(node, int) else 1 + max(_height(part) for part in node)


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
