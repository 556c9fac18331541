"""All-gather by recursive exchange of radix k, folded where P is not a power of k.

With k^L the largest power of k up to P and e = P - k^L: neighbouring positions form k^L *runs*, the first ones of k
positions, the rest of one. Members of a run send their blocks to its last one, its leader. In phase i = 0 .. L - 1
the leaders of k runs whose numbers differ in one digit exchange all that they have. In the end the leaders send the
whole buffer to their runs.

recexch-doubling: phase i exchanges the digit of place i: near partners first. Steps L, or L + 2 with e > 0.
recexch-halving: run v first exchanges its blocks with run v', v with its digits reversed; then phase i exchanges the
digit of place L - 1 - i, and far partners, with little data, come first. What a leader has is always the blocks of
neighbouring ranks. One step more, if L > 1.

A phase is one step, in which a leader sends to all k - 1 partners at once, the next digit first. Only for k > 2 and
e > 0, where leaders have different amounts and would get in each other's way, a phase is k - 1 steps here, one for
each partner (a library posts all at once).

For P = k^L: bytes per rank (P - 1)/P M, with M/P more in halving; time on a crossbar ``(k - 1) L alpha + (P - 1)/P M
beta``, and ``alpha + M/P beta`` more in halving if L > 1. For k = 2 and e > 0, with W(m) = m + min(m, e), in units of
M/P: ``(L + 2) alpha + (1 + W(1) + W(2) + .. + W(2^(L-1)) + P) beta``, and for halving with e > 1 ``alpha + 2 beta``
more. In general, the longest chain of exchanges, followed from position to position.

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Sack and Gropp, "Faster topology-aware collective algorithms through
non-minimal communication", PPoPP 2012. MPICH (recexch_doubling, recexch_halving).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Clocks, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.planners.algorithms.parts.radix import Folding, folding, radix_parameter, reversed_digits, spans
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]

Runs = NDArray[np.int64]


def _near_first(fold: Folding) -> Runs:
    return fold.runs


def _far_first(fold: Folding) -> Runs:
    """After an exchange that puts neighbouring blocks there."""
    return reversed_digits(fold.depth, fold.radix)


def _schedule(case: AlgorithmCase, home_of: Callable[[Folding], Runs]) -> Schedule:
    """Leader v begins the phases with the blocks of run ``home_of(fold)[v]``."""
    fold = folding(case.size, case.number("radix"))
    home, moves = home_of(fold), Moves(case, blocks(case))
    folded, leader = fold.folded
    moves.add(0, folded, leader, folded)
    step = int(len(folded) > 0)
    away = fold.runs[home != fold.runs]
    row, block = spans(fold.start[away], np.diff(fold.start)[away])
    moves.add(step, fold.leader[away][row], fold.leader[home[away]][row], block)
    step += int(len(away) > 0)
    for number, (partner, low, high) in enumerate(_rounds(fold, home)):
        row, block = spans(fold.start[low], fold.start[high] - fold.start[low])
        at = step + number // _rounds_per_step(fold)
        moves.add(at, fold.leader[row], fold.leader[partner[row]], block)
    moves.add(step + _phase_steps(fold), leader[:, None], folded[:, None], case.positions)
    return moves.schedule()


def _rounds(fold: Folding, home: Runs) -> Iterator[tuple[Runs, Runs, Runs]]:
    """Rounds of every phase, k - 1: each leader's partner, the first and last + 1 run whose blocks it has."""
    of_home = np.argsort(home)
    for phase in range(fold.depth):
        span = fold.radix**phase
        digit, low = home // span % fold.radix, home - home % span
        for shift in range(1, fold.radix):
            partner = of_home[home + ((digit + shift) % fold.radix - digit) * span]
            yield partner, low, low + span


def _rounds_per_step(fold: Folding) -> int:
    """Messages that a leader sends at once."""
    return fold.radix - 1 if fold.core == fold.start[-1] else 1


def _phase_steps(fold: Folding) -> int:
    return fold.depth * (fold.radix - 1) // _rounds_per_step(fold)


def _cost(case: AlgorithmCase, home_of: Callable[[Folding], Runs]) -> Cost:
    fold, size = folding(case.size, case.number("radix")), case.size
    home, leaders = home_of(fold), fold.leader.tolist()
    clocks = Clocks(size, unit=size)
    folded = list(zip(*(column.tolist() for column in fold.folded), strict=True))
    # Equal messages to or from one leader follow each other, as do those of a step in which all leaders have as much.
    for member, leader in folded:
        clocks.step([(member, leader, 1, 0)])
    length = np.diff(fold.start).tolist()
    away = [run for run in fold.runs.tolist() if home[run] != run]
    clocks.step([(leaders[run], leaders[home[run]], length[run], 0) for run in away])
    for partner, low, high in _rounds(fold, home):
        units = (fold.start[high] - fold.start[low]).tolist()
        clocks.step(zip(leaders, fold.leader[partner].tolist(), units, [0] * fold.core, strict=True))
    for member, leader in folded:
        clocks.step([(leader, member, size, 0)])
    steps = 2 * (len(folded) > 0) + (len(away) > 0) + _phase_steps(fold)
    return replace(clocks.cost(), steps=steps)


ALGORITHMS = tuple(
    Algorithm(
        name=name,
        collective=Collective.ALL_GATHER,
        build=partial(_schedule, home_of=home_of),
        summary=summary,
        source="Thakur et al. 2005; Sack and Gropp, PPoPP 2012; MPICH",
        cost=partial(_cost, home_of=home_of),
        parameters=radix_parameter(),
    )
    for name, home_of, summary in (
        ("recexch-doubling", _near_first, "k leaders at a time exchange all they have, near ones first"),
        ("recexch-halving", _far_first, "k leaders at a time exchange all they have, far ones first"),
    )
)
