"""All-reduce by a reduce-scatter and an all-gather of radix k among a power of k leaders.

With k^L the largest power of k up to P, neighbouring positions form k^L runs (:mod:`.folding`); where P is no power
of k, members of a run first send their buffers to its last one, which stands for them, and get the result from it in
the end. In phase i, the k leaders whose run numbers differ in the digit of place i cut what they have left into k
parts, keep one each, and send the others to those who keep them (:mod:`.exchange`); the phases backwards gather the
parts.

Steps 2 L for P = k^L; otherwise the leaders of a group begin at different times and take turns: 2 (k - 1) L + 2. With
e = min(k - 1, P - k^L) and r = (k^L - 1)/k^L, time ``2 ((k - 1) L + e) alpha + 2 (r + e) M beta + (r + e) M gamma``;
bytes per rank up to (2 r + e) M.

Neighbouring intervals are added, so rank order is kept, except where P is no power of k and k > 2. With k = 2 this is
Rabenseifner's algorithm with MPICH's folding.

MPICH (k_reduce_scatter_allgather).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.exchange import Exchange
from coppice.planners.algorithms.parts.folding import folding
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.radix import radix_parameter
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def all_reduce(case: Case) -> Schedule:
    """Fold, scatter sums, gather them, unfold."""
    fold = folding(case.size, case.number("radix"))
    moves = Moves(case, whole(case, fold.core))
    folded, leader = (positions[::-1, None] for positions in fold.folded)
    chunks = np.arange(fold.core)
    first = int(len(folded) > 0)
    exchange = Exchange(fold.leader, fold.radix, fold.depth, in_rounds=len(folded) > 0)
    moves.add(0, folded, leader, chunks, Op.REDUCE)
    exchange.scatter(moves, first)
    exchange.gather(moves, first + exchange.steps)
    moves.add(first + 2 * exchange.steps, leader, folded, chunks)
    return moves.schedule(ordered=exchange.ordered)


def _cost(case: Case) -> Cost:
    fold = folding(case.size, case.number("radix"))
    folded = min(fold.radix - 1, case.size - fold.core)
    messages = (fold.radix - 1) * fold.depth
    part = Fraction(fold.core - 1, fold.core)
    chain = Chain(messages=2 * (messages + folded), sent=2 * (part + folded), reduced=part + folded)
    return Cost(
        steps=2 * messages + 2 if folded else 2 * fold.depth,
        sent=2 * part + folded,
        chains=(chain,) if messages else (),
    )


ALGORITHMS = (
    Algorithm(
        name="k-reduce-scatter-allgather",
        collective=Collective.ALL_REDUCE,
        build=all_reduce,
        summary="reduce-scatter and all-gather in groups of k, near groups first",
        source="MPICH",
        cost=_cost,
        parameters=radix_parameter(4),
    ),
)
