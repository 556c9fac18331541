"""Direct all-gather, reduce-scatter and all-to-all: blocks straight to their destination, or all through one rank.

**Pairwise exchange:** a partner at a time. Reduce-scatter: in step i = 1 .. P - 1 position p sends its part of block p
+ i to p + i, which adds it. All-to-all: the same where P is not a power of two, otherwise the partners are p and p xor
i. Steps P - 1; bytes per rank (P - 1)/P M; time on a crossbar (P - 1) (``alpha + M/P beta``), and ``M/P gamma`` more
each where it adds.

All-to-all in place (sendrecv-replace): every pair i < j swaps two blocks, so that no second buffer is needed. A
position swaps with 0, 1, 2 .. in this order, and so pair (i, j) has its turn in step i + j - 1. Steps 2 P - 3; bytes
per rank (P - 1)/P M; time (2 P - 3) (``alpha + M/P beta``).

Thakur, Rabenseifner and Gropp, IJHPCA 2005; Open MPI, MPICH, MVAPICH2 (pairwise); MPICH, MVAPICH2 (in place).

**All-to-all with as many messages at once as wanted.** Position p sends to p + 1, p + 2 .. in this order, so that
nobody is the target of all.

linear: all P - 1 messages at once. Steps 1.
linear-sync: ``window`` messages at a time. Steps ceil((P - 1) / window). A library sends the next message when any
of these is complete, here when all are; on a crossbar it is the same.
scattered: the P messages, that to oneself included, in batches of ``batch``. Steps ceil(P / batch); with a batch of
one, whose first is empty, P - 1.

Bytes per rank (P - 1)/P M; time on a crossbar (P - 1) (``alpha + M/P beta``) for all three.

Open MPI (linear, linear_sync), MPICH (scattered, 32 at a time), MVAPICH2 (scatter_dest).

**All-gather in one step** (direct): every position sends its block to all others at once, the next position first.
Steps 1; bytes per rank (P - 1)/P M; time on a crossbar (P - 1) (``alpha + M/P beta``). Open MPI, MVAPICH2.

**One exchange between two ranks:** all-gather, all-to-all and barrier for P = 2. Steps 1; bytes per rank M/2 (barrier
0); time on a crossbar ``alpha + M/2 beta`` (barrier ``alpha``).

Open MPI (two_proc).

**All-gather through position 0.** linear: position 0 receives all blocks and sends the whole buffer to everybody. Steps
2; position 0 sends (P - 1) M; time (P - 1) (``2 alpha + (1/P + 1) M beta``).

gather-broadcast: the same along binomial trees, with L = ceil(log2 P). Steps 2 L; position 0 sends L M; time ``2 L
alpha + ((P - 1)/P + L) M beta``.

The whole buffer is broadcast, the receiver's own block included, as libraries do it. Open MPI (linear),
MVAPICH2 (gather and broadcast).

**Reduce-scatter through position 0:** reduce the whole buffer, then scatter its blocks. linear: all P - 1 others send
at once and position 0 adds what arrives in rank order; then it sends every block. Steps 2; the others send M, position
0 (P - 1)/P M; time on a crossbar (P - 1) (``2 alpha + (1 + 1/P) M beta + M gamma``).

nonoverlapping: a binomial reduction, in which position p adds what p + 1, p + 2, p + 4 .. have summed up, L =
ceil(log2 P) steps; then the same scatter. Steps L + 1; bytes as above; time ``(L + P - 1) alpha + (L + (P - 1)/P) M
beta + L M gamma``.

Both add neighbouring intervals of ranks only, so that the operator need not commute.

Open MPI (basic linear, nonoverlapping), MVAPICH2 (basic).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, pairs, whole
from coppice.planners.algorithms.parts.radix import levels, spans
from coppice.schedule.schedule import Op, Schedule


def reduce_scatter(case: AlgorithmCase) -> Schedule:
    """Send every part of a block straight to its owner."""
    moves = Moves(case, blocks(case))
    position, shift = case.positions, np.arange(1, case.size)[:, None]
    partner = (position + shift) % case.size
    moves.add(shift - 1, position, partner, partner, Op.REDUCE)
    return moves.schedule()


def pairwise_all_to_all(case: AlgorithmCase) -> Schedule:
    """Pairwise exchange by XOR, or by shifts."""
    moves = Moves(case, pairs(case))
    position, shift, size = case.positions, np.arange(1, case.size)[:, None], case.size
    partner = (position + shift) % size if size & (size - 1) else position ^ shift
    moves.add(shift - 1, position, partner, position * size + partner)
    return moves.schedule()


def in_place(case: AlgorithmCase) -> Schedule:
    """Swap in pairs, one pair after the other."""
    moves = Moves(case, pairs(case))
    low, high = np.triu_indices(case.size, 1)
    moves.add(low + high - 1, low, high, low * case.size + high)
    moves.add(low + high - 1, high, low, high * case.size + low)
    return moves.schedule()


def _of(case: AlgorithmCase, *, steps: int) -> Cost:
    time = Fraction(steps, case.size)
    return Cost.of_one_chain(
        steps=steps,
        sent=Fraction(case.size - 1, case.size),
        moved=time,
        reduced=time * case.collective.reduces,
    )


PAIRWISE = (
    Algorithm(
        name="pairwise",
        collective=Collective.REDUCE_SCATTER,
        build=reduce_scatter,
        summary="in step i every rank sends its part of a block to the owner, i ranks further",
        source="Thakur et al. 2005; MPICH, MVAPICH2",
        cost=lambda case: _of(case, steps=case.size - 1),
    ),
    Algorithm(
        name="pairwise",
        collective=Collective.ALL_TO_ALL,
        build=pairwise_all_to_all,
        summary="in step i every rank exchanges with one partner, rank xor i or i ranks further",
        source="Thakur et al. 2005; Open MPI, MPICH, MVAPICH2",
        cost=lambda case: _of(case, steps=case.size - 1),
    ),
    Algorithm(
        name="sendrecv-replace",
        collective=Collective.ALL_TO_ALL,
        build=in_place,
        summary="every pair of ranks swaps two blocks in place, in the order of the pairs",
        source="MPICH, MVAPICH2 (in-place all-to-all)",
        cost=lambda case: _of(case, steps=max(2 * case.size - 3, 0)),
    ),
)


def linear_all_to_all(case: AlgorithmCase) -> Schedule:
    """All messages at once, or in the steps of :func:`_steps`."""
    moves = Moves(case, pairs(case))
    position, size = case.positions, case.size
    target = (position + np.arange(1, size)[:, None]) % size
    moves.add(_steps(case)[:, None], position, target, position * size + target)
    return moves.schedule()


def _steps(case: AlgorithmCase) -> NDArray[np.int64]:
    """Step of the message to the next position, the one after it, and so on."""
    shift = np.arange(1, case.size)
    if "window" in case.parameters:
        return (shift - 1) // case.number("window")
    if "batch" in case.parameters:
        batch = case.number("batch")
        return shift // batch - (batch == 1)
    return shift * 0


def _linear_cost(case: AlgorithmCase) -> Cost:
    return Cost.of_one_chain(
        steps=int(_steps(case).max(initial=-1)) + 1,
        sent=Fraction(case.size - 1, case.size),
        messages=case.size - 1,
    )


LINEAR = (
    Algorithm(
        name="linear",
        collective=Collective.ALL_TO_ALL,
        build=linear_all_to_all,
        summary="every rank sends all its blocks at once",
        source="Open MPI",
        cost=_linear_cost,
    ),
    Algorithm(
        name="linear-sync",
        collective=Collective.ALL_TO_ALL,
        build=linear_all_to_all,
        summary="every rank has a limited number of messages under way",
        source="Open MPI",
        cost=_linear_cost,
        parameters={"window": AlgorithmParameter(default=4, summary="messages that a rank has under way")},
    ),
    Algorithm(
        name="scattered",
        collective=Collective.ALL_TO_ALL,
        build=linear_all_to_all,
        summary="every rank sends its blocks in batches",
        source="MPICH, MVAPICH2",
        cost=_linear_cost,
        parameters={
            "batch": AlgorithmParameter(default=32, summary="messages in a batch, that to oneself included")
        },
    ),
)


def all_gather(case: AlgorithmCase) -> Schedule:
    """Send to all P - 1 others at once."""
    moves = Moves(case, blocks(case))
    position, shift = case.positions, np.arange(1, case.size)[:, None]
    moves.add(0, position, (position + shift) % case.size, position)
    return moves.schedule()


DIRECT = Algorithm(
    name="direct",
    collective=Collective.ALL_GATHER,
    build=all_gather,
    summary="every rank sends its block to all others at once",
    source="Open MPI, MVAPICH2",
    cost=_linear_cost,
)


def two_proc(case: AlgorithmCase) -> Schedule:
    """Exchange between two ranks."""
    if case.collective is Collective.ALL_TO_ALL:
        moves = Moves(case, pairs(case))
        moves.add(0, [0, 1], [1, 0], [1, 2])
    elif case.collective is Collective.ALL_GATHER:
        moves = Moves(case, blocks(case))
        moves.add(0, [0, 1], [1, 0], [0, 1])
    else:
        moves = Moves(case, whole(case))
        moves.add(0, [0, 1], [1, 0], 0, Op.REDUCE)
    return moves.schedule()


def _two_ranks(case: AlgorithmCase) -> str | None:
    if case.size == 2:
        return None
    return f"two-proc needs exactly 2 ranks, found {case.size}: choose another algorithm."


def _two_proc_cost(case: AlgorithmCase) -> Cost:
    sent = Fraction(0) if case.collective is Collective.BARRIER else Fraction(1, 2)
    return Cost.of_one_chain(steps=1, sent=sent)


TWO_PROC = tuple(
    Algorithm(
        name="two-proc",
        collective=collective,
        build=two_proc,
        summary="two ranks exchange what they have",
        source="Open MPI",
        cost=_two_proc_cost,
        needs=_two_ranks,
    )
    for collective in (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.BARRIER)
)


def linear_all_gather(case: AlgorithmCase) -> Schedule:
    """Gather to position 0, then broadcast."""
    moves = Moves(case, blocks(case))
    others = case.positions[1:]
    moves.add(0, others, 0, others)
    moves.add(1, 0, others[:, None], case.positions)
    return moves.schedule()


def gather_broadcast(case: AlgorithmCase) -> Schedule:
    """Gather up a binomial tree, then broadcast down."""
    moves = Moves(case, blocks(case))
    distances = [distance for distance, _ in levels(case.size, 2)]
    for step, distance in enumerate(distances):
        child = np.arange(distance, case.size, 2 * distance)
        row, block = spans(child, np.minimum(distance, case.size - child))
        moves.add(step, child[row], child[row] - distance, block)
    for step, distance in enumerate(reversed(distances), start=len(distances)):
        child = np.arange(distance, case.size, 2 * distance)[:, None]
        moves.add(step, child - distance, child, case.positions)
    return moves.schedule()


def _linear_all_gather_cost(case: AlgorithmCase) -> Cost:
    others = case.size - 1
    return Cost.of_one_chain(
        steps=2, sent=Fraction(others), messages=2 * others, moved=others + Fraction(others, case.size)
    )


def _gather_broadcast_cost(case: AlgorithmCase) -> Cost:
    depth = len(levels(case.size, 2))
    moved = Fraction(case.size - 1, case.size)
    return Cost.of_one_chain(steps=2 * depth, sent=Fraction(depth), moved=depth + moved)


ALL_GATHER = (
    Algorithm(
        name="linear",
        collective=Collective.ALL_GATHER,
        build=linear_all_gather,
        summary="one rank gathers all blocks and sends the whole to each",
        source="Open MPI",
        cost=_linear_all_gather_cost,
    ),
    Algorithm(
        name="gather-broadcast",
        collective=Collective.ALL_GATHER,
        build=gather_broadcast,
        summary="blocks go up a binomial tree and the whole comes down",
        source="MVAPICH2",
        cost=_gather_broadcast_cost,
    ),
)


def linear_reduce_scatter(case: AlgorithmCase) -> Schedule:
    """Reduce to position 0, then scatter."""
    moves = Moves(case, blocks(case))
    moves.add(0, case.positions[1:, None], 0, case.positions, Op.REDUCE)
    _scatter(moves, step=1)
    return moves.schedule(ordered=True)


def nonoverlapping(case: AlgorithmCase) -> Schedule:
    """Reduce up a binomial tree, then broadcast."""
    moves = Moves(case, blocks(case))
    found = levels(case.size, 2)
    for step, (distance, _) in enumerate(found):
        child = np.arange(distance, case.size, 2 * distance)[:, None]
        moves.add(step, child, child - distance, case.positions, Op.REDUCE)
    _scatter(moves, step=len(found))
    return moves.schedule(ordered=True)


def _scatter(moves: Moves, *, step: int) -> None:
    others = moves.case.positions[1:]
    moves.add(step, 0, others, others)


def _nonoverlapping_cost(case: AlgorithmCase) -> Cost:
    depth = len(levels(case.size, 2))
    return _reduce_scatter_cost(case, reductions=depth, reduce_steps=depth)


def _reduce_scatter_cost(case: AlgorithmCase, *, reductions: int, reduce_steps: int) -> Cost:
    others = case.size - 1
    return Cost.of_one_chain(
        steps=reduce_steps + 1,
        sent=Fraction(1),
        messages=reductions + others,
        moved=reductions + Fraction(others, case.size),
        reduced=Fraction(reductions),
    )


REDUCE_SCATTER = (
    Algorithm(
        name="linear",
        collective=Collective.REDUCE_SCATTER,
        build=linear_reduce_scatter,
        summary="one rank adds the buffers of all in rank order and sends out the blocks",
        source="Open MPI",
        cost=lambda case: _reduce_scatter_cost(case, reductions=case.size - 1, reduce_steps=1),
    ),
    Algorithm(
        name="nonoverlapping",
        collective=Collective.REDUCE_SCATTER,
        build=nonoverlapping,
        summary="a binomial reduction, then a scatter",
        source="Open MPI, MVAPICH2",
        cost=_nonoverlapping_cost,
    ),
)
