"""Broadcast, reduce and all-reduce along one tree of any shape: star, chains, k-ary, k-nomial.

**Broadcast.** Position ``root + v`` is node v of a tree of :mod:`..parts.trees`. A node passes on a piece in the step
after it got it; the buffer is cut into S ``segments``, each a step behind the one before. n = M, t = alpha + n/S beta,
q = ceil(log_k P):

=========  ===============================  ==============  =====================================  ====================
name       tree                             steps           time                                   most bytes of a rank
=========  ===============================  ==============  =====================================  ====================
linear     a star                           1               (P - 1) (alpha + n beta)               (P - 1) n
chain      d = min(fanout, P - 1) chains    L + S - 1       (max(r + l, l - 1 + d) + (S - 1) d) t  d n
pipeline   one chain                        P + S - 2       (P + S - 2) t                          n
binary     2-ary, level-strided             H + S - 1       (A + (S - 1) d) t                      d n
binomial   k-nomial with k = 2              q               q (alpha + n beta)                     q n
k-nomial   k-nomial                         q               D (alpha + n beta)                     D n
tree       k-ary or k-nomial                H + S - 1       (A + (S - 1) d) t                      d n
=========  ===============================  ==============  =====================================  ====================

where P - 1 = l d + r is cut into chains, r of which have L = l + 1 nodes (L = l where r = 0); D = (k - 1) (q - 1) +
ceil(P / k^(q - 1)) - 1 is the degree of the k-nomial root; H is the height, d the root's degree and A the number of
messages until the first piece has reached all, A(P) = max_i (i + A(P_i)) for the root's i-th child with P_i nodes
(:class:`..parts.trees.Pace`); a full binary tree has A = 2 H.

Open MPI (``coll_base_bcast.c``), MPICH and MVAPICH2 have them; Open MPI's binomial and k-nomial trees start with the
shortest distance (``distance=growing``), MPICH's with the longest.

**Reduce.** The broadcast of the same name in reverse: a node adds the sums of its children and passes the result to its
parent. With the same symbols, and t = alpha + n/S (beta + gamma):

=========  ==============  =====================================
name       steps           time
=========  ==============  =====================================
linear     1               (P - 1) (alpha + n (beta + gamma))
chain      L + S - 1       (max(r + l, l - 1 + d) + (S - 1) d) t
pipeline   P + S - 2       (P + S - 2) t
binary     H + S - 1       (C + (S - 1) d) t
binomial   q               q (alpha + n (beta + gamma))
k-nomial   q               D (alpha + n (beta + gamma))
tree       H + S - 1       (C + (S - 1) d) t
=========  ==============  =====================================

Every rank but the root sends n bytes. C is the number of messages that the root of the first piece waits for: with its
children sorted by their own C, they are added one after the other as they are ready.

Linear keeps rank order for any root; chain, pipeline, binomial and k-nomial keep it where the root is position 0.

Open MPI (``coll_base_reduce.c``), MPICH and MVAPICH2 have them.

**All-reduce.** A reduction to position 0 and a broadcast from there, one after the other.

linear: every rank sends its buffer to position 0, which adds them in rank order and sends the sum to all. Steps 2;
time ``2 (P - 1) (alpha + M beta) + (P - 1) M gamma``.

nonoverlapping: a reduction and a broadcast by name (binomial ones where nothing is said), with their default
parameters. Steps, and times, are the sums of both: ``2 q (alpha + M beta) + q M gamma`` with q = ceil(lg P) for
binomial trees.

tree: up and down the same k-ary or k-nomial tree, in S ``segments``. Steps 2 (H + S - 1) with its height H; time ``(C
+ A + 2 (S - 1) d) (alpha + M/S beta) + (C + (S - 1) d) M/S gamma``.

A rank sends M d at the root, whose degree in the broadcast is d, and up to M (1 + the most children of a node)
elsewhere. Rank order is kept where the reduction to position 0 keeps it: by linear, chain, pipeline, binomial and
k-nomial.

Open MPI (basic_linear, nonoverlapping), MPICH (tree).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import SEGMENTS, Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.moves import Moves, all_reduce_of, whole
from coppice.planners.algorithms.parts.trees import (
    Pace,
    PositionTree,
    by_depth,
    chains,
    chains_pace,
    growing_k_nomial,
    k_ary,
    k_ary_pace,
    k_nomial,
    k_nomial_by_depth_pace,
    k_nomial_pace,
)
from coppice.schedule.schedule import Op, Schedule, in_pieces


@dataclass(frozen=True, kw_only=True)
class TreeShape:
    """A family of trees for broadcast and reduce under one name."""

    tree: Callable[[AlgorithmCase], PositionTree]  # The tree of a case
    pace: Callable[[AlgorithmCase], Pace]  # What it costs
    summary: str  # Its shape, in a few words
    source: str  # Where it comes from
    parameters: Mapping[str, AlgorithmParameter] = field(default_factory=dict)  # Its parameters

    def segments(self, case: AlgorithmCase) -> int:
        """Number of segments of the buffer; 1 where the family does not segment."""
        return case.number("segments") if "segments" in self.parameters else 1

    def broadcast(self, case: AlgorithmCase) -> Schedule:
        """Broadcast along the tree."""
        return tree_broadcast(case, self.tree(case), self.segments(case))

    def broadcast_cost(self, case: AlgorithmCase) -> Cost:
        """Cost of the broadcast."""
        return self.pace(case).broadcast(self.segments(case))

    def reduction(self, case: AlgorithmCase) -> Schedule:
        """Reduction along the tree."""
        return tree_reduction(case, self.tree(case), self.segments(case))

    def reduction_cost(self, case: AlgorithmCase) -> Cost:
        """Cost of the reduction."""
        return self.pace(case).reduction(self.segments(case))


def _nomial(case: AlgorithmCase, radix: int) -> PositionTree:
    if case.parameters.get("distance") == "growing":
        return growing_k_nomial(case.size, radix)
    return k_nomial(case.size, radix)


def _of_shape(case: AlgorithmCase) -> PositionTree:
    radix = case.number("radix")
    return (
        k_ary(case.size, radix)
        if case.parameters["shape"] == "k-ary"
        else by_depth(k_nomial(case.size, radix))
    )


def _pace_of_shape(case: AlgorithmCase) -> Pace:
    pace = k_ary_pace if case.parameters["shape"] == "k-ary" else k_nomial_by_depth_pace
    return pace(case.size, case.number("radix"))


DISTANCE = AlgorithmParameter(
    default="shrinking", summary="longest or shortest distances first", choices=("shrinking", "growing")
)
_RADIX = AlgorithmParameter(default=4, summary="a node serves radix - 1 children in a step", least=2)

SHAPES: dict[str, TreeShape] = {
    "linear": TreeShape(
        tree=lambda case: k_ary(case.size, max(case.size - 1, 1)),
        pace=lambda case: k_ary_pace(case.size, max(case.size - 1, 1)),
        summary="a star: the root and every other rank exchange directly",
        source="Open MPI, MPICH",
    ),
    "chain": TreeShape(
        tree=lambda case: chains(case.size, case.number("fanout")),
        pace=lambda case: chains_pace(case.size, case.number("fanout")),
        summary="a few chains of ranks, in segments",
        source="Open MPI",
        parameters={
            "fanout": AlgorithmParameter(default=4, summary="number of chains"),
            "segments": SEGMENTS,
        },
    ),
    "pipeline": TreeShape(
        tree=lambda case: chains(case.size, 1),
        pace=lambda case: chains_pace(case.size, 1),
        summary="one chain of all ranks, in segments",
        source="Open MPI, MVAPICH2; the ring of NCCL",
        parameters={"segments": SEGMENTS},
    ),
    "binary": TreeShape(
        tree=lambda case: k_ary(case.size, 2),
        pace=lambda case: k_ary_pace(case.size, 2),
        summary="a balanced binary tree, in segments",
        source="Open MPI",
        parameters={"segments": SEGMENTS},
    ),
    "binomial": TreeShape(
        tree=lambda case: _nomial(case, 2),
        pace=lambda case: k_nomial_pace(case.size, 2),
        summary="a binomial tree: twice as many ranks take part in every step",
        source="Open MPI, MPICH, MVAPICH2",
        parameters={"distance": DISTANCE},
    ),
    "k-nomial": TreeShape(
        tree=lambda case: _nomial(case, case.number("radix")),
        pace=lambda case: k_nomial_pace(case.size, case.number("radix")),
        summary="a k-nomial tree: radix times as many ranks take part in every step",
        source="Open MPI, MPICH, MVAPICH2",
        parameters={"radix": _RADIX, "distance": DISTANCE},
    ),
    "tree": TreeShape(
        tree=_of_shape,
        pace=_pace_of_shape,
        summary="a k-ary or k-nomial tree, in segments",
        source="MPICH (tree, pipelined_tree)",
        parameters={
            "shape": AlgorithmParameter(
                default="k-ary", summary="kind of tree", choices=("k-ary", "k-nomial")
            ),
            "radix": AlgorithmParameter(default=2, summary="k of the tree", least=2),
            "segments": SEGMENTS,
        },
    ),
}


def tree_broadcast(case: AlgorithmCase, tree: PositionTree, segments: int = 1) -> Schedule:
    """Broadcast down ``tree``, whose node v is the position v places after the root."""
    moves = Moves(case, whole(case))
    moves.add(tree.level, case.from_root(tree.parent), case.from_root(tree.child), 0)
    return in_pieces(moves.schedule(), segments)


def tree_reduction(case: AlgorithmCase, tree: PositionTree, segments: int = 1) -> Schedule:
    """Reduce up ``tree``: the broadcast in reverse.

    A node adds those of its children that lie after the root first, nearest first, and then those before the root,
    nearest first. That keeps rank order in a star, and where subtrees are intervals and the root is position 0.
    """
    moves = Moves(case, whole(case))
    parent, child = case.from_root(tree.parent), case.from_root(tree.child)
    nearest = np.argsort(np.where(child > case.root, child - case.root, case.size + case.root - child))
    moves.add((tree.height - 1 - tree.level)[nearest], child[nearest], parent[nearest], 0, Op.REDUCE)
    ordered = tree.height <= 1 or (tree.contiguous and case.root == 0)
    return in_pieces(moves.schedule(ordered=ordered), segments)


BROADCAST = tuple(
    Algorithm(
        name=name,
        collective=Collective.BROADCAST,
        build=shape.broadcast,
        summary=shape.summary,
        source=shape.source,
        cost=shape.broadcast_cost,
        parameters=shape.parameters,
    )
    for name, shape in SHAPES.items()
)
REDUCE = tuple(
    replace(
        entry,
        collective=Collective.REDUCE,
        build=SHAPES[entry.name].reduction,
        cost=SHAPES[entry.name].reduction_cost,
        parameters={key: value for key, value in entry.parameters.items() if key != "distance"},
    )
    for entry in BROADCAST
)

_Names = Callable[[AlgorithmCase], tuple[str, str]]


def _all_reduce_schedule(case: AlgorithmCase, names: _Names) -> Schedule:
    up, down = names(case)
    return all_reduce_of(
        SHAPES[up].reduction(_part(case, Collective.REDUCE, up)),
        SHAPES[down].broadcast(_part(case, Collective.BROADCAST, down)),
    )


def _all_reduce_cost(case: AlgorithmCase, names: _Names) -> Cost:
    up, down = names(case)
    spreading = _part(case, Collective.BROADCAST, down)
    pace = SHAPES[down].pace(spreading)
    first = SHAPES[up].reduction_cost(_part(case, Collective.REDUCE, up))
    second = SHAPES[down].broadcast_cost(spreading)
    return Cost(
        steps=first.steps + second.steps,
        sent=Fraction(max(pace.degree, 1 + pace.inner) if case.size > 1 else 0),
        chains=tuple(
            Chain(messages=one.messages + two.messages, sent=one.sent + two.sent, reduced=one.reduced)
            for one, two in zip(first.chains, second.chains, strict=True)
        ),
    )


def _part(case: AlgorithmCase, collective: Collective, name: str) -> AlgorithmCase:
    """The case of one half: parameters that the all-reduce has not are defaults."""
    parameters = {
        key: case.parameters.get(key, each.default) for key, each in SHAPES[name].parameters.items()
    }
    return replace(case, collective=collective, root=0, parameters=parameters)


def _all_reduce(
    name: str, names: _Names, summary: str, source: str, parameters: dict[str, AlgorithmParameter]
) -> Algorithm:
    return Algorithm(
        name=name,
        collective=Collective.ALL_REDUCE,
        build=lambda case: _all_reduce_schedule(case, names),
        summary=summary,
        source=source,
        cost=lambda case: _all_reduce_cost(case, names),
        parameters=parameters,
    )


ALL_REDUCE = (
    _all_reduce(
        "linear",
        lambda _: ("linear", "linear"),
        "one rank adds all buffers in rank order and sends the sum to all",
        "Open MPI",
        {},
    ),
    _all_reduce(
        "nonoverlapping",
        lambda case: (str(case.parameters["reduce"]), str(case.parameters["broadcast"])),
        "a reduce, then a broadcast",
        "Open MPI",
        {
            "reduce": AlgorithmParameter(default="binomial", summary="how to reduce", choices=tuple(SHAPES)),
            "broadcast": AlgorithmParameter(
                default="binomial", summary="how to broadcast", choices=tuple(SHAPES)
            ),
        },
    ),
    _all_reduce(
        "tree",
        lambda _: ("tree", "tree"),
        "up and down a k-ary or k-nomial tree, in segments",
        "MPICH",
        dict(SHAPES["tree"].parameters),
    ),
)
