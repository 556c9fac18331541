"""Broadcasts along a tree: linear, chain, pipeline, binary, binomial, k-nomial and any of these shapes by parameter.

Position ``root + v`` is node v of a tree of :mod:`.trees`. A node passes on a piece in the step after it got it; the
buffer is cut into S ``segments``, each a step behind the one before. n = M, t = alpha + n/S beta, q = ceil(log_k P):

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
(:mod:`.tree_pace`); a full binary tree has A = 2 H.

Open MPI (``coll_base_bcast.c``), MPICH and MVAPICH2 have them; Open MPI's binomial and k-nomial trees start with the
shortest distance (``distance=growing``), MPICH's with the longest.
"""

from __future__ import annotations

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.tree_moves import tree_broadcast
from coppice.planners.algorithms.parts.tree_shapes import SHAPES, Shape
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def _algorithm(name: str, shape: Shape) -> Algorithm:
    def build(case: Case) -> Schedule:
        return tree_broadcast(case, shape.tree(case), shape.segments(case))

    def cost(case: Case) -> Cost:
        return shape.pace(case).broadcast(shape.segments(case))

    return Algorithm(
        name=name,
        collective=Collective.BROADCAST,
        build=build,
        summary=shape.summary,
        source=shape.source,
        cost=cost,
        parameters=shape.parameters,
    )


ALGORITHMS = tuple(_algorithm(name, shape) for name, shape in SHAPES.items())
