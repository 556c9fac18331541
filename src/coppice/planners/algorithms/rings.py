"""Ring algorithms: ring, segmented ring, neighbour exchange, and the rings of NCCL, fitted to the topology.

**ring:** every position sends to the next, block after block. All-gather: in step s position p passes on block p - s,
which it got in the step before. Reduce-scatter: in step s position p sends its partial sum of block p - 1 - s, and adds
what arrives, so that block p is complete at position p. All-reduce: a reduce-scatter, then an all-gather of what it
left.

Steps P - 1 (all-reduce 2 (P - 1)); bytes per rank (P - 1)/P M (twice that); time on a crossbar the same number of
``alpha + M/P beta``, and ``M/P gamma`` in every step that adds.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009, section 3; Open
MPI, MPICH, MVAPICH2 and NCCL have it.

**segmented-ring:** the reduce-scatter runs in phases, so that a rank can add one part while the next arrives. Every
block is cut into S ``segments``. In phase j, the ring's reduce-scatter runs for segment j of all blocks; then one
all-gather brings the finished blocks around.

Steps (S + 1) (P - 1); time on a crossbar ``(P - 1) ((S + 1) alpha + 2 M/P beta + M/P gamma)``, as the model's receive
engine does not take in data while it adds; bytes per rank 2 (P - 1)/P M.

Open MPI (``ring_segmented``).

**neighbor-exchange:** exchanges with the left and the right neighbour in turn, for an even P. Positions 2m and 2m + 1
exchange their blocks first. Then every position exchanges, with the other neighbour and the first one alternately, the
two blocks that it got last; in the beginning, those of its pair.

Steps P/2; bytes per rank (P - 1)/P M; time on a crossbar ``P/2 alpha + (P - 1)/P M beta``. Libraries use a ring where
P is odd.

Chen, Zhang, Zhang, Yuan, "Performance evaluation of allgather algorithms on terascale Linux cluster with fast
Ethernet", HPC Asia 2005; Open MPI.

**nccl-ring:** one ring for each channel, each with a part of every block. The rings visit box after box and enter and
leave each box at other ranks than the other rings do, so that every NIC and rail carries the same. Without boxes,
channels alternate between the order of the ranks and its reverse. All-gather, reduce-scatter and all-reduce are those
of ``ring``; broadcast and reduce are chains around the ring from or to the root, with ``segments`` that follow each
other.

Steps P - 1 (all-reduce 2 (P - 1), chains P - 2 + S with S segments); bytes per rank (P - 1)/P M (twice that; M). With
one channel the time on a crossbar is as many ``alpha``, these bytes ``beta`` and (P - 1)/P M ``gamma`` where it adds;
chains take (P - 2 + S) times ``alpha + M/S beta`` (``+ M/S gamma``). Rings in both directions send two messages a step,
one after the other, for P > 2 and rings.

NCCL 2.30, src/graph/rings.cc and src/device; the choice of ranks is ours. NCCL searches it: what its search finds is
given as ``rings``, of which ``channels`` take one after the other.

**patarasuk-yuan:** the contention-free ring on a tree of switches. The machines of a switched tree are numbered as a
depth-first walk from a switch meets them. A ring in that order crosses every link at most once in each direction in a
step, so that all messages run at full rate, and the ring algorithms reach the bandwidth bound of every such tree with
equal links. They are those of ``ring``, with its steps, bytes and time.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009, section 4.

**best-ring:** the rings that a search finds for the topology, with the shares of the data that suit them best. Rings
visit every rank once, along routes of their own; several of them share the work by exact weights. The result is the
chains of blocks along these rings, as trees with paths: P - 1 hops for all-gather, reduce-scatter, broadcast and
reduce, 2 (P - 1) for all-reduce. What a rank sends and how long it takes depend on the topology.

The search is that of :mod:`coppice.planners.ring.best`.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import EVEN, SEGMENTS, Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.boxes import equal_boxes, in_order
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.found_orders import by_nics, found_orders
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.algorithms.parts.orders import box_rings, depth_first
from coppice.planners.ring.best import RingPlan, best_ring, ring_forest
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Op, Schedule, in_pieces
from coppice.topology.model import Topology


def all_gather(case: AlgorithmCase) -> Schedule:
    """Ring all-gather."""
    moves = Moves(case, blocks(case))
    _gather(moves, first_step=0)
    return moves.schedule()


def reduce_scatter(case: AlgorithmCase) -> Schedule:
    """Ring reduce-scatter."""
    moves = Moves(case, blocks(case))
    _reduce(moves)
    return moves.schedule()


def all_reduce(case: AlgorithmCase) -> Schedule:
    """Ring reduce-scatter, then ring all-gather."""
    moves = Moves(case, blocks(case))
    _reduce(moves)
    _gather(moves, first_step=case.size - 1)
    return moves.schedule()


def _reduce(moves: Moves) -> None:
    case = moves.case
    position, size = case.positions, case.size
    for step in range(size - 1):
        moves.add(step, position, (position + 1) % size, (position - 1 - step) % size, Op.REDUCE)


def _gather(moves: Moves, *, first_step: int) -> None:
    case = moves.case
    position, size = case.positions, case.size
    for step in range(size - 1):
        moves.add(first_step + step, position, (position + 1) % size, (position - step) % size)


RING = tuple(
    Algorithm(
        name="ring",
        collective=collective,
        build=build,
        summary="every rank sends to the next, block after block",
        source="Patarasuk and Yuan, JPDC 2009; Open MPI, MPICH, MVAPICH2, NCCL",
        cost=lambda case: Cost.of_phases(case.collective, case.size, case.size - 1),
    )
    for collective, build in (
        (Collective.ALL_GATHER, all_gather),
        (Collective.REDUCE_SCATTER, reduce_scatter),
        (Collective.ALL_REDUCE, all_reduce),
    )
)


def segmented(case: AlgorithmCase) -> Schedule:
    """Segmented ring, phase by phase."""
    size, segments = case.size, case.number("segments")
    moves = Moves(case, blocks(case, segments))
    position = case.positions
    following = (position + 1) % size
    for phase in range(segments):
        for step in range(size - 1):
            block = (position - 1 - step) % size
            moves.add(phase * (size - 1) + step, position, following, block * segments + phase, Op.REDUCE)
    for step in range(size - 1):
        block = ((position - step) % size)[:, None]
        moves.add(
            segments * (size - 1) + step,
            position[:, None],
            following[:, None],
            block * segments + np.arange(segments),
        )
    return moves.schedule()


def _segmented_cost(case: AlgorithmCase) -> Cost:
    size, segments = case.size, case.number("segments")
    steps = (segments + 1) * (size - 1)
    moved = Fraction(size - 1, size)
    return Cost.of_one_chain(steps=steps, sent=2 * moved, reduced=moved)


SEGMENTED = Algorithm(
    name="segmented-ring",
    collective=Collective.ALL_REDUCE,
    build=segmented,
    summary="the ring, whose reduce-scatter runs in phases of a segment each",
    source="Open MPI",
    cost=_segmented_cost,
    parameters={"segments": SEGMENTS},
)


def neighbor_exchange(case: AlgorithmCase) -> Schedule:
    """Neighbour exchange: pairs of blocks travel in both directions."""
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


NEIGHBOR_EXCHANGE = Algorithm(
    name="neighbor-exchange",
    collective=Collective.ALL_GATHER,
    build=neighbor_exchange,
    summary="neighbours to the left and right exchange the two newest blocks in turn",
    source="Chen et al., HPC Asia 2005; Open MPI",
    cost=lambda case: Cost.of_phases(case.collective, case.size, case.size // 2),
    ranks=EVEN,
)


def _channels(case: AlgorithmCase) -> int:
    found = equal_boxes(case.topology)
    return case.number("channels") or (1 if found is None else len(found[0]))


def _rings(case: AlgorithmCase) -> list[np.ndarray]:
    """Order of the positions (which are ranks) for every channel."""
    given = found_orders(case, "rings")
    if given:
        return [given[channel % len(given)].ranks for channel in range(case.number("channels") or len(given))]
    channels = _channels(case)
    found = equal_boxes(case.topology)
    if found is None and case.order is not None:
        order = np.array(case.order)
        return [order[::-1] if channel % 2 else order for channel in range(channels)]
    return [np.array(ring) for ring in box_rings(case.topology, channels)]


def _nccl_ring(case: AlgorithmCase) -> Schedule:
    rings = _rings(case)
    case = in_order(case, tuple(range(case.size)))
    moves = Moves(case, blocks(case, len(rings)))
    steps = case.size - 1
    reduces = case.collective.reduces
    at = np.arange(case.size)
    for step in range(steps):
        for channel, ring in enumerate(rings):
            onward = np.roll(ring, -1)
            if reduces:
                chunk = ring[at - 1 - step] * len(rings) + channel
                moves.add(step, ring, onward, chunk, Op.REDUCE)
            if case.collective is not Collective.REDUCE_SCATTER:
                chunk = ring[at - step] * len(rings) + channel
                moves.add(step + steps * reduces, ring, onward, chunk)
    return _by_its_nics(case, moves.schedule())


def _build_chain(case: AlgorithmCase) -> Schedule:
    rings = _rings(case)
    case = in_order(case, tuple(range(case.size)))
    moves = Moves(case, whole(case, len(rings)))
    steps = np.arange(case.size - 1)
    for channel, ring in enumerate(rings):
        from_root = np.roll(ring, -ring.tolist().index(case.root))
        if case.collective is Collective.BROADCAST:
            moves.add(steps, from_root[:-1], from_root[1:], channel)
        else:
            to_root = np.append(from_root[1:], case.root)
            moves.add(steps, to_root[:-1], to_root[1:], channel, Op.REDUCE)
    return in_pieces(_by_its_nics(case, moves.schedule()), case.number("segments"))


def _by_its_nics(case: AlgorithmCase, schedule: Schedule) -> Schedule:
    """The schedule by the NICs of given rings."""
    given = found_orders(case, "rings")
    if not given:
        return schedule
    channels = case.number("channels") or len(given)
    return by_nics(
        schedule,
        [
            given[each % len(given)].nics[np.argsort(given[each % len(given)].ranks)]
            for each in range(channels)
        ],
    )


def _nccl_cost(case: AlgorithmCase) -> Cost:
    ways = 2 if _uniform(case) > 1 and case.size > 2 else 1
    return Cost.of_phases(case.collective, case.size, case.size - 1, ways=ways)


def _cost_of_chain(case: AlgorithmCase) -> Cost:
    if _uniform(case) > 1:
        raise InputError(
            "expected one channel: the cost of chains in both directions has no closed form; set `channels=1`."
        )
    segments = case.number("segments")
    steps = case.size - 2 + segments if case.size > 1 else 0
    moved = Fraction(steps, segments)
    return Cost.of_one_chain(
        steps=steps, sent=Fraction(1), moved=moved, reduced=moved * case.collective.reduces
    )


def _unfit_rings(case: AlgorithmCase) -> str | None:
    ranks = list(range(case.size))
    for ring in found_orders(case, "rings"):
        if sorted(ring.ranks.tolist()) != ranks:
            return (
                f"nccl-ring expects rings over all {case.size} ranks, found {','.join(map(str, ring.ranks.tolist()))}: "
                "give each rank once."
            )
    return None


def _uniform(case: AlgorithmCase) -> int:
    """Number of channels on a network without boxes."""
    if case.parameters["rings"]:
        raise InputError("expected rings of our own: the cost of given ones depends on where they run.")
    channels = _channels(case)
    if channels > 1 and equal_boxes(case.topology) is not None:
        raise InputError(
            "expected a uniform crossbar, found boxes: simulate the schedule, or set `channels=1`."
        )
    return channels


COLLECTIVES = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.BROADCAST,
    Collective.REDUCE,
)
"""What rings with channels of their own perform."""

_CHANNELS = AlgorithmParameter(default=0, least=0, summary="rings; 0: as many as ranks of a box, else 1")

_RINGS = AlgorithmParameter(
    default="", summary="rings that a library found, as 0,1,2,3;0,3,2,1; without: ours, over all NICs evenly"
)

_SEGMENTS = AlgorithmParameter(default=1, summary="pieces that follow each other")

NCCL = tuple(
    Algorithm(
        name="nccl-ring",
        collective=collective,
        build=_build_chain if collective.rooted else _nccl_ring,
        summary="a ring per channel through box after box, on other ranks and rails each",
        source="NCCL 2",
        cost=_cost_of_chain if collective.rooted else _nccl_cost,
        needs=_unfit_rings,
        parameters={"channels": _CHANNELS, "rings": _RINGS}
        | ({"segments": _SEGMENTS} if collective.rooted else {}),
        topological=True,
    )
    for collective in COLLECTIVES
)


def _tree_of_switches(case: AlgorithmCase) -> str | None:
    topology = case.topology
    if case.size == 1:
        return None
    pairs = {
        (min(a, b), max(a, b)) for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    }
    one_way = [(a, b) for a, b in pairs if not {(a, b), (b, a)} <= topology.link_index.keys()]
    ids = topology.node_ids
    if one_way:
        found = f"the one-way link between {ids[one_way[0][0]]} and {ids[one_way[0][1]]}"
    elif len(pairs) != topology.num_nodes - 1 or not _connected(topology):
        found = f"{topology.num_nodes} nodes and {len(pairs)} cables"
    elif inner := [node for node in topology.rank_nodes.tolist() if sum(node in pair for pair in pairs) > 1]:
        found = f"more than one cable at rank {topology.rank[inner[0]]}"
    else:
        return None
    return (
        f"patarasuk-yuan needs ranks that hang on a tree of switches, found {found} on {topology.name}: "
        "choose `ring` with `order=topology`."
    )


def _connected(topology: Topology) -> bool:
    reached, todo = {0}, [0]
    onward: dict[int, list[int]] = {}
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        onward.setdefault(a, []).append(b)
    while todo:
        fresh = [b for b in onward.get(todo.pop(), ()) if b not in reached]
        reached.update(fresh)
        todo += fresh
    return len(reached) == topology.num_nodes


def _entry(entry: Algorithm) -> Algorithm:
    def build(case: AlgorithmCase) -> Schedule | Forest:
        return entry.build(in_order(case, depth_first(case.topology)))

    return replace(
        entry,
        name="patarasuk-yuan",
        build=build,
        needs=_tree_of_switches,
        summary="the ring in depth-first order on a tree of switches: no link is crossed twice",
        source="Patarasuk and Yuan, JPDC 2009",
        topological=True,
    )


PATARASUK_YUAN = tuple(_entry(entry) for entry in RING)


@lru_cache(maxsize=4)
def _fitted_rings(topology: Topology, collective: Collective, root: int | None) -> RingPlan | None:
    return best_ring(Problem(topology=topology, collective=collective, root=root))


def _best_ring(case: AlgorithmCase) -> Schedule | Forest:
    if case.size == 1:
        return Moves(case, whole(case) if case.collective.rooted else blocks(case)).schedule()
    root = None
    if case.root >= 0:
        root = case.root if case.order is None else case.order[case.root]
    found = _fitted_rings(case.topology, case.collective, root)
    if found is None:
        raise UnreachableError(
            f"best-ring found no ring through all ranks of {case.topology.name} whose hops pass no other rank: "
            "choose `forest`, or `ring` with `relay_gpus`."
        )
    return ring_forest(found)


BEST_RING = tuple(
    Algorithm(
        name="best-ring",
        collective=collective,
        build=_best_ring,
        summary="the best rings that a search finds, with exact shares and routes",
        source="rings in the manner of NCCL, searched with exact prices",
        topological=True,
    )
    for collective in COLLECTIVES
)
