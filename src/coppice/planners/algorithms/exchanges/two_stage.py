"""All-to-all of unequal blocks between boxes, in two stages: inside boxes, and along rails between them.

A rail joins the ranks that have the same place in their boxes. A block goes over the links of its box to some rail,
along it, and over the links of the other box to its receiver; what one box has for another (a tile) may be dealt to the
rails in any way, and that decides which NIC is the last to be done. With D(s, t) the bytes of a tile and W rails of
rate b, no exchange takes less than ``max over s of sum over t of D(s, t) / (W b)``, and the same for receivers.

two-stage: the same on every rail, over the rails of sender and receiver while these have room, and then, where links
inside boxes are the limit, moved back until all links are busy alike (``coppice.bounds.all_to_all.two_stage``).

fast: the same on every rail; every sender keeps what it can, gives the rest to members that have less, and what arrives
is passed on. Its rounds between boxes (a Birkhoff decomposition) are left to the order of rows. FAST, arXiv 2505.09764,
section 4.

sabre: where the busiest NIC has more than ``ratio`` percent of what NICs have on average, every block over all rails
alike; else over the rail of the receiver. SABRE, ICS 2026; the ratio is ours.

direct: every block by its direct route, or over the rail of its receiver where rails are apart, as NCCL does (PXN).
"""

from __future__ import annotations

import numpy as np

from coppice.bounds.all_to_all.two_stage import Deal, boxes_with_hops, two_stages
from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.moves import Moves, pairs
from coppice.planners.two_stage import split_schedule
from coppice.schedule.schedule import Schedule


def _dealt(case: AlgorithmCase, deal: Deal | None) -> Schedule:
    ranks = case.size
    weight = pairs(case).slot_weight
    demand = weight.reshape(ranks, ranks).copy()
    np.fill_diagonal(demand, 0)
    common = int(np.gcd.reduce(demand, axis=None)) or 1
    split = two_stages(case.topology, demand // common, deal=deal)
    if split is None:  # nothing leaves its rank
        return Moves(case, pairs(case)).schedule()
    return split_schedule(case.topology, split, weight)


def _sabre(case: AlgorithmCase) -> Schedule:
    """Even shares of the rails where NICs differ much, else the rails of the receivers."""
    boxes = boxes_with_hops(case.topology)
    assert boxes is not None  # as `needs` found
    table = pairs(case).slot_weight.reshape(case.size, case.size)
    place = np.empty(case.size, dtype=np.int64)
    place[boxes.order] = np.arange(case.size) // boxes.width
    leaving = np.where(place[:, None] != place[None, :], table, 0)
    loads: list[int] = [*leaving.sum(axis=1).tolist(), *leaving.sum(axis=0).tolist()]
    skewed = 100 * max(loads) * len(loads) > case.number("ratio") * sum(loads)
    return _dealt(case, Deal.EVEN if skewed else Deal.TARGET)


def _direct(case: AlgorithmCase) -> Schedule:
    """Every block straight to its receiver."""
    if boxes_with_hops(case.topology) is not None:
        return _dealt(case, Deal.DIRECT)
    moves = Moves(case, pairs(case))
    position, size = case.positions, case.size
    target = (position + np.arange(1, size)[:, None]) % size
    moves.add(0, position, target, position * size + target)
    return moves.schedule()


def _needs(case: AlgorithmCase) -> str | None:
    if boxes_with_hops(case.topology) is not None:
        return None
    return (
        "two stages need several boxes with equally many ranks and routes along rails between them, found "
        f"{case.topology.name}: plan with `algorithm=flow`, or take `direct`."
    )


TWO_STAGE = (
    Algorithm(
        name="two-stage",
        collective=Collective.ALL_TO_ALL,
        build=lambda case: _dealt(case, None),
        summary="blocks are dealt to rails so that all links are busy alike, inside boxes and between them",
        source="this package; bound and ways as of cpp/two_stage",
        needs=_needs,
        topological=True,
    ),
    Algorithm(
        name="fast",
        collective=Collective.ALL_TO_ALL,
        build=lambda case: _dealt(case, Deal.KEPT),
        summary="a box evens out what its members have for another box, which goes along rails and is passed on",
        source="FAST, arXiv 2505.09764",
        needs=_needs,
        topological=True,
    ),
    Algorithm(
        name="sabre",
        collective=Collective.ALL_TO_ALL,
        build=_sabre,
        summary="under much skew every block over all rails alike, else over the rail of its receiver",
        source="SABRE, ICS 2026",
        needs=_needs,
        topological=True,
        parameters={
            "ratio": AlgorithmParameter(
                default=150,
                least=100,
                summary="percent of the average that the busiest NIC may have without skew",
            )
        },
    ),
    Algorithm(
        name="direct",
        collective=Collective.ALL_TO_ALL,
        build=_direct,
        summary="every block by its direct route, or over the rail of its receiver where rails are apart",
        source="NCCL (PXN), Open MPI",
        topological=True,
    ),
)
