"""All-reduce by exchanges in groups of k ranks: whole buffers, parts, or all ranks at once.

**Recursive doubling and multiplying:** groups of k ranks exchange and add their whole buffers. With k^L the largest
power of k up to P, neighbouring positions form k^L runs (:func:`..parts.radix.folding`); where P is no power of k,
members of a run first send their buffers to its last one, which stands for them, and get the result from it in the end.
In phase i the k leaders whose run numbers differ in the digit of place i send their buffers to each other. Recursive
doubling has k = 2.

Steps L, or L + 2 if P > k^L. With e = 0 for P = k^L, and e = 1 for k = 2 and other P: time ``((k - 1) L + 2 e) (alpha
+ M beta) + ((k - 1) L + e) M gamma``; bytes per rank ((k - 1) L + e) M. For larger k and P > k^L the leaders have
different numbers of buffers to add first, and their engines are then busy at different times: how long they wait for
each other is no such sum for every alpha, beta and gamma, and the cost is not stated.

Neighbouring intervals are added in rank order (:mod:`..parts.radix`).

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for
AllReduce", Parallel Computing 2017. Open MPI, MPICH and MVAPICH2 have recursive doubling, MPICH recursive multiplying.

**k-reduce-scatter-allgather:** a reduce-scatter and an all-gather of radix k among a power of k leaders. With k^L the
largest power of k up to P, neighbouring positions form k^L runs (:func:`..parts.radix.folding`); where P is no power of
k, members of a run first send their buffers to its last one, which stands for them, and get the result from it in the
end. In phase i, the k leaders whose run numbers differ in the digit of place i cut what they have left into k parts,
keep one each, and send the others to those who keep them (:mod:`..parts.radix`); the phases backwards gather the
parts.

Steps 2 L for P = k^L; otherwise the leaders of a group begin at different times and take turns: 2 (k - 1) L + 2. With
e = min(k - 1, P - k^L) and r = (k^L - 1)/k^L, time ``2 ((k - 1) L + e) alpha + 2 (r + e) M beta + (r + e) M gamma``;
bytes per rank up to (2 r + e) M.

Neighbouring intervals are added, so rank order is kept, except where P is no power of k and k > 2. With k = 2 this is
Rabenseifner's algorithm with MPICH's folding.

MPICH (k_reduce_scatter_allgather).

**allgather-reduce:** every rank sends its buffer to every other, and adds what it receives in rank order. Steps 1; time
``(P - 1) (alpha + M (beta + gamma))``; bytes per rank (P - 1) M.

Open MPI (allgather_reduce) gathers first and adds afterwards; here a buffer is added as it arrives. Messages are posted
so that no rank is sent to by two at a time, and yet each adds its neighbours nearest first (:mod:`..parts.radix`).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.radix import Exchange, folding, radix_parameter
from coppice.schedule.schedule import Op, Schedule


def _recursive_multiplying(case: AlgorithmCase, radix: int) -> Schedule:
    moves, fold = Moves(case, whole(case)), folding(case.size, radix)
    folded, leader = fold.folded
    nearest = slice(None, None, -1)
    moves.add(0, folded[nearest], leader[nearest], 0, Op.REDUCE)
    first = int(len(folded) > 0)
    Exchange(fold.leader, fold.radix, fold.depth).whole(moves, first)
    moves.add(first + fold.depth, leader, folded, 0)
    return moves.schedule(ordered=True)


def _recursive_multiplying_cost(case: AlgorithmCase, radix: int) -> Cost:
    fold = folding(case.size, radix)
    folded = int(case.size > fold.core)
    if folded and fold.radix > 2:
        raise InputError(
            f"the cost of recursive multiplying with radix {radix} is known for powers of {radix} ranks only, "
            f"found {case.size}: simulate it, or use radix 2."
        )
    exchanges = (fold.radix - 1) * fold.depth
    messages, added = exchanges + 2 * folded, exchanges + folded
    return Cost.of_one_chain(
        steps=fold.depth + 2 * folded,
        sent=Fraction(added),
        messages=messages,
        moved=Fraction(messages),
        reduced=Fraction(added),
    )


WHOLE_BUFFERS = (
    Algorithm(
        name="recursive-doubling",
        collective=Collective.ALL_REDUCE,
        build=lambda case: _recursive_multiplying(case, 2),
        summary="pairs exchange and add whole buffers, at twice the distance every time",
        source="Thakur, Rabenseifner and Gropp 2005; Open MPI, MPICH, MVAPICH2",
        cost=lambda case: _recursive_multiplying_cost(case, 2),
    ),
    Algorithm(
        name="recursive-multiplying",
        collective=Collective.ALL_REDUCE,
        build=lambda case: _recursive_multiplying(case, case.number("radix")),
        summary="groups of k exchange and add whole buffers, at k times the distance every time",
        source="Ruefenacht et al. 2017; MPICH",
        cost=lambda case: _recursive_multiplying_cost(case, case.number("radix")),
        parameters=radix_parameter(4),
    ),
)


def reduce_scatter_allgather(case: AlgorithmCase) -> Schedule:
    """Fold, reduce-scatter, all-gather, unfold."""
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


def _reduce_scatter_allgather_cost(case: AlgorithmCase) -> Cost:
    fold = folding(case.size, case.number("radix"))
    folded = min(fold.radix - 1, case.size - fold.core)
    messages = (fold.radix - 1) * fold.depth
    part = Fraction(fold.core - 1, fold.core)
    return Cost.of_one_chain(
        steps=2 * messages + 2 if folded else 2 * fold.depth,
        sent=2 * part + folded,
        messages=2 * (messages + folded),
        moved=2 * (part + folded),
        reduced=part + folded,
    )


PARTS = Algorithm(
    name="k-reduce-scatter-allgather",
    collective=Collective.ALL_REDUCE,
    build=reduce_scatter_allgather,
    summary="reduce-scatter and all-gather in groups of k, near groups first",
    source="MPICH",
    cost=_reduce_scatter_allgather_cost,
    parameters=radix_parameter(4),
)


def allgather_reduce(case: AlgorithmCase) -> Schedule:
    """One group of all positions: all-gather, then reduce locally."""
    moves = Moves(case, whole(case))
    Exchange(case.positions, case.size, 1).whole(moves, 0)
    return moves.schedule(ordered=True)


def _allgather_reduce_cost(case: AlgorithmCase) -> Cost:
    messages = case.size - 1
    moved = Fraction(messages)
    return Cost.of_one_chain(steps=1, sent=moved, messages=messages, reduced=moved)


ONE_GROUP = Algorithm(
    name="allgather-reduce",
    collective=Collective.ALL_REDUCE,
    build=allgather_reduce,
    summary="every rank sends its buffer to all others, and adds theirs",
    source="Open MPI",
    cost=_allgather_reduce_cost,
)
