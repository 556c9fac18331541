"""Reduce-scatter by halves: recursive halving and the butterfly, folded where P is not a power of two.

Let P = 2^L + e with e < 2^L. If e > 0, positions 0, 2 .. 2e - 2 first send everything to their right neighbours,
which add it and from then on stand for both; so there are 2^L *runs* of one or two positions. In every step a run
exchanges with another: each keeps one half of the runs that it is still in charge of, sends its partial sums of the
blocks of the other half, and adds what it receives.

recursive-halving: distances 2^(L-1) .. 2, 1 between runs, and every run keeps the half that it is in itself; in the
end, the folded positions get their blocks back. Steps L, or L + 2.

butterfly: distances 1, 2 .. 2^(L-1); whoever has 0 in the bit of the distance keeps the lower half. All sums are over
intervals of ranks, so that the operator need not commute. Run v then has the sums of the run whose number is v with
its bits mirrored. With e = 0 and ``mirror=blocks`` the blocks were numbered so from the beginning; otherwise they are
exchanged in the end, the folded position first. Steps L, or L + 2; with e = 0, ``mirror=exchange`` and L > 1, L + 1.

Bytes per rank (P - 1)/P M, or M with e > 0; time on a crossbar ``L alpha + (P - 1)/P M (beta + gamma)``, or with
W(m) = m + min(m, e) and S = P + W(2^(L-1)) + .. + W(2) + W(1), in units of M/P: ``(L + 2) alpha + (S + 1) beta + S
gamma``, and for the butterfly with e > 1 one ``alpha + beta`` more; with e = 0, ``alpha + M/P beta`` more for an
exchange in the end, and bytes M.

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Traff, "An improved algorithm for (non-commutative) reduce-scatter with
an application", EuroPVM/MPI 2005. Open MPI (both; ``mirror=exchange`` in MPI_Reduce_scatter, ``mirror=blocks`` in
MPI_Reduce_scatter_block), MPICH (both; the butterfly for powers of two), MVAPICH2.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.algorithms.parts.radix import Folding, folding, reversed_digits, spans
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def recursive_halving(case: AlgorithmCase) -> Schedule:
    """Far partners first; runs keep the half that they are in."""
    moves, fold = Moves(case, blocks(case)), folding(case.size)
    step = _fold(moves, fold)
    distance = fold.core // 2
    while distance:
        partner = fold.runs ^ distance
        first = partner - partner % distance
        _exchange(moves, fold, step, partner, first[:, None] + np.arange(distance))
        step, distance = step + 1, distance // 2
    folded, leader = fold.folded
    moves.add(step, leader, folded, folded)
    return moves.schedule()


def butterfly(case: AlgorithmCase) -> Schedule:
    """Near partners first; bits decide on halves."""
    moves, fold = Moves(case, blocks(case)), folding(case.size)
    step = _fold(moves, fold)
    mirror = reversed_digits(fold.depth)
    exchanged = _exchanges(case, fold)
    run_at = fold.runs if exchanged else mirror
    for bit in range(fold.depth):
        distance = 1 << bit
        partner = fold.runs ^ distance
        first = mirror[partner % (2 * distance)]
        place = first[:, None] + np.arange(fold.core // (2 * distance))
        _exchange(moves, fold, step + bit, partner, run_at[place])
    if exchanged:
        _give_back(moves, fold, step + fold.depth, mirror)
    return moves.schedule(ordered=True)


def _exchanges(case: AlgorithmCase, fold: Folding) -> bool:
    """Blocks are exchanged in the end: only where nothing is folded, every run has as many blocks as any."""
    return fold.core < case.size or case.parameters["mirror"] == "exchange"


def _fold(moves: Moves, fold: Folding) -> int:
    """Folded positions send everything to their leaders; the number of steps that it takes."""
    folded, leader = fold.folded
    moves.add(0, folded[:, None], leader[:, None], moves.case.positions, Op.REDUCE)
    return int(len(folded) > 0)


def _exchange(
    moves: Moves, fold: Folding, step: int, partner: NDArray[np.int64], runs: NDArray[np.int64]
) -> None:
    """Every run sends its partner the sums of the blocks of ``runs[own number]``."""
    every = runs.reshape(-1)
    row, block = spans(fold.start[every], np.diff(fold.start)[every])
    own = row // runs.shape[1]
    moves.add(step, fold.leader[own], fold.leader[partner[own]], block, Op.REDUCE)


def _give_back(moves: Moves, fold: Folding, step: int, mirror: NDArray[np.int64]) -> None:
    """Sums move from the mirrored run to where they belong, to folded positions first."""
    folded, _ = fold.folded
    moves.add(step, fold.leader[mirror[: len(folded)]], folded, folded)
    away = fold.runs[mirror != fold.runs]
    moves.add(step, fold.leader[mirror[away]], fold.leader[away], fold.leader[away])


def _butterfly_cost(case: AlgorithmCase) -> Cost:
    fold = folding(case.size)
    cost = _cost(case, last_messages=min(len(fold.folded[0]), 2))
    if fold.core < case.size or fold.depth < 2 or not _exchanges(case, fold):
        return cost
    block = Fraction(1, case.size)
    (chain,) = cost.chains
    return Cost(
        steps=cost.steps + 1,
        sent=cost.sent + block,
        chains=(replace(chain, messages=chain.messages + 1, sent=chain.sent + block),),
    )


def _cost(case: AlgorithmCase, *, last_messages: int) -> Cost:
    size, fold = case.size, folding(case.size)
    rest = size - fold.core
    kept = sum(half + min(half, rest) for half in (fold.core >> bit for bit in range(1, fold.depth + 1)))
    if not rest:
        moved = Fraction(kept, size)
        return Cost.of_one_chain(steps=fold.depth, sent=moved, reduced=moved)
    return Cost.of_one_chain(
        steps=fold.depth + 2,
        sent=Fraction(1),
        messages=1 + fold.depth + last_messages,
        moved=Fraction(size + kept + last_messages, size),
        reduced=Fraction(size + kept, size),
    )


ALGORITHMS = (
    Algorithm(
        name="recursive-halving",
        collective=Collective.REDUCE_SCATTER,
        build=recursive_halving,
        summary="partners at distance P/2, P/4 .. exchange halves of what is left",
        source="Thakur et al. 2005; Open MPI, MPICH, MVAPICH2",
        cost=lambda case: _cost(case, last_messages=1),
    ),
    Algorithm(
        name="butterfly",
        collective=Collective.REDUCE_SCATTER,
        build=butterfly,
        summary="partners at distance 1, 2, 4 .. exchange halves, in rank order, and mirror the blocks",
        source="Traff, EuroPVM/MPI 2005; Open MPI, MPICH",
        cost=_butterfly_cost,
        parameters={
            "mirror": AlgorithmParameter(
                default="blocks",
                summary="for a power of two of ranks: blocks are numbered mirrored, or exchanged in the end",
                choices=("blocks", "exchange"),
            )
        },
    ),
)
