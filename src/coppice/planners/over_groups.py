"""Broadcasts over groups of ranks that switches join closely, such as those of a dragonfly, for middle sizes.

Theory. Where every rank has one port, a broadcast of M bytes at rate b takes M / b and the time in which ports have
nothing to send: until data have come to their ranks, and after the root has sent what is last. So every rank has to
send as much as it receives, the way from the root to any rank has to be short in messages and in what each of these
waits for, and narrow links between groups have to carry each byte once. A chunk goes from the root to a *hub*, from
there to one *delegate* in every other group, and hubs and delegates hand it out in their groups. With g groups of m
ranks that is three messages, of which the last one begins no later than g + 2 m chunks take after the first, where a
hub that sends to all ranks itself would take g m. Ranks of a group take turns as hubs and as delegates: the one that
has least to send so far.

A reduction is the mirror of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.ordering import without_steps
from coppice.schedule.schedule import Op, Schedule, routed
from coppice.topology.model import Topology

_LEVELS = 3


@lru_cache(maxsize=8)
def switch_groups(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Ranks in groups that hang together without the narrow links between switches; none where there are no such.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> switch_groups(preset("dragonfly", groups=3, routers_per_group=2, gpus_per_router=1))
        ((0, 1), (2, 3), (4, 5))
        >>> switch_groups(preset("star", gpus=4))
        ()
    """
    switch = topology.rank < 0
    between = switch[topology.src] & switch[topology.dst]
    widest = topology.capacity[between].max(initial=0)
    kept = ~between | (topology.capacity == widest)
    part = np.arange(topology.num_nodes)
    before = None
    while before is None or (before != part).any():  # the least node of each part
        before = part.copy()
        for one, other in ((topology.src, topology.dst), (topology.dst, topology.src)):
            np.minimum.at(part, other[kept], before[one[kept]])
    of_rank = part[topology.rank_nodes]
    groups = tuple(tuple(np.flatnonzero(of_rank == each).tolist()) for each in np.unique(of_rank))
    return groups if len(groups) > 1 and min(map(len, groups)) > 1 else ()


def shared_over_groups(problem: Problem, *, chunks: int) -> Schedule | None:
    """A broadcast or a reduction in which all ranks pass on alike; None where there are no groups.

    Args:
        chunks: Pieces of the message, 1 or more.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> dragonfly = preset("dragonfly", groups=3, routers_per_group=2, gpus_per_router=1)
        >>> found = shared_over_groups(Problem(dragonfly, "broadcast", root=0), chunks=10)
        >>> found.num_transfers, np.bincount(found.src).tolist()
        (50, [10, 8, 8, 8, 9, 7])
    """
    groups = switch_groups(problem.topology)
    rooted = problem.collective in (Collective.BROADCAST, Collective.REDUCE)
    if not groups or not rooted or problem.root is None:
        return None
    case = AlgorithmCase(topology=problem.topology, collective=problem.collective, root=problem.root)
    rows = sorted(_sends(groups, problem.root, chunks))
    step, src, dst, chunk = (list(column) for column in zip(*rows, strict=True))
    moves = Moves(case, whole(case, chunks))
    if problem.collective is Collective.BROADCAST:
        moves.add(step, src, dst, chunk)
    else:
        last = max(step)
        moves.add([last - each for each in step], dst, src, chunk, Op.REDUCE)
    try:
        return routed(without_steps(moves.schedule()))
    except UnreachableError:
        return None


def _sends(
    groups: tuple[tuple[int, ...], ...], root: int, chunks: int
) -> Iterator[tuple[int, int, int, int]]:
    """Step, sender, receiver and chunk of each transfer."""
    away = [[rank for rank in group if rank != root] for group in groups]
    sends = dict.fromkeys((rank for group in away for rank in group), 0)
    for chunk in range(chunks):
        turn, place = divmod(chunk, len(away))
        chosen = [_idlest(group, sends, turn) for group in away]
        hub = away[place][chosen[place]]
        yield chunk * _LEVELS, root, hub, chunk
        for number in range(len(away)):
            group = away[(place + number) % len(away)]
            first = chosen[(place + number) % len(away)]
            delegate = group[first]
            if delegate != hub:
                yield chunk * _LEVELS + 1, hub, delegate, chunk
            for i in range(1, len(group)):
                yield chunk * _LEVELS + 2, delegate, group[(first + i) % len(group)], chunk
            sends[delegate] += len(group) - 1
        sends[hub] += len(away) - 1


def _idlest(group: list[int], sends: dict[int, int], turn: int) -> int:
    """Place in a group of the rank that has least to send, of equals the next one in turn."""
    return min(range(len(group)), key=lambda i: (sends[group[i]], (i - turn) % len(group)))
