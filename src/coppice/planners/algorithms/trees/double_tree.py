"""All-reduce, broadcast and reduce along two binary trees, as in NCCL and in Open MPI.

**double-binary-tree.** Each tree has half of the data, so that every rank's port is used in full. The trees of
:mod:`~coppice.planners.algorithms.parts.trees`: a rank that is inner in one is a leaf in the other. Data is cut
into two halves and each into S segments; a tree passes its segments on one after the other. A rank sends at most one
message and receives at most one in a step: the edges of both trees have two colours, and an edge of colour c works in
every second step from the first one of parity c after its upper edge. Broadcast goes down, reduce up in the mirrored
steps, all-reduce up and then down. Broadcast and reduce take trees with the root as the root of both.

With D <= 2 ceil(lg P) the steps after which the first segments are everywhere, broadcast takes D + 2 (S - 1) steps of
M/(2 S), all-reduce twice that. On a crossbar the longest chain runs through all steps, so that the time is as many
``alpha + M/(2 S) beta``, and ``M/(2 S) gamma`` where it adds. For large S that tends to M ``beta``, or 2 M ``beta`` for
all-reduce, as for a ring, with far fewer messages. A rank sends at most M, for all-reduce 2 M.

An all-reduce among equal boxes takes the boxes as the vertices of the trees, as NCCL does (``nccl-tree``), unless
``layout=flat`` asks for ranks.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing
2009; the trees of the all-reduce are those of NCCL, whose kernels serve both children at once (``nccl-tree``).

**nccl-tree.** A chain through every box below its vertex of two complementary trees of boxes. Channel c begins the
chain of every box at member c, which exchanges with members c of the boxes above and below, on one rail; each channel
carries its share of the data half in one tree and half in the other. Values move up the chains and trees, and down
again; a vertex serves all its neighbours in one step, as one kernel does. ``segments`` follow each other one step
apart.

With g ranks in each of m boxes and S segments: 2 (g - 1 + d) + S - 1 steps for trees of depth d, at most
ceil(lg m); a rank sends at most 2 M. Without boxes every rank is a vertex of the trees. The time depends on how many
messages a rank can send at a time: for the trees on a crossbar with one port see ``double-binary-tree``.

NCCL 2.30, src/graph/trees.cc and connect.cc. What its search finds is given as ``trees``, one for each channel (the
second tree of a pair is that of another channel), of which ``channels`` take one after the other.

Two binary trees of Open MPI: a split broadcast, and an in-order reduction.

**Split binary tree.** Each half of the buffer goes down one half of a binary tree, then ranks swap halves in pairs.
Node v of the level-strided binary tree (:mod:`..parts.trees`) is the position v places after the root. The root sends
the first half of the buffer to its first child and the second half to its second, each in S ``segments`` that follow
each other; odd nodes pass on the first half and even ones the second. Then nodes 2 i + 1 and 2 i + 2 swap what they
have. Where P is even, node P - 1 has no partner and gets the second half from the root (with P = 2 that is all there
is).

Steps H + S, where H is the height; time ``(A + (S - 1) d) (alpha + M/(2 S) beta) + alpha + M/2 beta`` with the root's
degree d = min(2, P - 1) and A messages until a piece has reached all (:class:`..parts.trees.Pace`); bytes of a rank up
to 3/2 M (P = 2, 3 and 5: M).

Open MPI, ``coll_base_bcast.c``, ``split_bintree``.

**In-order binary tree.** A reduction that keeps rank order, for any root. The last position is the root of the tree;
the positions before a node are halved, the lower half with one more where they differ, and the last of each half is a
child (the preorder tree of :mod:`..parts.trees`, counted from the end). Every subtree is an interval that ends with its
own root, so neighbouring intervals are added. The buffer is cut into S ``segments``, each a step behind the one before;
where another position wants the result, the last position sends it there as one message.

Steps H + S - 1, one more where the result moves; time ``(C + (S - 1) d) (alpha + M/S (beta + gamma))``, where the
root's degree is d = min(2, P - 1) and C(P) = max(C(small) + d - 1, C(large)) + 1 for its subtrees of floor(P/2) and
floor((P - 1)/2) nodes, C(1) = 0; ``alpha + M beta`` more where the result moves. Every rank but the last sends M; the
last sends M where the result moves.

Open MPI, ``coll_base_reduce.c``, ``in_order_binary``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from operator import itemgetter

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import (
    SEGMENTS,
    Algorithm,
    AlgorithmCase,
    AlgorithmParameter,
    divides,
)
from coppice.planners.algorithms.parts.boxes import equal_boxes, grouped, in_order
from coppice.planners.algorithms.parts.cost import Chain, Clocks, Cost
from coppice.planners.algorithms.parts.found_orders import FoundOrder, by_nics, found_orders
from coppice.planners.algorithms.parts.moves import Moves, whole
from coppice.planners.algorithms.parts.trees import (
    depths,
    k_ary,
    k_ary_pace,
    pair_of_trees,
    preorder_binary,
    preorder_binary_pace,
    rooted_pair,
    two_colours,
)
from coppice.schedule.schedule import Op, Schedule, in_pieces


@dataclass(frozen=True)
class _Edge:
    """An edge in the direction of a broadcast: when segment 0 of tree ``tree`` goes from ``src`` to ``dst``."""

    start: int
    tree: int
    src: int
    dst: int


def _edges(case: AlgorithmCase) -> list[_Edge]:
    """The edges of both trees in the order of their first steps."""
    trees = pair_of_trees(case.size) if case.collective is Collective.ALL_REDUCE else rooted_pair(case.size)
    colour = two_colours(trees)
    edges = []
    for tree, parents in enumerate(trees):
        depth = depths(parents)
        start = [-1] * case.size
        for v in sorted(range(case.size), key=depth.__getitem__):
            if parents[v] >= 0:
                soonest = start[parents[v]] + 1
                start[v] = soonest + (soonest + colour[tree][v]) % 2
                edges.append(_Edge(start[v], tree, parents[v], v))
    return sorted(edges, key=lambda edge: (edge.start, edge.tree, edge.dst))


def _messages(case: AlgorithmCase) -> list[tuple[int, int, int, int, Op]]:
    """(step, sender, receiver, chunk, op) of every message, by step; steps count from 0 without gaps."""
    segments = case.number("segments")
    down = sorted(
        (edge.start + 2 * segment, edge.src, edge.dst, edge.tree * segments + segment)
        for edge in _edges(case)
        for segment in range(segments)
    )
    numbers = {step: number for number, step in enumerate(sorted({step for step, *_ in down}))}
    messages: list[tuple[int, int, int, int, Op]] = []
    if case.collective is not Collective.BROADCAST:
        last = len(numbers) - 1
        messages += [
            (last - numbers[step], dst, src, chunk, Op.REDUCE) for step, src, dst, chunk in reversed(down)
        ]
    if case.collective is not Collective.REDUCE:
        first = len(numbers) if messages else 0
        messages += [(first + numbers[step], src, dst, chunk, Op.COPY) for step, src, dst, chunk in down]
    return messages


def _double_binary_tree(case: AlgorithmCase) -> Schedule:
    if _boxed(case):
        return boxed_trees(case, segments=case.number("segments"))
    moves = Moves(case, whole(case, 2 * case.number("segments")))
    messages = _messages(case)
    for op in (Op.REDUCE, Op.COPY):
        rows = [message[:4] for message in messages if message[4] is op]
        if rows:
            step, src, dst, chunk = np.array(rows).T
            moves.add(step, case.from_root(src), case.from_root(dst), chunk, op)
    return moves.schedule()


def _boxed(case: AlgorithmCase) -> bool:
    layout = case.parameters.get("layout", "flat")
    return layout == "boxes" or (layout == "auto" and equal_boxes(case.topology) is not None)


def _boxes_asked_for(case: AlgorithmCase) -> str | None:
    if case.parameters.get("layout") == "boxes" and equal_boxes(case.topology) is None:
        return (
            f"double-binary-tree by boxes needs equal boxes of 2 or more ranks, found none on {case.topology.name}: "
            "choose layout=flat."
        )
    return None


def _double_binary_tree_cost(case: AlgorithmCase) -> Cost:
    if _boxed(case):
        raise InputError(
            "the cost of trees of boxes depends on the topology: simulate it, or take layout=flat."
        )
    clocks = Clocks(case.size, unit=2 * case.number("segments"))
    for _, matching in groupby(_messages(case), key=itemgetter(0)):
        clocks.step((src, dst, 1, int(op is Op.REDUCE)) for _, src, dst, _, op in matching)
    return clocks.cost()


_SEGMENTS = {"segments": AlgorithmParameter(default=1, summary="pieces of each half that follow each other")}
_LAYOUT = {
    "layout": AlgorithmParameter(
        default="auto",
        choices=("auto", "flat", "boxes"),
        summary="vertices of the trees: ranks, or boxes with a chain in each (auto: where boxes are equal)",
    )
}

DOUBLE = tuple(
    Algorithm(
        name="double-binary-tree",
        collective=collective,
        build=_double_binary_tree,
        summary="two complementary binary trees with half of the data each, pipelined",
        source="Sanders, Speck and Träff, Parallel Computing 2009; trees of NCCL 2.4 and later",
        cost=_double_binary_tree_cost,
        needs=_boxes_asked_for,
        parameters=_SEGMENTS | _LAYOUT if collective is Collective.ALL_REDUCE else _SEGMENTS,
    )
    for collective in (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
)


def boxed_trees(case: AlgorithmCase, *, group: int = 0, channels: int = 0, segments: int = 1) -> Schedule:
    """All-reduce by chains within boxes below pairs of trees of boxes.

    Args:
        group: Ranks of a chain; 0 takes the boxes of the topology, and single ranks where there are none.
        channels: Pairs of trees; 0 takes as many as a box has ranks.
    """
    channels = channels or len((equal_boxes(case.topology) or ((0,),))[0])
    case, group = grouped(case, group, alone=True)
    moves = Moves(case, whole(case, 2 * channels))
    for channel in range(channels):
        for tree, parents in enumerate(pair_of_trees(case.size // group)):
            _tree(moves, _with_chains(parents, group, channel % group), 2 * channel + tree)
    return in_pieces(moves.schedule(), segments)


def _nccl_tree(case: AlgorithmCase) -> Schedule:
    given = found_orders(case, "trees", parents=True)
    if given:
        return _given_trees(case, given)
    return boxed_trees(
        case, group=case.number("group"), channels=case.number("channels"), segments=case.number("segments")
    )


def _given_trees(case: AlgorithmCase, trees: list[FoundOrder]) -> Schedule:
    channels = case.number("channels") or len(trees)
    case = in_order(case, tuple(range(case.size)))
    moves = Moves(case, whole(case, channels))
    for channel in range(channels):
        parents = trees[channel % len(trees)].ranks.tolist()
        _tree(moves, [-1 if up == rank else up for rank, up in enumerate(parents)], channel)
    nics = [trees[channel % len(trees)].nics for channel in range(channels)]
    return in_pieces(by_nics(moves.schedule(), nics), case.number("segments"))


def _unfit_trees(case: AlgorithmCase) -> str | None:
    for tree in found_orders(case, "trees", parents=True):
        above = tree.ranks
        if len(above) == case.size:
            for _ in range(case.size.bit_length()):
                above = above[above]
        if len(above) != case.size or len(set(above.tolist())) != 1:
            return (
                f"nccl-tree expects a parent of each of {case.size} ranks, and one root that is its own, found "
                f"{','.join(map(str, tree.ranks.tolist()))}: give a tree."
            )
    return _divides(case)


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


_divides = divides("nccl-tree", "group", "a group that divides")

NCCL = Algorithm(
    name="nccl-tree",
    collective=Collective.ALL_REDUCE,
    build=_nccl_tree,
    summary="chains in the boxes below two complementary binary trees of boxes",
    source="NCCL 2.4 and later",
    needs=_unfit_trees,
    parameters={
        "group": AlgorithmParameter(default=0, least=0, summary="ranks of a chain; 0: of a box, else 1"),
        "channels": AlgorithmParameter(
            default=0, least=0, summary="pairs of trees; 0: as many as ranks of a box, else 1"
        ),
        "trees": AlgorithmParameter(
            default="", summary="trees that a library found, as parents: 0,0,1,2 is a chain from rank 0"
        ),
        "segments": AlgorithmParameter(default=1, summary="pieces that follow each other"),
    },
    topological=True,
)


def split_binary(case: AlgorithmCase) -> Schedule:
    """Split binary broadcast: segments 0 .. S - 1 are the first half, S .. 2 S - 1 the second."""
    size, segments = case.size, case.number("segments")
    moves = Moves(case, whole(case, 2 * segments))
    tree = k_ary(size, 2)
    parent, child = case.from_root(tree.parent), case.from_root(tree.child)
    half = (tree.child - 1) % 2
    for piece in range(segments):
        moves.add(tree.level + piece, parent, child, half * segments + piece)
    swap = tree.height + segments - 1
    pieces = np.arange(segments)
    first = np.arange(1, size - 1, 2)[:, None]
    moves.add(swap, case.from_root(first), case.from_root(first + 1), pieces)
    moves.add(swap, case.from_root(first + 1), case.from_root(first), segments + pieces)
    if size % 2 == 0:
        moves.add(swap, case.root, case.from_root(size - 1), segments + pieces)
    return moves.schedule()


def _split_binary_cost(case: AlgorithmCase) -> Cost:
    size, segments = case.size, case.number("segments")
    if size == 1:
        return Cost(steps=0, sent=Fraction(0), chains=())
    pace = k_ary_pace(size, 2)
    first = pace.arrival + (segments - 1) * pace.degree
    alone = int(size % 2 == 0)
    return Cost(
        steps=pace.height + segments,
        sent=Fraction(max(pace.degree + alone, pace.inner + (size > 2)), 2),
        chains=(Chain(messages=first + 1, sent=Fraction(first, 2 * segments) + Fraction(1, 2)),),
    )


SPLIT = Algorithm(
    name="split-binary",
    collective=Collective.BROADCAST,
    build=split_binary,
    summary="halves of the buffer go down the halves of a binary tree, then ranks swap halves in pairs",
    source="Open MPI",
    cost=_split_binary_cost,
    parameters={"segments": SEGMENTS},
)


def in_order_binary(case: AlgorithmCase) -> Schedule:
    """In-order binary reduction to the last position, then to the root."""
    last, segments = case.size - 1, case.number("segments")
    moves = Moves(case, whole(case, segments))
    tree = preorder_binary(case.size)
    up = np.argsort(tree.child)
    parent, child, level = last - tree.parent[up], last - tree.child[up], tree.height - 1 - tree.level[up]
    for piece in range(segments):
        moves.add(level + piece, child, parent, piece, Op.REDUCE)
    if case.root != last:
        moves.add(tree.height + segments - 1, last, case.root, np.arange(segments))
    return moves.schedule(ordered=True)


def _in_order_binary_cost(case: AlgorithmCase) -> Cost:
    segments = case.number("segments")
    cost = preorder_binary_pace(case.size).reduction(segments)
    if case.root == case.size - 1:
        return cost
    move = Chain(messages=1, sent=Fraction(1))
    chains = tuple(
        replace(chain, messages=chain.messages + move.messages, sent=chain.sent + move.sent)
        for chain in cost.chains
    )
    return replace(cost, steps=cost.steps + 1, chains=chains)


IN_ORDER = Algorithm(
    name="in-order-binary",
    collective=Collective.REDUCE,
    build=in_order_binary,
    summary="a binary tree of intervals: keeps rank order for any root",
    source="Open MPI",
    cost=_in_order_binary_cost,
    parameters={"segments": SEGMENTS},
)
