"""The families of trees that broadcast, reduce and all-reduce share, by the names that libraries give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coppice.planners.algorithms.algorithm import Parameter
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.tree_pace import (
    Pace,
    chains_pace,
    k_ary_pace,
    k_nomial_by_depth_pace,
    k_nomial_pace,
)
from coppice.planners.algorithms.parts.trees import Tree, by_depth, chains, growing_k_nomial, k_ary, k_nomial

__all__ = ["DISTANCE", "SEGMENTS", "SHAPES", "Shape"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A family of trees that serves broadcast and reduce under one name.

    Attributes:
        tree: The tree of a case.
        pace: What it costs.
        summary: Its shape, in a few words.
        source: Where it comes from.
        parameters: Its parameters.
    """

    tree: Callable[[Case], Tree]
    pace: Callable[[Case], Pace]
    summary: str
    source: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def segments(self, case: Case) -> int:
        """Pieces of the buffer; 1 where the family does not cut it."""
        return case.number("segments") if "segments" in self.parameters else 1


def _nomial(case: Case, radix: int) -> Tree:
    if case.parameters.get("distance") == "growing":
        return growing_k_nomial(case.size, radix)
    return k_nomial(case.size, radix)


def _of_shape(case: Case) -> Tree:
    radix = case.number("radix")
    return (
        k_ary(case.size, radix)
        if case.parameters["shape"] == "k-ary"
        else by_depth(k_nomial(case.size, radix))
    )


def _pace_of_shape(case: Case) -> Pace:
    pace = k_ary_pace if case.parameters["shape"] == "k-ary" else k_nomial_by_depth_pace
    return pace(case.size, case.number("radix"))


SEGMENTS = Parameter(default=8, summary="pieces of the buffer, each a step behind the one before")
DISTANCE = Parameter(
    default="shrinking", summary="longest or shortest distances first", choices=("shrinking", "growing")
)
_RADIX = Parameter(default=4, summary="a node serves radix - 1 children in a step", least=2)

SHAPES: dict[str, Shape] = {
    "linear": Shape(
        tree=lambda case: k_ary(case.size, max(case.size - 1, 1)),
        pace=lambda case: k_ary_pace(case.size, max(case.size - 1, 1)),
        summary="a star: the root and every other rank exchange directly",
        source="Open MPI, MPICH",
    ),
    "chain": Shape(
        tree=lambda case: chains(case.size, case.number("fanout")),
        pace=lambda case: chains_pace(case.size, case.number("fanout")),
        summary="a few chains of ranks, in segments",
        source="Open MPI",
        parameters={"fanout": Parameter(default=4, summary="number of chains"), "segments": SEGMENTS},
    ),
    "pipeline": Shape(
        tree=lambda case: chains(case.size, 1),
        pace=lambda case: chains_pace(case.size, 1),
        summary="one chain of all ranks, in segments",
        source="Open MPI, MVAPICH2; the ring of NCCL",
        parameters={"segments": SEGMENTS},
    ),
    "binary": Shape(
        tree=lambda case: k_ary(case.size, 2),
        pace=lambda case: k_ary_pace(case.size, 2),
        summary="a balanced binary tree, in segments",
        source="Open MPI",
        parameters={"segments": SEGMENTS},
    ),
    "binomial": Shape(
        tree=lambda case: _nomial(case, 2),
        pace=lambda case: k_nomial_pace(case.size, 2),
        summary="a binomial tree: twice as many ranks take part in every step",
        source="Open MPI, MPICH, MVAPICH2",
        parameters={"distance": DISTANCE},
    ),
    "k-nomial": Shape(
        tree=lambda case: _nomial(case, case.number("radix")),
        pace=lambda case: k_nomial_pace(case.size, case.number("radix")),
        summary="a k-nomial tree: radix times as many ranks take part in every step",
        source="Open MPI, MPICH, MVAPICH2",
        parameters={"radix": _RADIX, "distance": DISTANCE},
    ),
    "tree": Shape(
        tree=_of_shape,
        pace=_pace_of_shape,
        summary="a k-ary or k-nomial tree, in segments",
        source="MPICH (tree, pipelined_tree)",
        parameters={
            "shape": Parameter(default="k-ary", summary="kind of tree", choices=("k-ary", "k-nomial")),
            "radix": Parameter(default=2, summary="k of the tree", least=2),
            "segments": SEGMENTS,
        },
    ),
}
