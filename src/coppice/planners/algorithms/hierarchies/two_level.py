"""Two levels of one's own choice: one pattern inside boxes and another one between them.

Groups are runs of g positions, m = P/g of them, and members of equal number in all groups are on one rail.

**All-gather, reduce-scatter, all-reduce:** a reduce-scatter inside the groups, then one among members of equal number,
each on the g-th part that it has left; the all-gather is the mirror. Inside and between, a pattern is ``direct``, every
member to every other in turn, ``ring``, or ``circulant``, in the fewest steps for any number. Rings on both levels are
``2d-torus``, and direct exchanges on both ``plink``. In an all-reduce a level may be ``at-once``, direct exchanges in a
single step, or ``whole``: its members send each other all that they have left, and add it, in one step and without an
all-gather. With both levels whole it is recursive multiplying (Ruefenacht, Bull and Booth 2017) with the sizes of the
levels as radices: the fewest hops.

Steps of a phase: g - 1 or ceil(lg g), and m - 1 or ceil(lg m); bytes per rank (P - 1)/P M a phase; time on a crossbar:
the steps ``alpha``, these bytes ``beta``, plus (P - 1)/P M ``gamma`` where it adds.

**Broadcast and reduce:** the root hands each member of its group one of g parts; every member passes its part on to the
members of equal number in all groups, along a binomial tree or a chain, so that all rails carry the same; then each
group gathers the parts, directly, around a ring or on a circulant graph. The reduction is the mirror. ``segments`` of
the parts follow each other one step apart.

Steps 1 + ceil(lg m) or m - 1, + 1, g - 1 or ceil(lg g), + S - 1 with S segments, without the steps of a level of one
member; bytes between groups M/g for each member and child.

Ueno and Yokota, "Exhaustive study of hierarchical allreduce patterns for large messages between GPUs", CCGRID 2019, for
all-reduces. Scatter and all-gather make van de Geijn's broadcast (InterCom, 1994); the trees on rails between them are
ours.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import GROUP, Algorithm, AlgorithmCase, AlgorithmParameter, divides
from coppice.planners.algorithms.exchanges.circulant import skips
from coppice.planners.algorithms.hierarchies.levels import Level, Pattern, build_levels, cost_of_levels
from coppice.planners.algorithms.parts.boxes import grouped
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.schedule.schedule import Op, Schedule, in_pieces

_PATTERNS = {"direct": Pattern.DIRECT, "ring": Pattern.RING, "circulant": Pattern.CIRCULANT}
_SUMMING = {**_PATTERNS, "at-once": Pattern.AT_ONCE, "whole": Pattern.WHOLE}


def _levels(case: AlgorithmCase) -> tuple[AlgorithmCase, tuple[Level, ...]]:
    inside, between = (_SUMMING[str(case.parameters[name])] for name in ("inside", "between"))
    case, group = grouped(case, case.number("group"))
    return case, (Level(group, inside), Level(case.size // group, between))


def _build(case: AlgorithmCase) -> Schedule:
    return build_levels(*_levels(case))


def _cost(case: AlgorithmCase) -> Cost:
    return cost_of_levels(*_levels(case))


def _rooted(case: AlgorithmCase) -> Schedule:
    """Scatter in the root's group, a tree on every rail, an all-gather in every group; a reduction backwards."""
    segments = case.number("segments")
    case, group = grouped(case, case.number("group"))
    groups = case.size // group
    root_group, root_member = divmod(case.root, group)
    member = np.arange(group)

    def at(groups_on: NDArray[np.int64], members_on: NDArray[np.int64]) -> NDArray[np.int64]:
        return (root_group + groups_on) % groups * group + (root_member + members_on) % group

    rows: list[tuple[NDArray[np.int64], ...]] = []
    step = 0

    def add(src: NDArray[np.int64], dst: NDArray[np.int64], part: NDArray[np.int64]) -> None:
        columns = np.broadcast_arrays(np.array(step), src, dst, part)
        kept = columns[2].reshape(-1) != case.root
        rows.append(tuple(column.reshape(-1)[kept] for column in columns))

    if group > 1:
        add(np.array(case.root), at(np.zeros(1, np.int64), member[1:]), member[1:])
        step += 1
    for above, below in _downward(groups, str(case.parameters["between"])):
        add(at(above[:, None], member), at(below[:, None], member), member)
        step += 1
    every = np.arange(groups)[:, None, None]
    for receiver, part in _gathering(group, str(case.parameters["inside"])):
        add(at(every, member[:, None]), at(every, receiver), part)
        step += 1
    moves = Moves(case, whole(case, group))
    for when, src, dst, part in rows:
        if case.collective is Collective.REDUCE:
            moves.add(step - 1 - when, dst, src, part, Op.REDUCE)
        else:
            moves.add(when, src, dst, part)
    return in_pieces(moves.schedule(), segments)


def _downward(groups: int, tree: str) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Parents and children of every step among groups, counted from the root's."""
    if tree == "chain":
        return [(np.array([group]), np.array([group + 1])) for group in range(groups - 1)]
    found = []
    for power in reversed(range((groups - 1).bit_length())):
        above = np.arange(0, groups - (1 << power), 2 << power)
        found.append((above, above + (1 << power)))
    return found


def _gathering(group: int, pattern: str) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Receivers and parts of every member (rows) for each step of an all-gather."""
    member = np.arange(group)[:, None]
    if group == 1:
        return []
    if pattern == "direct":
        return [((member + np.arange(1, group)) % group, member)]
    if pattern == "ring":
        return [((member + 1) % group, (member - step) % group) for step in range(group - 1)]
    return [
        ((member - distance) % group, (member + np.arange(following - distance)) % group)
        for distance, following in pairwise(skips(group))
    ]


_INSIDE = AlgorithmParameter(default="direct", choices=tuple(_PATTERNS), summary="exchanges within a group")
_BETWEEN = AlgorithmParameter(
    default="ring",
    choices=("ring", "direct", "circulant"),
    summary="exchanges between members of equal number",
)
_TREE = AlgorithmParameter(
    default="binomial", choices=("binomial", "chain"), summary="tree between members of equal number"
)
_SEGMENTS = AlgorithmParameter(default=1, summary="pieces that follow each other")


def _summing(parameter: AlgorithmParameter, collective: Collective) -> AlgorithmParameter:
    """An all-reduce can do with a step for a level, and exchange whole buffers."""
    if collective is not Collective.ALL_REDUCE:
        return parameter
    return replace(parameter, choices=(*parameter.choices, "at-once", "whole"))


_EXCHANGES = tuple(
    Algorithm(
        name="two-level",
        collective=collective,
        build=_build,
        summary="one pattern in groups and another one between ranks of equal number, on what is left",
        source="Ueno and Yokota, CCGRID 2019",
        cost=_cost,
        needs=divides("two-level", "group", "a group that divides"),
        parameters={
            "group": GROUP,
            "inside": _summing(_INSIDE, collective),
            "between": _summing(_BETWEEN, collective),
        },
        topological=True,
    )
    for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
)

_ROOTED = tuple(
    Algorithm(
        name="two-level",
        collective=collective,
        build=_rooted,
        summary=summary,
        source="van de Geijn's scatter and all-gather, with trees between the boxes",
        needs=divides("two-level", "group", "a group that divides"),
        parameters={"group": GROUP, "inside": _INSIDE, "between": _TREE, "segments": _SEGMENTS},
        topological=True,
    )
    for collective, summary in (
        (Collective.BROADCAST, "scatter in the root's group, a tree on every rail, all-gather in the groups"),
        (Collective.REDUCE, "reduce-scatter in the groups, a tree on every rail, gather in the root's group"),
    )
)

TWO_LEVEL = (*_EXCHANGES, *_ROOTED)
