"""All-to-alls of ranks that do alike: verified, in the time of the open shop, and fast at middle sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.planners.planning import plan
from coppice.planners.translated import _open_shop, moves_of, translated
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import Model, model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset

NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("ring", {"gpus": 5}),
    ("torus", {"dims": (3, 4)}),
    ("torus", {"dims": (4, 4, 2)}),
    ("hypercube", {"dimension": 4}),
]


@pytest.mark.parametrize(("name", "more"), NETWORKS)
def test_every_block_comes_in_the_time_of_the_open_shop(name: str, more: dict[str, Any]) -> None:
    """Whole blocks of 1 us with messages of 2 us: rows that are held back keep to their times."""
    problem = Problem(preset(name, gb_per_s=1, **more), "all_to_all")
    moves = moves_of(problem)
    assert moves is not None
    found = translated(moves, [1.0 / rate for rate in moves.rate], 2.0)
    verify_schedule(found).require_ok()
    size = 1000 * problem.topology.num_ranks
    model = Model(overhead_us=2.0, steps_bind=False, buffered=True)
    timeline = fastest(found, size, model=model, pieces=1)
    block_us = [1.0 / rate for rate in moves.rate]
    shops = [_open_shop(moves.steps, block_us, 2.0, by_load) for by_load in (0.0, 1.0)]
    said_us = min(max(begin + block_us[kind] + 2.0 for begin, _, kind in rows) for rows in shops)
    assert timeline.time_us == pytest.approx(said_us)
    assert timeline.time_us >= LeastTimes(problem, model).at(size).time_us * (1 - 1e-9)


def test_links_have_alike_to_carry() -> None:
    """Two steps round a ring of four may go either way, and half of the blocks go each way."""
    moves = moves_of(Problem(preset("torus", dims=(4, 4)), "all_to_all"))
    assert moves is not None
    assert np.array(moves.steps).sum(axis=0).tolist() == [8, 8, 8, 8]


def test_middle_sizes_take_less() -> None:
    problem, model, size = Problem(preset("torus", dims=(4, 4)), "all_to_all"), model_of(None), 2**16
    moves = moves_of(problem)
    assert moves is not None
    least_us = LeastTimes(problem, model).at(size).time_us
    found = translated(moves, [size / 16 / rate / 1000 for rate in moves.rate], 14.0)
    ours, plain = (
        fastest(each, size, model=model, keep_hops=False).time_us for each in (found, plan(problem).plan.body)
    )
    assert least_us <= ours < 0.95 * plain


def test_there_are_none_where_ranks_differ() -> None:
    for name, more in (("star", {"gpus": 4}), ("path", {"gpus": 4}), ("mi250", {})):
        assert moves_of(Problem(preset(name, **more), "all_to_all")) is None
    assert moves_of(Problem(preset("ring", gpus=4), "all_gather")) is None
