"""Recursive doubling of blocks for any P, and the all-gather by recursive exchange of radix k.

**Recursive doubling.** In the step of mask d = 1, 2, 4 .. position p exchanges with p xor d. Let G be the positions of
p's subtree, those that agree with p in all bits from d up. All-gather: p sends all blocks of G. Reduce-scatter: p sends
its partial sums, over G, of all blocks that do not belong to G; every sum is over an interval of ranks. Its partner has
no use for some of these any more and does not add them (a library does, to no effect). All-to-all: p sends everything
that the members of G want to send to anybody; nothing is sorted out on the way.

Where P is not a power of two, one subtree meets a smaller one of n < d members, and only n of its own have a partner.
They pass on what they got to the others, in up to log2 d further steps at distances d/2, d/4 .. 1.

For P = 2^L: steps L; time on a crossbar ``L alpha +`` (P - 1)/P M beta (all-gather), (L - (P - 1)/P) M beta + (L (1 +
1/P) - 2 (P - 1)/P) M gamma (reduce-scatter), (P - 1) M beta (all-to-all: worth it for tiny blocks at most). Otherwise
the steps are those above and the time is the longest chain of exchanges, followed from position to position.

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Open MPI (reduce-scatter for any P; all-gather for powers of two, else
Bruck), MPICH (for other P experimental in all-gather), MVAPICH2 (all-gather, all-to-all).

**Recursive exchange,** folded where P is not a power of k. With k^L the largest power of k up to P and e = P - k^L:
neighbouring positions form k^L *runs*, the first ones of k positions, the rest of one. Members of a run send their
blocks to its last one, its leader. In phase i = 0 .. L - 1 the leaders of k runs whose numbers differ in one digit
exchange all that they have. In the end the leaders send the whole buffer to their runs.

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
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Clocks, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, pairs
from coppice.planners.algorithms.parts.radix import Folding, folding, radix_parameter, reversed_digits, spans
from coppice.schedule.schedule import Op, Schedule

# An all-to-all moves P^2 (P - 1) blocks in all.
_MOST_RANKS = 128

Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class DoublingStep:
    """Concurrent messages of a step, as columns."""

    src: Positions  # Senders
    dst: Positions  # Receivers
    data: Positions  # First and last + 1 position of the subtrees whose data travel (2 x messages)
    home: Positions  # Likewise the subtrees of the receivers
    passed_on: bool  # Senders only pass on what they got, to members of their own subtree


def doubling_steps(size: int) -> Iterator[DoublingStep]:
    """The steps of an all-gather among ``size`` positions; a message has all blocks of its ``data``."""
    position = np.arange(size)
    mask = 1
    while mask < size:
        src = position[(position ^ mask) < size]
        dst = src ^ mask
        data, home = (np.array([p - p % mask, np.minimum(p - p % mask + mask, size)]) for p in (src, dst))
        yield DoublingStep(src=src, dst=dst, data=data, home=home, passed_on=False)
        root = (size - 1) // (2 * mask) * (2 * mask)
        partners = size - root - mask
        if 0 < partners < mask:
            yield from _passing_on(root, mask, partners)
        mask *= 2


def _passing_on(root: int, mask: int, partners: int) -> Iterator[DoublingStep]:
    """Members ``root .. root + partners - 1`` of a subtree of ``mask`` tell the rest of it."""
    distance = mask // 2
    while distance:
        member = np.arange(root, root + mask)
        told = member - member % (2 * distance) + partners  # members below this one know
        src = member[(member & distance == 0) & (member < told) & (member + distance >= told)]
        data = np.tile([[root + mask], [root + mask + partners]], len(src))
        home = np.tile([[root], [root + mask]], len(src))
        if len(src):
            yield DoublingStep(src=src, dst=src + distance, data=data, home=home, passed_on=True)
        distance //= 2


def all_gather(case: AlgorithmCase) -> Schedule:
    """All-gather by recursive doubling: blocks of whole subtrees."""
    moves = Moves(case, blocks(case))
    for number, step in enumerate(doubling_steps(case.size)):
        first, last = step.data
        row, block = spans(first, last - first)
        moves.add(number, step.src[row], step.dst[row], block)
    return moves.schedule()


def reduce_scatter(case: AlgorithmCase) -> Schedule:
    """Reduce-scatter by recursive doubling: partial sums of the blocks outside the own subtree."""
    moves = Moves(case, blocks(case))
    for number, step in enumerate(doubling_steps(case.size)):
        row, block = np.nonzero(~_inside(case.positions, step.data))
        away = ~_inside(case.positions, step.home)[row, block]
        added = (block == step.dst[row]) | (away & (not step.passed_on))
        for op, rows in ((Op.REDUCE, added), (Op.COPY, ~added)):
            moves.add(number, step.src[row[rows]], step.dst[row[rows]], block[rows], op)
    return moves.schedule(ordered=True)


def _inside(position: Positions, span: Positions) -> NDArray[np.bool_]:
    """For every message (rows), which positions (columns) are in its span."""
    first, last = span[:, :, None]
    inside: NDArray[np.bool_] = (position >= first) & (position < last)
    return inside


def all_to_all(case: AlgorithmCase) -> Schedule:
    """All-to-all by recursive doubling: everything that a subtree has to send."""
    moves = Moves(case, pairs(case))
    size = case.size
    for number, step in enumerate(doubling_steps(size)):
        first, last = step.data
        row, chunk = spans(first * size, (last - first) * size)
        moves.add(number, step.src[row], step.dst[row], chunk)
    return moves.schedule()


def _cost(case: AlgorithmCase) -> Cost:
    size, collective = case.size, case.collective
    clocks = Clocks(size, unit=size)
    for step in doubling_steps(size):
        units = np.diff(step.data, axis=0)[0]
        added = units * 0
        if collective is Collective.REDUCE_SCATTER:
            away = size - units - np.diff(step.home, axis=0)[0]
            units, added = size - units, 1 + away * (not step.passed_on)
        elif collective is Collective.ALL_TO_ALL:
            units = units * size
        clocks.step(zip(*(column.tolist() for column in (step.src, step.dst, units, added)), strict=True))
    return clocks.cost()


def _needs(case: AlgorithmCase) -> str | None:
    if case.collective is not Collective.ALL_TO_ALL or case.size <= _MOST_RANKS:
        return None
    return (
        f"recursive-doubling of an all-to-all moves P^2 (P - 1) blocks and is made for at most {_MOST_RANKS} "
        f"ranks, found {case.size}: choose bruck."
    )


DOUBLING = tuple(
    Algorithm(
        name="recursive-doubling",
        collective=collective,
        build=build,
        summary=summary,
        source=source,
        cost=_cost,
        needs=_needs,
    )
    for collective, build, summary, source in (
        (
            Collective.ALL_GATHER,
            all_gather,
            "partners at distance 1, 2, 4 .. exchange all they have",
            "Thakur et al. 2005; Open MPI, MPICH, MVAPICH2",
        ),
        (
            Collective.REDUCE_SCATTER,
            reduce_scatter,
            "partners at distance 1, 2, 4 .. exchange all sums that are not final, in rank order",
            "Thakur et al. 2005; Open MPI, MPICH",
        ),
        (
            Collective.ALL_TO_ALL,
            all_to_all,
            "partners at distance 1, 2, 4 .. exchange everything, whomever it is for",
            "MVAPICH2",
        ),
    )
)

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


def _recexch_cost(case: AlgorithmCase, home_of: Callable[[Folding], Runs]) -> Cost:
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


RECEXCH = tuple(
    Algorithm(
        name=name,
        collective=Collective.ALL_GATHER,
        build=partial(_schedule, home_of=home_of),
        summary=summary,
        source="Thakur et al. 2005; Sack and Gropp, PPoPP 2012; MPICH",
        cost=partial(_recexch_cost, home_of=home_of),
        parameters=radix_parameter(),
    )
    for name, home_of, summary in (
        ("recexch-doubling", _near_first, "k leaders at a time exchange all they have, near ones first"),
        ("recexch-halving", _far_first, "k leaders at a time exchange all they have, far ones first"),
    )
)
