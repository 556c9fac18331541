"""Rabenseifner's algorithm: reduce-scatter by halving the buffer, then an all-gather, or a gather to the root.

p = 2^L is the largest power of two up to P. In phase i the leaders whose numbers differ in bit i exchange halves of
what they have left and add; the phases backwards bring the parts together again: everywhere (all-reduce), or along a
binomial tree at the root's leader (reduce). Where P > p, the first 2 (P - p) positions are paired, and one of each pair
is first folded into the other, its leader:

* ``folding=mpich``: the folded one sends its whole buffer. In an all-reduce the leader is the upper one of a pair.
* ``folding=open-mpi``: the two swap halves, both add, and the folded one returns its half. The leader is the lower one.

In a reduce the leader is the lower one in both; where the root is folded, it takes over from leader 0, which sends it
what it has of the result. In an all-reduce the folded ones get the result from their leaders.

With r = (p - 1)/p, in units of M, and f = 0 for P = p, otherwise 1; a folded root takes one step and ``alpha + M/p
beta`` more:

===========  ==========  ================================  =========================================================
collective   folding     steps                             time
===========  ==========  ================================  =========================================================
all-reduce   mpich       2 L + 2 f                         ``(2 L + 2 f) alpha + (2 r + 2 f) beta + (r + f) gamma``
all-reduce   open-mpi    2 L + 3 f                         ``(2 L + 3 f) alpha + (2 r + 2 f) beta + (r + f/2) gamma``
reduce       mpich       2 L + f                           ``(2 L + f) alpha + (2 r + f) beta + (r + f) gamma``
reduce       open-mpi    2 L + 2 f                         ``(2 L + 2 f) alpha + (2 r + f) beta + (r + f/2) gamma``
===========  ==========  ================================  =========================================================

Bytes of a rank in an all-reduce up to 2 r + f and 2 r + 3/2 f; in a reduce a leader whose number differs from that of
the root's in place i and below sends r + 2^-(i + 1), and with open-mpi, if it is one of a pair, half a buffer more.

Neighbouring intervals are added: rank order is kept, whatever the root is.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner and Gropp, IJHPCA
2005, section 4.5; Open MPI, MPICH and MVAPICH2 have both.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.exchange import Exchange
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.radix import Folding, folding
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]

_Positions = NDArray[np.int64]


def all_reduce(case: AlgorithmCase) -> Schedule:
    """Reduce-scatter and all-gather among the leaders."""
    fold, halves = folding(case.size), case.parameters["folding"] == "open-mpi"
    moves = Moves(case, whole(case, fold.core))
    lower, upper = _pairs(fold)
    leader, folded = (lower, upper) if halves else (upper, lower)
    exchange = Exchange(fold.start[:-1] if halves else fold.leader, 2, fold.depth)
    first = _fold(moves, leader, folded, halves=halves)
    exchange.scatter(moves, first)
    exchange.gather(moves, first + fold.depth)
    moves.add(first + 2 * fold.depth, leader[:, None], folded[:, None], np.arange(fold.core))
    return moves.schedule(ordered=True)


def reduction(case: AlgorithmCase) -> Schedule:
    """Reduce-scatter among the leaders, then a binomial gather."""
    fold, halves = folding(case.size), case.parameters["folding"] == "open-mpi"
    moves = Moves(case, whole(case, fold.core))
    leader, folded = _pairs(fold)
    exchange = Exchange(fold.start[:-1], 2, fold.depth)
    step = _fold(moves, leader, folded, halves=halves)
    exchange.scatter(moves, step)
    step += fold.depth
    position, top = exchange.position.copy(), _root_run(case, fold)
    if case.root in folded:
        moves.add(step, position[0], case.root, exchange.kept(np.zeros(1, dtype=np.int64), fold.depth))
        position[0], step = case.root, step + 1
    for phase in reversed(range(fold.depth)):
        sender = top ^ np.arange(1 << phase, 2 << phase)
        to = sender ^ (1 << phase)
        moves.add(step, position[sender][:, None], position[to][:, None], exchange.kept(sender, phase + 1))
        step += 1
    return moves.schedule(ordered=True)


def _root_run(case: AlgorithmCase, fold: Folding) -> int:
    """Number of the leader at which a reduce comes together; a folded root takes the place of leader 0."""
    if case.root in _pairs(fold)[1]:
        return 0
    return int(np.searchsorted(fold.start, case.root))


def _pairs(fold: Folding) -> tuple[_Positions, _Positions]:
    """Lower and upper positions of the pairs."""
    lower = fold.start[:-1][np.diff(fold.start) > 1]
    return lower, lower + 1


def _fold(moves: Moves, leader: _Positions, folded: _Positions, *, halves: bool) -> int:
    """What the folded positions have comes to their leaders; the number of steps."""
    if not len(folded):
        return 0
    chunks = np.arange(moves.layout.parts)
    leader, folded = leader[:, None], folded[:, None]
    if not halves:
        moves.add(0, folded, leader, chunks, Op.REDUCE)
        return 1
    first_half, second_half = np.split(chunks, 2)
    moves.add(0, leader, folded, second_half, Op.REDUCE)
    moves.add(0, folded, leader, first_half, Op.REDUCE)
    moves.add(1, folded, leader, second_half)
    return 2


def _cost(case: AlgorithmCase) -> Cost:
    fold, halves = folding(case.size), case.parameters["folding"] == "open-mpi"
    everywhere = case.collective is Collective.ALL_REDUCE
    pairs, part = case.size - fold.core, Fraction(fold.core - 1, fold.core)
    folds = int(pairs > 0)
    moved = not everywhere and case.root in _pairs(fold)[1]
    steps = 2 * fold.depth + folds * (1 + halves + everywhere) + moved
    half = Fraction(1, 2)
    returned = half if halves else Fraction(0)
    sent = 2 * part + folds * (1 + returned) if everywhere else part + _gathered(case, fold, pairs, returned)
    return Cost.of_one_chain(
        steps=steps,
        sent=sent,
        moved=2 * part + folds * (1 + everywhere) + Fraction(int(moved), fold.core),
        reduced=part + folds * (half if halves else 1),
    )


def _gathered(case: AlgorithmCase, fold: Folding, pairs: int, returned: Fraction) -> Fraction:
    """Most that a leader of a reduce sends besides the phases that halve."""
    top = _root_run(case, fold)
    moved = Fraction(int(case.root in _pairs(fold)[1]), fold.core)
    most = [Fraction(1, 2)]
    if top < pairs:
        most.append(returned + moved)
    others = [(run ^ top).bit_length() for run in range(pairs) if run != top]
    if others:
        most.append(returned + Fraction(1, 1 << min(others)))
    return max(most)


ALGORITHMS = tuple(
    Algorithm(
        name="rabenseifner",
        collective=collective,
        build=build,
        summary=summary,
        source="Rabenseifner 2004; Thakur et al. 2005; Open MPI, MPICH, MVAPICH2",
        cost=_cost,
        parameters={
            "folding": AlgorithmParameter(
                default="mpich",
                summary="how ranks beyond a power of two are folded in: whole buffers, or halves",
                choices=("mpich", "open-mpi"),
            )
        },
    )
    for collective, build, summary in (
        (Collective.ALL_REDUCE, all_reduce, "reduce-scatter by recursive halving, all-gather by doubling"),
        (Collective.REDUCE, reduction, "reduce-scatter by recursive halving, then a binomial gather"),
    )
)
