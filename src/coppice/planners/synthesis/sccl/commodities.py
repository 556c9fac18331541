"""Commodities of a collective: blocks with one source and their destinations.

Collectives that add are the mirror image of others: a reduction tree is a broadcast tree on the network with every link
turned round, run backwards in time. So reduce is planned as broadcast, and reduce-scatter as all-gather.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective

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
