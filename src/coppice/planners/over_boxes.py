"""Schedules over boxes for middle sizes: few messages in a row, and every rail of the boxes busy.

Rails join members of equal number in all boxes. Not every member need have one: a GPU whose NIC is gone takes part
through the others of its box.

**Broadcast** (and the reduction, which is its mirror). A part for each rail and each other box: the root's box sends it
to that box, which passes it on to all others while it spreads it among its members. So the root's box sends everything
once, and the others share what is left: scatter and all-gather between boxes (van de Geijn's broadcast). What is sent
last would come too late to be passed on: of the last segments the root's box sends all parts to all boxes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.boxes import equal_boxes
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.ordering import without_steps
from coppice.schedule.schedule import Op, Schedule, routed
from coppice.topology.model import Topology
from coppice.topology.routing import Router

_LEVELS = 4
"""Transfers of a part that follow each other at most: to a rail, to a box, to another one, to the members."""


@lru_cache(maxsize=8)
def rails(topology: Topology) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]] | None:
    """Boxes of equal numbers of ranks, and the numbers of members that reach those of equal number in all other boxes.

    None where there are no such boxes, or no rails.

    Examples:
        >>> from coppice.topology.operations import remove_nodes
        >>> from coppice.topology.presets import preset
        >>> rails(remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"]))[1]
        (1, 2, 3, 4, 5, 6, 7)
    """
    boxes = equal_boxes(topology)
    if boxes is None:
        return None
    router = Router(topology)

    def joins(member: int) -> bool:
        ends = [box[member] for box in boxes]
        try:
            for one in ends:
                for other in ends:
                    if one != other:
                        router.path(one, other)
        except UnreachableError:
            return False
        return True

    found = tuple(member for member in range(len(boxes[0])) if joins(member))
    return (boxes, found) if found else None


def spread_over_boxes(
    problem: Problem, *, segments: int, direct: int, apart: bool = False
) -> Schedule | None:
    """A broadcast or a reduction in which boxes pass on parts to each other; None where there are no rails.

    Args:
        segments: Pieces that follow each other, 1 or more.
        direct: The last of them, which the root's box sends to all boxes itself: 0 or more.
        apart: Take each rank for a box of its own, of ranks that all reach each other.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = spread_over_boxes(Problem(preset("dgx-a100", boxes=4), "broadcast", root=0), segments=2, direct=1)
        >>> found.num_chunks, found.num_transfers == found.num_chunks * 31
        (48, True)
    """
    topology = problem.topology
    joined = (tuple((rank,) for rank in range(topology.num_ranks)), (0,)) if apart else rails(topology)
    rooted = problem.collective in (Collective.BROADCAST, Collective.REDUCE)
    if joined is None or not rooted or problem.root is None or (apart and topology.num_ranks < 3):
        return None
    boxes, members = joined
    case = AlgorithmCase(topology=problem.topology, collective=problem.collective, root=problem.root)
    home = next(box for box in boxes if problem.root in box)
    away = [box for box in boxes if box is not home]
    parts = len(away) * len(members)
    rows = [
        (segment * _LEVELS + level, src, dst, segment * parts + number)
        for segment in range(segments)
        for number, (to, member) in enumerate((to, member) for to in away for member in members)
        for level, src, dst in _tree(
            home, away, problem.root, member, None if segment >= segments - direct else to, turn=number
        )
    ]
    step, src, dst, chunk = (list(column) for column in zip(*rows, strict=True))
    moves = Moves(case, whole(case, parts * segments))
    if problem.collective is Collective.BROADCAST:
        moves.add(step, src, dst, chunk)
    else:
        last = max(step)
        moves.add([last - each for each in step], dst, src, chunk, Op.REDUCE)
    return routed_or_none(without_steps(moves.schedule()))


def _tree(
    home: Sequence[int],
    away: Sequence[Sequence[int]],
    root: int,
    member: int,
    through: Sequence[int] | None,
    *,
    turn: int,
) -> list[tuple[int, int, int]]:
    """Level, sender and receiver of each transfer of a part: on one rail, over one box or straight to all."""
    hub = home[member]
    found = [(0, root, hub)] if hub != root else []
    if through is None:
        found += [(1, hub, box[member]) for box in away]
    else:
        found += [(1, hub, through[member])]
        found += [(2, through[member], box[member]) for box in away if box is not through]
    inside, level = [rank for rank in home if rank not in (root, hub)], 1
    if hub == root and inside:  # it sends each part once in its box, too
        hub = inside.pop(turn % len(inside))
        found.append((0, root, hub))
    found += [(level, hub, rank) for rank in inside]
    for box in away:
        level = 2 if through is None or box is through else 3
        found += [(level, box[member], rank) for rank in box if rank != box[member]]
    return found


def routed_or_none(schedule: Schedule) -> Schedule | None:
    """The schedule with its routes; None where members of a box do not reach each other."""
    try:
        return routed(schedule)
    except UnreachableError:
        return None


SEGMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of segments that are worth a trial."""

MOST_DIRECT = 2


def shapes(ranks: int, most_rows: int) -> list[tuple[int, int]]:
    """Numbers of segments, and of those among them that go straight to all boxes; the fewest transfers first.

    >>> shapes(16, 100)
    [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2), (6, 0), (6, 1), (6, 2)]
    """
    fitting = [each for each in SEGMENTS if each * ranks <= most_rows]
    return [(each, direct) for each in fitting for direct in range(min(each, MOST_DIRECT) + 1)]
