"""All-reduce as a reduction to position 0 and a broadcast from there, one after the other.

linear: every rank sends its buffer to position 0, which adds them in rank order and sends the sum to all. Steps 2;
time ``2 (P - 1) (alpha + M beta) + (P - 1) M gamma``.

nonoverlapping: a reduction and a broadcast by name (binomial ones where nothing is said), with their default
parameters. Steps, and times, are the sums of both: ``2 q (alpha + M beta) + q M gamma`` with q = ceil(lg P) for
binomial trees.

tree: up and down the same k-ary or k-nomial tree, in S ``segments``. Steps 2 (H + S - 1) with its height H; time ``(C
+ A + 2 (S - 1) d) (alpha + M/S beta) + (C + (S - 1) d) M/S gamma`` (:mod:`.reduce_trees`, :mod:`.broadcast_trees`).

A rank sends M d at the root, whose degree in the broadcast is d, and up to M (1 + the most children of a node)
elsewhere. Rank order is kept where the reduction to position 0 keeps it: by linear, chain, pipeline, binomial and
k-nomial.

Open MPI (basic_linear, nonoverlapping), MPICH (tree).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Algorithm, Parameter
from coppice.planners.algorithms.case import Case
from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.sequence import all_reduce_of
from coppice.planners.algorithms.parts.tree_moves import tree_broadcast, tree_reduction
from coppice.planners.algorithms.parts.tree_pace import Pace
from coppice.planners.algorithms.parts.tree_shapes import SHAPES
from coppice.schedule.schedule import Schedule

__all__ = ["ALGORITHMS"]

_Names = Callable[[Case], tuple[str, str]]


def _build(case: Case, names: _Names) -> Schedule:
    up, down = names(case)
    reducing = _part(case, Collective.REDUCE, up)
    spreading = _part(case, Collective.BROADCAST, down)
    return all_reduce_of(
        tree_reduction(reducing, SHAPES[up].tree(reducing), SHAPES[up].segments(reducing)),
        tree_broadcast(spreading, SHAPES[down].tree(spreading), SHAPES[down].segments(spreading)),
    )


def _cost(case: Case, names: _Names) -> Cost:
    up, down = names(case)
    reducing = _part(case, Collective.REDUCE, up)
    spreading = _part(case, Collective.BROADCAST, down)
    pace: Pace = SHAPES[down].pace(spreading)
    first = SHAPES[up].pace(reducing).reduction(SHAPES[up].segments(reducing))
    second = pace.broadcast(SHAPES[down].segments(spreading))
    return Cost(
        steps=first.steps + second.steps,
        sent=Fraction(max(pace.degree, 1 + pace.inner) if case.size > 1 else 0),
        chains=tuple(
            Chain(messages=one.messages + two.messages, sent=one.sent + two.sent, reduced=one.reduced)
            for one, two in zip(first.chains, second.chains, strict=True)
        ),
    )


def _part(case: Case, collective: Collective, name: str) -> Case:
    """The case of one half: parameters that the all-reduce has not are defaults."""
    parameters = {
        key: case.parameters.get(key, each.default) for key, each in SHAPES[name].parameters.items()
    }
    return replace(case, collective=collective, root=0, parameters=parameters)


def _algorithm(
    name: str, names: _Names, summary: str, source: str, parameters: dict[str, Parameter]
) -> Algorithm:
    return Algorithm(
        name=name,
        collective=Collective.ALL_REDUCE,
        build=lambda case: _build(case, names),
        summary=summary,
        source=source,
        cost=lambda case: _cost(case, names),
        parameters=parameters,
    )


ALGORITHMS = (
    _algorithm(
        "linear",
        lambda _: ("linear", "linear"),
        "one rank adds all buffers in rank order and sends the sum to all",
        "Open MPI",
        {},
    ),
    _algorithm(
        "nonoverlapping",
        lambda case: (str(case.parameters["reduce"]), str(case.parameters["broadcast"])),
        "a reduce, then a broadcast",
        "Open MPI",
        {
            "reduce": Parameter(default="binomial", summary="how to reduce", choices=tuple(SHAPES)),
            "broadcast": Parameter(default="binomial", summary="how to broadcast", choices=tuple(SHAPES)),
        },
    ),
    _algorithm(
        "tree",
        lambda _: ("tree", "tree"),
        "up and down a k-ary or k-nomial tree, in segments",
        "MPICH",
        dict(SHAPES["tree"].parameters),
    ),
)
