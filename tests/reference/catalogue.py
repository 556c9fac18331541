"""Algorithms of the catalogue that move data, and what they make on stars."""

from __future__ import annotations

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.catalogue import algorithms, case_of, make
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.presets import preset


def moving(*, slow: bool = False) -> list[object]:
    """All that move data, as parameters of a test; two in three for the slow tests if ``slow``."""
    return [
        pytest.param(entry, id=f"{name}-{collective}", marks=[pytest.mark.slow] if slow and at % 3 else [])
        for at, ((name, collective), entry) in enumerate(algorithms().items())
        if collective is not Collective.BARRIER
    ]


def made_on_a_star(entry: Algorithm, ranks: int, root: int) -> Schedule | Forest | None:
    """What an algorithm makes for so many ranks; None where it does not serve them."""
    star = preset("star", gpus=ranks)
    problem = Problem(
        topology=star, collective=entry.collective, root=root if entry.collective.rooted else None
    )
    case = case_of(entry, problem, {})
    if entry.refusal(case) is not None:
        return None
    try:
        return make(entry, case)
    except InputError:  # a family that only some topologies suit
        return None
