"""K-grouped all-reduce: rings of k ranks, a ring of their masters, rings of k ranks.

(1) Every group of k consecutive positions reduces to its first one, the master: a ring reduce-scatter, then the master
gathers the k parts. (2) The P/k masters all-reduce around a ring. (3) Every master hands the result to its group: it
scatters k parts, and a ring all-gather completes them.

Each half of (1) and of (3) takes k - 1 steps and (2) takes 2 (P/k - 1), together 4 (k - 1) + 2 (P/k - 1): 186 for
P = 1024 and k = 16, where one ring needs 2046. The price is bytes: a master sends (k - 1)/k M in the reduce-scatter,
as much in the scatter and in the all-gather, where it is sent nothing, and 2 (P/k - 1) k/P M in between.

Time on a crossbar: the steps above ``alpha``; ``4 (k - 1)/k + 2 (P/k - 1) k/P`` M ``beta``;
``(k - 1)/k + (P/k - 1) k/P`` M ``gamma``: the master takes part in every step.

Jia et al., "Highly scalable deep learning training system with mixed-precision", arXiv 1807.11205.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import GROUP, Algorithm, AlgorithmCase, divides
from coppice.planners.algorithms.parts.boxes import grouped
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.schedule.schedule import Op, Schedule


def _build(case: AlgorithmCase) -> Schedule:
    case, k = grouped(case, case.number("k"))
    groups = case.size // k
    parts = lcm(k, groups)
    moves = Moves(case, whole(case, parts))
    members = case.positions.reshape(groups, k)
    masters = members[:, :1].T
    step = _ring(moves, members, 0, Op.REDUCE)
    for member in range(1, k):
        _part(moves, step, members[:, member], members[:, 0], member, k)
        step += 1
    step = _ring(moves, masters, step, Op.REDUCE)
    step = _ring(moves, masters, step, Op.COPY)
    for member in range(1, k):
        _part(moves, step, members[:, 0], members[:, member], member, k)
        step += 1
    _ring(moves, members, step, Op.COPY, whole_at_first=True)
    return moves.schedule()


def _ring(moves: Moves, rings: np.ndarray, first_step: int, op: Op, *, whole_at_first: bool = False) -> int:
    """Reduce-scatter or all-gather around every row of ``rings``; the step after it.

    Either begins or ends with part j at member j. A first member that has everything already is sent nothing.
    """
    size = int(rings.shape[1])
    lag = 1 if op is Op.REDUCE else 0
    for step in range(size - 1):
        for member in range(size - whole_at_first):
            part = (member - lag - step) % size
            _part(moves, first_step + step, rings[:, member], rings[:, (member + 1) % size], part, size, op)
    return first_step + size - 1


def _part(
    moves: Moves, step: int, src: np.ndarray, dst: np.ndarray, part: int, parts: int, op: Op = Op.COPY
) -> None:
    """Part ``part`` of ``parts`` of the buffer, from each of ``src`` to its ``dst``."""
    width = moves.layout.parts // parts
    chunk = part * width + np.arange(width)
    moves.add(step, src[:, None], dst[:, None], chunk[None, :], op)


def _cost(case: AlgorithmCase) -> Cost:
    case, k = grouped(case, case.number("k"))
    groups = case.size // k
    steps = 4 * (k - 1) + 2 * (groups - 1)
    inner, outer = 1 - Fraction(1, k), 1 - Fraction(1, groups)
    # The master sends no gather; it scatters instead.
    return Cost.of_one_chain(
        steps=steps, sent=3 * inner + 2 * outer, moved=4 * inner + 2 * outer, reduced=inner + outer
    )


ALGORITHMS = Algorithm(
    name="k-grouped",
    collective=Collective.ALL_REDUCE,
    build=_build,
    summary="ring reduce in groups of k, ring all-reduce of their masters, broadcast in the groups",
    source="Jia et al., arXiv 1807.11205",
    cost=_cost,
    needs=divides("k-grouped", "k", "a k that divides"),
    parameters={"k": GROUP},
    topological=True,
)
