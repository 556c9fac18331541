"""Recursive halving: Rabenseifner's all-reduce and reduce, and reduce-scatter by halving and by butterfly.

**Rabenseifner.** p = 2^L is the largest power of two up to P. In phase i the leaders whose numbers differ in bit i
exchange halves of what they have left and add; the phases backwards bring the parts together again: everywhere
(all-reduce), or along a binomial tree at the root's leader (reduce). Where P > p, the first 2 (P - p) positions are
paired, and one of each pair is first folded into the other, its leader:

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

**Reduce-scatter by halves.** Let P = 2^L + e with e < 2^L. If e > 0, positions 0, 2 .. 2e - 2 first send everything to
their right neighbours, which add it and from then on stand for both; so there are 2^L *runs* of one or two positions.
In every step a run exchanges with another: each keeps one half of the runs that it is still in charge of, sends its
partial sums of the blocks of the other half, and adds what it receives.

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
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.algorithms.parts.radix import Exchange, Folding, folding, reversed_digits, spans
from coppice.schedule.schedule import Op, Schedule

_Positions = NDArray[np.int64]


def all_reduce(case: AlgorithmCase) -> Schedule:
    """Reduce-scatter and all-gather among a power of two of positions."""
    fold, halves = folding(case.size), case.parameters["folding"] == "open-mpi"
    moves = Moves(case, whole(case, fold.core))
    lower, upper = _pairs(fold)
    leader, folded = (lower, upper) if halves else (upper, lower)
    exchange = Exchange(fold.start[:-1] if halves else fold.leader, 2, fold.depth)
    first = _fold_in(moves, leader, folded, halves=halves)
    exchange.scatter(moves, first)
    exchange.gather(moves, first + fold.depth)
    moves.add(first + 2 * fold.depth, leader[:, None], folded[:, None], np.arange(fold.core))
    return moves.schedule(ordered=True)


def reduction(case: AlgorithmCase) -> Schedule:
    """Reduce-scatter, then a binomial gather."""
    fold, halves = folding(case.size), case.parameters["folding"] == "open-mpi"
    moves = Moves(case, whole(case, fold.core))
    leader, folded = _pairs(fold)
    exchange = Exchange(fold.start[:-1], 2, fold.depth)
    step = _fold_in(moves, leader, folded, halves=halves)
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


def _fold_in(moves: Moves, leader: _Positions, folded: _Positions, *, halves: bool) -> int:
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


def _rabenseifner_cost(case: AlgorithmCase) -> Cost:
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


RABENSEIFNER = tuple(
    Algorithm(
        name="rabenseifner",
        collective=collective,
        build=build,
        summary=summary,
        source="Rabenseifner 2004; Thakur et al. 2005; Open MPI, MPICH, MVAPICH2",
        cost=_rabenseifner_cost,
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


def recursive_halving(case: AlgorithmCase) -> Schedule:
    """Halving with distant partners first; each keeps one half of an interval."""
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
    """Halving with near partners first; bits select the half."""
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


REDUCE_SCATTER = (
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
