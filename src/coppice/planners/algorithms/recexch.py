"""All-gather by recursive exchange of radix k, folded where P is not a power of k.

With k^L the largest power of k up to P and e = P - k^L: neighbouring positions form k^L *runs*, the first ones of k
positions, the rest of one. Members of a run send their blocks to its last one, its leader. In phase i = 0 .. L - 1
the leaders of k runs whose numbers differ in one digit exchange all that they have. In the end the leaders send the
whole buffer to their runs.

recexch-doubling: phase i exchanges the digit of place i: near partners first. Steps L, or L + 2.
recexch-halving: run v first exchanges its blocks with run v', v with its digits reversed; then phase i exchanges the
digit of place L - 1 - i, and far partners, with little data, come first. What a leader has is always the blocks of
neighbouring ranks. One step more, if L > 1.

For P = k^L: bytes per rank (P - 1)/P M, with M/P more in halving; time on a crossbar ``(k - 1) L alpha + (P - 1)/P M
beta``, and ``alpha + M/P beta`` more in halving if L > 1. For k = 2 and e > 0, with W(m) = m + min(m, e), in units of
M/P: ``(L + 2) alpha + (1 + W(1) + W(2) + .. + W(2^(L-1)) + P) beta``, and for halving with e > 1 ``alpha + 2 beta``
more. For larger k and e > 0 the engines of the leaders, which then hold different amounts, are busy at different
times, and no such sum is the time for every alpha and beta: the cost is not stated.

Messages of a phase go to the next digit first, so that the k leaders do not all send to the same one.

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Sack and Gropp, "Faster topology-aware collective algorithms through
non-minimal communication", PPoPP 2012. MPICH (recexch_doubling, recexch_halving).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.cost import Chain, Cost
from coppice.planners.algorithms.folding import Folding, folding, reversed_digits
from coppice.planners.algorithms.moves import Moves, blocks
from coppice.planners.algorithms.radix import radix_parameter, spans
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def doubling(case: Case) -> Schedule:
    """Near partners first."""
    moves, fold = Moves(case, blocks(case)), folding(case.size, case.number("radix"))
    _phases(moves, fold, _fold(moves, fold), fold.runs)
    return moves.schedule()


def halving(case: Case) -> Schedule:
    """Far partners first, after an exchange that puts neighbouring blocks there."""
    moves, fold = Moves(case, blocks(case)), folding(case.size, case.number("radix"))
    first = _fold(moves, fold)
    mirror = reversed_digits(fold.depth, fold.radix)
    away = fold.runs[mirror != fold.runs]
    row, block = spans(fold.start[away], np.diff(fold.start)[away])
    moves.add(first, fold.leader[away][row], fold.leader[mirror[away]][row], block)
    _phases(moves, fold, first + (fold.depth > 1), mirror)
    return moves.schedule()


def _fold(moves: Moves, fold: Folding) -> int:
    """Blocks go to the leaders; the number of steps that it takes."""
    folded, leader = fold.folded
    moves.add(0, folded, leader, folded)
    return int(len(folded) > 0)


def _phases(moves: Moves, fold: Folding, first_step: int, home: NDArray[np.int64]) -> None:
    """Leaders exchange, then tell their runs; leader v begins with the blocks of run ``home[v]``."""
    of_home = np.argsort(home)
    for phase in range(fold.depth):
        span = fold.radix**phase
        low = home - home % span  # the runs low .. low + span - 1 are what a leader has
        row, block = spans(fold.start[low], fold.start[low + span] - fold.start[low])
        for shift in range(1, fold.radix):
            digit = home // span % fold.radix
            partner = of_home[home + ((digit + shift) % fold.radix - digit) * span]
            moves.add(first_step + phase, fold.leader[row], fold.leader[partner[row]], block)
    folded, leader = fold.folded
    moves.add(first_step + fold.depth, leader[:, None], folded[:, None], moves.case.positions)


def _doubling_cost(case: Case) -> Cost:
    fold = folding(case.size, case.number("radix"))
    return _cost(fold, fold.runs)


def _halving_cost(case: Case) -> Cost:
    fold = folding(case.size, case.number("radix"))
    return _cost(fold, reversed_digits(fold.depth, fold.radix))


def _cost(fold: Folding, home: NDArray[np.int64]) -> Cost:
    size, depth, radix = int(fold.start[-1]), fold.depth, fold.radix
    rest = size - fold.core
    mirrored = int((home != fold.runs).any())
    steps, sent = depth + mirrored + 2 * (rest > 0), Fraction(_most_sent(fold, home), size)
    if not rest:
        messages, bytes_ = (radix - 1) * depth + mirrored, size - 1 + mirrored
    elif radix == 2:
        late = mirrored and rest > 1
        exchanged = sum(2**bit + min(2**bit, rest) for bit in range(depth))
        messages, bytes_ = depth + 2 + late, 1 + 2 * late + exchanged + size
    else:
        msg = (
            f"the cost of recexch with radix {radix} is known for powers of {radix} ranks only, found {size}: "
            f"simulate it, or use radix 2."
        )
        raise InputError(msg)
    chains = (Chain(messages=messages, sent=Fraction(bytes_, size)),) if messages else ()
    return Cost(steps=steps, sent=sent, chains=chains)


def _most_sent(fold: Folding, home: NDArray[np.int64]) -> int:
    """Most blocks that a leader sends."""
    start, length = fold.start, np.diff(fold.start)
    sent = np.where(home == fold.runs, 0, length) + (length - 1) * start[-1]
    for phase in range(fold.depth):
        span = fold.radix**phase
        low = home - home % span
        sent += (fold.radix - 1) * (start[low + span] - start[low])
    return int(sent.max())


ALGORITHMS = tuple(
    Algorithm(
        name=name,
        collective=Collective.ALL_GATHER,
        build=build,
        summary=summary,
        source="Thakur et al. 2005; Sack and Gropp, PPoPP 2012; MPICH",
        cost=cost,
        parameters=radix_parameter(),
    )
    for name, build, cost, summary in (
        (
            "recexch-doubling",
            doubling,
            _doubling_cost,
            "k leaders at a time exchange all they have, near ones first",
        ),
        (
            "recexch-halving",
            halving,
            _halving_cost,
            "k leaders at a time exchange all they have, far ones first",
        ),
    )
)
