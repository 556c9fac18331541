"""All plans of a small graph of operations, tried one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from coppice.iteration.policies.whole.operations import OperationChoice, OperationGraph, WholePlan


def least_seconds(graph: OperationGraph, rows: Sequence[Sequence[OperationChoice]]) -> float:
    """The least time over all orders of decisions and all choices, a row for each decision."""
    known = graph.decisions()
    return min(
        graph.seconds(
            WholePlan(
                choices=dict(zip(known, row, strict=True)),
                ranks={name: rank for rank, name in enumerate(order)},
            )
        )
        for order in itertools.permutations(known)
        for row in itertools.product(*rows)
    )
