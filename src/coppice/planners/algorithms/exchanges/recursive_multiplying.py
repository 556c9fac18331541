"""Recursive doubling and multiplying: groups of k ranks exchange and add their whole buffers.

With k^L the largest power of k up to P, neighbouring positions form k^L runs (:mod:`.folding`); where P is no power
of k, members of a run first send their buffers to its last one, which stands for them, and get the result from it in
the end. In phase i the k leaders whose run numbers differ in the digit of place i send their buffers to each other.
Recursive doubling has k = 2.

Steps L, or L + 2 if P > k^L. With e = 0 for P = k^L, and e = 1 for k = 2 and other P: time ``((k - 1) L + 2 e) (alpha
+ M beta) + ((k - 1) L + e) M gamma``; bytes per rank ((k - 1) L + e) M. For larger k and P > k^L the leaders have
different numbers of buffers to add first, and their engines are then busy at different times: how long they wait for
each other is no such sum for every alpha, beta and gamma, and the cost is not stated.

Neighbouring intervals are added in rank order (:mod:`.exchange`).

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for
AllReduce", Parallel Computing 2017. Open MPI, MPICH and MVAPICH2 have recursive doubling, MPICH recursive multiplying.
"""

from __future__ import annotations

from fractions import Fraction

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.exchange import Exchange
from coppice.planners.algorithms.parts.folding import folding
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.radix import radix_parameter
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def _build(case: Case, radix: int) -> Schedule:
    moves, fold = Moves(case, whole(case)), folding(case.size, radix)
    folded, leader = fold.folded
    nearest = slice(None, None, -1)
    moves.add(0, folded[nearest], leader[nearest], 0, Op.REDUCE)
    first = int(len(folded) > 0)
    Exchange(fold.leader, fold.radix, fold.depth).whole(moves, first)
    moves.add(first + fold.depth, leader, folded, 0)
    return moves.schedule(ordered=True)


def _cost(case: Case, radix: int) -> Cost:
    fold = folding(case.size, radix)
    folded = int(case.size > fold.core)
    if folded and fold.radix > 2:
        msg = (
            f"the cost of recursive multiplying with radix {radix} is known for powers of {radix} ranks only, "
            f"found {case.size}: simulate it, or use radix 2."
        )
        raise InputError(msg)
    exchanges = (fold.radix - 1) * fold.depth
    messages, added = exchanges + 2 * folded, exchanges + folded
    chain = Chain(messages=messages, sent=Fraction(messages), reduced=Fraction(added))
    return Cost(steps=fold.depth + 2 * folded, sent=Fraction(added), chains=(chain,) if messages else ())


ALGORITHMS = (
    Algorithm(
        name="recursive-doubling",
        collective=Collective.ALL_REDUCE,
        build=lambda case: _build(case, 2),
        summary="pairs exchange and add whole buffers, at twice the distance every time",
        source="Thakur, Rabenseifner and Gropp 2005; Open MPI, MPICH, MVAPICH2",
        cost=lambda case: _cost(case, 2),
    ),
    Algorithm(
        name="recursive-multiplying",
        collective=Collective.ALL_REDUCE,
        build=lambda case: _build(case, case.number("radix")),
        summary="groups of k exchange and add whole buffers, at k times the distance every time",
        source="Ruefenacht et al. 2017; MPICH",
        cost=lambda case: _cost(case, case.number("radix")),
        parameters=radix_parameter(4),
    ),
)
