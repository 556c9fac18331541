"""Broadcasts and reductions over many boxes: on every rail trees of few levels, between them all boxes pass on alike.

A part for each box, as for few of them (:mod:`coppice.planners.over_boxes`), would be a thousand parts on a thousand
GPUs. Trees in which every box passes on to ``degree`` others need ``degree`` parts on each rail: box b is an inner node
of one tree and a leaf of the others, so that it sends as much as it receives (SplitStream; Castro et al., SOSP 2003),
and every part crosses between boxes about log(boxes) / log(degree) times. What has come to a box is spread in it at
once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.ordering import without_steps
from coppice.planners.over_boxes import rails
from coppice.schedule.schedule import Op, Schedule, routed

Rails = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
"""Boxes, and the numbers of their members that are joined over all of them."""

DEGREES = tuple(range(2, 22))
"""Numbers of boxes that a box passes on to that are worth a trial."""


def trees_over_boxes(problem: Problem, *, degree: int, joined: Rails | None = None) -> Schedule | None:
    """A broadcast or a reduction by ``degree`` trees on each rail; None where there are no rails or too few boxes.

    Args:
        degree: Boxes that a box passes on to, 1 or more.
        joined: What :func:`rails` finds, if that is known.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = trees_over_boxes(Problem(preset("dgx-h100", boxes=8), "broadcast", root=0), degree=2)
        >>> found.num_chunks, found.num_transfers == found.num_chunks * 63
        (16, True)
    """
    return _over_rails(problem, joined, groups=0, degree=degree)


def straight_to_boxes(problem: Problem, *, groups: int, joined: Rails | None = None) -> Schedule | None:
    """A broadcast or a reduction in which the root's box sends to all others itself, in three transfers in a row.

    Args:
        groups: Parts of the message, a divisor of the number of rails: those of one part share the boxes.
        joined: What :func:`rails` finds, if that is known.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = straight_to_boxes(Problem(preset("dgx-h100", boxes=8), "broadcast", root=0), groups=1)
        >>> found.num_chunks, found.num_transfers
        (1, 63)
    """
    return _over_rails(problem, joined, groups=groups, degree=0)


def exchanged_straight(problem: Problem, *, joined: Rails | None = None) -> Schedule | None:
    """An all-gather or a reduce-scatter in three steps: within boxes, once between any two of them, and within boxes.

    Each member of a box exchanges all that its box has with an equal share of the other boxes, so that few messages
    have to be handled. None where there are no rails, or too few boxes.

    Args:
        joined: What :func:`rails` finds, if that is known.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = exchanged_straight(Problem(preset("dgx-h100", boxes=4), "all_gather"))
        >>> found.num_transfers == 32 * 31, int(found.step.max()) + 1
        (True, 3)
    """
    joined = joined or rails(problem.topology)
    if joined is None or problem.collective not in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return None
    boxes, members = np.array(joined[0]), np.array(joined[1])
    count, size = boxes.shape
    if count < 3 or problem.weights is not None:
        return None
    case = AlgorithmCase(topology=problem.topology, collective=problem.collective)
    moves = Moves(case, blocks(case))
    away = np.arange(1, count)
    carrier = members[(away - 1) * len(members) // (count - 1)]
    spread = np.array([[m for m in range(size) if m != each] for each in range(size)])
    rows = []
    for own in range(count):
        data = boxes[own]
        rows.append((0, np.repeat(data, size - 1), data[spread].reshape(-1), np.repeat(data, size - 1)))
        others = boxes[(own + away) % count]
        ends = others[np.arange(count - 1), carrier]
        rows.append((1, np.repeat(data[carrier], size), np.repeat(ends, size), np.tile(data, count - 1)))
        inside = others[np.arange(count - 1)[:, None], spread[carrier]]
        rows.append(
            (
                2,
                np.repeat(ends, (size - 1) * size),
                np.repeat(inside.reshape(-1), size),
                np.tile(data, (count - 1) * (size - 1)),
            )
        )
    for step, src, dst, chunk in rows:
        if problem.collective is Collective.ALL_GATHER:
            moves.add(step, src, dst, chunk)
        else:
            moves.add(2 - step, dst, src, chunk, Op.REDUCE)
    try:
        return routed(moves.schedule())
    except UnreachableError:
        return None


def _over_rails(problem: Problem, joined: Rails | None, *, groups: int, degree: int) -> Schedule | None:
    joined = joined or rails(problem.topology)
    rooted = problem.collective in (Collective.BROADCAST, Collective.REDUCE)
    if joined is None or not rooted or problem.root is None:
        return None
    boxes, members = joined
    groups = groups or len(members)
    if len(boxes) < 3 or len(members) % groups:
        return None
    case = AlgorithmCase(topology=problem.topology, collective=problem.collective, root=problem.root)
    home = next(box for box in boxes if problem.root in box)
    away = [np.array(box) for box in boxes if box is not home]
    trees = max(1, degree)
    rows: list[NDArray[np.int64]] = []
    for chunk in range(groups * trees):
        group, tree = divmod(chunk, trees)
        alike = members[group::groups]
        hubs = [home[member] for member in alike]
        rows.append(_at_home(home, problem.root, hubs, chunk))
        for turn, (member, hub) in enumerate(zip(alike, hubs, strict=True)):
            reached = away[turn :: len(alike)]
            if reached:
                rows.append(_between(reached, member, hub, degree, tree, chunk))
    level, src, dst, chunks = np.concatenate(rows, axis=1)
    moves = Moves(case, whole(case, groups * trees))
    if problem.collective is Collective.BROADCAST:
        moves.add(level, src, dst, chunks)
    else:
        moves.add(int(level.max()) - level, dst, src, chunks, Op.REDUCE)
    try:
        return routed(without_steps(moves.schedule()))
    except UnreachableError:
        return None


def _at_home(home: Sequence[int], root: int, hubs: list[int], chunk: int) -> NDArray[np.int64]:
    """Level, sender, receiver and chunk of each transfer in the root's box: hubs first, which pass on to the others."""
    found = [(0, root, hub, chunk) for hub in hubs if hub != root]
    others = [rank for rank in home if rank != root and rank not in hubs]
    sends = [hub for hub in hubs if hub != root] or hubs
    if sends == [root] and others:  # it sends each part once in its box, too
        first = others.pop(chunk % len(others))
        found.append((0, root, first, chunk))
        sends = [first]
    found += [(1, sends[turn % len(sends)], rank, chunk) for turn, rank in enumerate(others)]
    return np.array(found, dtype=np.int64).reshape(-1, 4).T


def _between(
    away: list[NDArray[np.int64]], member: int, hub: int, degree: int, tree: int, chunk: int
) -> NDArray[np.int64]:
    """The same between boxes, and in those that were reached: a tree whose inner nodes no other one has.

    Without a degree all of them hear from the hub.
    """
    count = len(away)
    inner = -(-(count - 1) // degree) if degree else 0
    boxes = np.stack(away)[(np.arange(count) + tree * inner) % count]
    ends = boxes[:, member]
    level = np.ones(count, dtype=np.int64)
    senders = np.full(count, hub, dtype=np.int64)
    if degree:
        parent = (np.arange(1, count) - 1) // degree
        senders[1:] = ends[parent]
        for place in range(1, count):
            level[place] = level[parent[place - 1]] + 1
    inside = np.delete(boxes, member, axis=1)
    return np.concatenate(
        [
            np.stack([level, senders, ends, np.full(count, chunk)]),
            np.stack(
                [
                    np.repeat(level + 1, inside.shape[1]),
                    np.repeat(ends, inside.shape[1]),
                    inside.reshape(-1),
                    np.full(inside.size, chunk),
                ]
            ),
        ],
        axis=1,
    )
