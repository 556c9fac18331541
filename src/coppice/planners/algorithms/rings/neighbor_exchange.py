"""All-gather by exchanging with the left and the right neighbour in turn, for an even number of ranks.

Positions 2m and 2m + 1 exchange their blocks first. Then every position exchanges, with the other neighbour and the
first one alternately, the two blocks that it got last; in the beginning, those of its pair.

Steps P/2; bytes per rank (P - 1)/P M; time on a crossbar ``P/2 alpha + (P - 1)/P M beta``. Libraries use a ring where
P is odd.

Chen, Zhang, Zhang, Yuan, "Performance evaluation of allgather algorithms on terascale Linux cluster with fast
Ethernet", HPC Asia 2005; Open MPI.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import EVEN, Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def all_gather(case: Case) -> Schedule:
    """Pairs of blocks travel outwards in both directions."""
    moves = Moves(case, blocks(case))
    position, size = case.positions, case.size
    if size == 1:
        return moves.schedule()
    outward = np.where(position % 2 == 0, 1, -1)  # towards the other half of the pair
    moves.add(0, position, position + outward, position)
    newest = position - position % 2
    both = np.arange(2)
    for step in range(1, size // 2):
        partner = (position + (outward if step % 2 == 0 else -outward)) % size
        moves.add(step, position[:, None], partner[:, None], newest[:, None] + both)
        newest = newest[partner]
    return moves.schedule()


def _cost(case: Case) -> Cost:
    moved, steps = Fraction(case.size - 1, case.size), case.size // 2
    chains = (Chain(messages=steps, sent=moved),) if steps else ()
    return Cost(steps=steps, sent=moved, chains=chains)


ALGORITHMS = (
    Algorithm(
        name="neighbor-exchange",
        collective=Collective.ALL_GATHER,
        build=all_gather,
        summary="neighbours to the left and right exchange the two newest blocks in turn",
        source="Chen et al., HPC Asia 2005; Open MPI",
        cost=_cost,
        ranks=EVEN,
    ),
)
