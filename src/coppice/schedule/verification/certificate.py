"""What one cut proves, by counting: nobody has to believe how a bound was found.

Let S be the sending side of a cut and out(S) the capacity of the links that leave it. Everything that ranks
outside need and only ranks inside have must leave through out(S), so a collective cannot take less time per
shard than

* all-gather: the weight of the ranks in S over out(S), if some rank is outside;
* broadcast: 1 / out(S), if the root is in S and some rank is outside;
* reduce-scatter: the weight of the ranks outside S over out(S), if some rank is in S (their sums miss it);
* reduce: 1 / out(S), if the root is outside S and some rank is in S;
* all-reduce: 1 / out(S), if there are ranks on both sides;
* all-to-all: the demands from ranks in S to ranks outside over out(S);
* gather: the ranks in S over out(S), if the root is outside;
* scatter: the ranks outside S over out(S), if the root is in S.

A barrier moves nothing.

Switches may copy or add as they like: this holds all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.schedule.exact_sums import exact_total

__all__ = ["cut_inv_rate"]


def cut_inv_rate(problem: Problem, cut: Sequence[int]) -> Fraction | None:
    """Time per shard that one cut proves to be necessary.

    Args:
        problem: The collective and its topology.
        cut: Node ids of the sending side S.

    Returns:
        The proved time per shard, 1 / (GB/s); 0 if the cut separates nothing; None if nothing can cross it
        although something must (the collective is impossible).

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> pair = Topology.of("pair", [Node(id="a"), Node(id="b")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(25))])
        >>> cut_inv_rate(Problem(topology=pair, collective=Collective.ALL_GATHER), [0])
        Fraction(1, 25)
    """
    topology = problem.topology
    inside = np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[list(cut)] = True
    leaving = inside[topology.src] & ~inside[topology.dst]
    out = Fraction(exact_total(topology.capacity[leaving]), topology.denominator)
    needed = _needed(problem, inside[topology.rank_nodes].tolist())
    if not needed:
        return Fraction(0)
    return needed / out if out else None


def _needed(problem: Problem, inside: list[bool]) -> int:
    """Shards that must leave, given which ranks are in S."""
    if all(inside) or not any(inside):
        return 0
    ranks = len(inside)
    weights = problem.weights or (1,) * ranks
    match problem.collective:
        case Collective.ALL_GATHER:
            return sum(weight for weight, within in zip(weights, inside, strict=True) if within)
        case Collective.REDUCE_SCATTER:
            return sum(weight for weight, within in zip(weights, inside, strict=True) if not within)
        case Collective.BROADCAST:
            return int(problem.root is not None and inside[problem.root])
        case Collective.REDUCE:
            return int(problem.root is not None and not inside[problem.root])
        case Collective.ALL_REDUCE:
            return 1
        case Collective.GATHER:
            return 0 if problem.root is None or inside[problem.root] else sum(inside)
        case Collective.SCATTER:
            return 0 if problem.root is None or not inside[problem.root] else ranks - sum(inside)
        case Collective.BARRIER:
            return 0
        case Collective.ALL_TO_ALL:
            if problem.demands is None:
                return sum(inside) * (ranks - sum(inside))
            return sum(
                size
                for row, within in zip(problem.demands, inside, strict=True)
                if within
                for size, target_within in zip(row, inside, strict=True)
                if not target_within
            )
