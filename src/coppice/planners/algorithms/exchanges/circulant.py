"""Broadcast and reduction on a circulant graph: round-optimal for any P.

The root cuts the buffer into S ``segments`` and sends one in every round. Rank r sends to r + skip[k] and receives from
r - skip[k] in the k-th of q = ceil(lg P) rounds that come again and again; the skips halve from P on (rounded up). A
table tells each rank which block (:mod:`.circulant_rounds`). The reduction runs the rounds backwards.

Steps S - 1 + q, the fewest with one port; time ``(S - 1 + q) (alpha + M/S beta)``, and ``M/S gamma`` more in every step
of a reduction, whose root adds in each; bytes of a rank (S - 1 + q)/S M, at the root, and M in a reduction. Sums do not
keep rank order.

Traff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast, reduction and
all-reduction", 2024; MPICH (circ_graph).
"""

from __future__ import annotations

from fractions import Fraction

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.circulant_rounds import transfers
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.tree_shapes import SEGMENTS
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def broadcast(case: Case) -> Schedule:
    """Round by round."""
    segments = case.number("segments")
    moves = Moves(case, whole(case, segments))
    if case.size > 1:
        step, sender, receiver, block = transfers(case.size, segments)
        moves.add(step, case.from_root(sender), case.from_root(receiver), block)
    return moves.schedule()


def reduction(case: Case) -> Schedule:
    """The rounds of the broadcast backwards."""
    segments = case.number("segments")
    moves = Moves(case, whole(case, segments))
    if case.size > 1:
        step, sender, receiver, block = transfers(case.size, segments)
        moves.add(step.max() - step, case.from_root(receiver), case.from_root(sender), block, Op.REDUCE)
    return moves.schedule()


def _cost(case: Case) -> Cost:
    if case.size == 1:
        return Cost(steps=0, sent=Fraction(0), chains=())
    segments = case.number("segments")
    rounds = segments - 1 + (case.size - 1).bit_length()
    moved = Fraction(rounds, segments)
    reduces = case.collective.reduces
    chain = Chain(messages=rounds, sent=moved, reduced=moved if reduces else Fraction(0))
    return Cost(steps=rounds, sent=Fraction(1) if reduces else moved, chains=(chain,))


ALGORITHMS = tuple(
    Algorithm(
        name="circulant",
        collective=collective,
        build=build,
        summary="blocks hop along a circulant graph: the fewest rounds for any number of ranks",
        source="Traff 2024; MPICH (circ_graph)",
        cost=_cost,
        parameters={"segments": SEGMENTS},
    )
    for collective, build in ((Collective.BROADCAST, broadcast), (Collective.REDUCE, reduction))
)
