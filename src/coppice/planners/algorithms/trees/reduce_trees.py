"""Reductions along a tree: linear, chain, pipeline, binary, binomial, k-nomial and any of these shapes by parameter.

The broadcast of the same name in reverse (:mod:`.broadcast_trees`, whose symbols are used here): a node adds the sums
of its children and passes the result to its parent; the buffer is cut into S ``segments``, each a step behind the one
before. With t = alpha + n/S (beta + gamma):

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
children sorted by their own C, they are added one after the other as they are ready (:mod:`.tree_pace`).

Linear keeps rank order for any root; chain, pipeline, binomial and k-nomial keep it where the root is position 0.

Open MPI (``coll_base_reduce.c``), MPICH and MVAPICH2 have them.
"""

from __future__ import annotations

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.tree_moves import tree_reduction
from coppice.planners.algorithms.parts.tree_shapes import SHAPES, Shape
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]


def _algorithm(name: str, shape: Shape) -> Algorithm:
    def build(case: Case) -> Schedule:
        return tree_reduction(case, shape.tree(case), shape.segments(case))

    def cost(case: Case) -> Cost:
        return shape.pace(case).reduction(shape.segments(case))

    return Algorithm(
        name=name,
        collective=Collective.REDUCE,
        build=build,
        summary=shape.summary,
        source=shape.source,
        cost=cost,
        parameters={key: value for key, value in shape.parameters.items() if key != "distance"},
    )


ALGORITHMS = tuple(_algorithm(name, shape) for name, shape in SHAPES.items())
