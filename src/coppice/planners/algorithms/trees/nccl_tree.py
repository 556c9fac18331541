"""NCCL's tree: a chain through every box below its vertex of two complementary trees of boxes.

Channel c begins the chain of every box at member c, which exchanges with members c of the boxes above and below, on
one rail; each channel carries its share of the data half in one tree and half in the other. Values move up the chains
and trees, and down again; a vertex serves all its neighbours in one step, as one kernel does. ``segments`` follow each
other one step apart.

With g ranks in each of m boxes and S segments: 2 (g - 1 + d) + S - 1 steps for trees of depth d, at most
ceil(lg m); a rank sends at most 2 M. Without boxes every rank is a vertex of the trees. The time depends on how many
messages a rank can send at a time: for the trees on a crossbar with one port see ``double-binary-tree``.

NCCL 2.30, src/graph/trees.cc and connect.cc.
"""

from __future__ import annotations

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, Parameter
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.binary_trees import depths, pair_of_trees
from coppice.planners.algorithms.parts.boxes import equal_boxes, grouped
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.schedule.pieces import in_pieces
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS", "boxed_trees"]


def boxed_trees(case: Case, *, group: int = 0, channels: int = 0, segments: int = 1) -> Schedule:
    """An all-reduce by chains in boxes below pairs of trees of boxes.

    Args:
        case: What is served.
        group: Ranks of a chain; 0 takes the boxes of the topology, and single ranks where there are none.
        channels: Pairs of trees; 0 takes as many as a box has ranks.
        segments: Pieces that follow each other.
    """
    channels = channels or len((equal_boxes(case.topology) or ((0,),))[0])
    case, group = grouped(case, group, alone=True)
    moves = Moves(case, whole(case, 2 * channels))
    for channel in range(channels):
        for tree, parents in enumerate(pair_of_trees(case.size // group)):
            _tree(moves, _with_chains(parents, group, channel % group), 2 * channel + tree)
    return in_pieces(moves.schedule(), segments)


def _build(case: Case) -> Schedule:
    return boxed_trees(
        case,
        group=case.number("group"),
        channels=case.number("channels"),
        segments=case.number("segments"),
    )


def _with_chains(parents: list[int], group: int, head: int) -> list[int]:
    """Parents of all positions, where the vertices of a tree are the ``head`` members of groups."""
    found = [-1] * (len(parents) * group)
    for box, parent in enumerate(parents):
        for place in range(1, group):
            found[box * group + (head + place) % group] = box * group + (head + place - 1) % group
        found[box * group + head] = -1 if parent < 0 else parent * group + head
    return found


def _tree(moves: Moves, parents: list[int], chunk: int) -> None:
    """One chunk up and down one tree."""
    depth = np.array(depths(parents))
    child = np.flatnonzero(depth > 0)
    parent = np.array(parents)[child]
    height = int(depth.max())
    moves.add(height - depth[child], child, parent, chunk, Op.REDUCE)
    moves.add(height + depth[child] - 1, parent, child, chunk)


def _needs(case: Case) -> str | None:
    group = case.number("group")
    if group and case.size % group:
        return f"nccl-tree needs a group that divides {case.size} ranks, found {group}: choose a divisor."
    return None


ALGORITHMS = (
    Algorithm(
        name="nccl-tree",
        collective=Collective.ALL_REDUCE,
        build=_build,
        summary="chains in the boxes below two complementary binary trees of boxes",
        source="NCCL 2.4 and later",
        needs=_needs,
        parameters={
            "group": Parameter(default=0, least=0, summary="ranks of a chain; 0: of a box, else 1"),
            "channels": Parameter(
                default=0, least=0, summary="pairs of trees; 0: as many as ranks of a box, else 1"
            ),
            "segments": Parameter(default=1, summary="pieces that follow each other"),
        },
        topological=True,
    ),
)
