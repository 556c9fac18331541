"""Balanced trees of ranks that are all alike, their images, and what stands for what."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.planners.alike import _balanced, alike, balanced_trees, images, level_by_level, turned
from coppice.schedule.lower import lower
from coppice.schedule.messages import messages_of_routed, routed_body
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.engine import run
from coppice.simulation.models import model_of
from coppice.topology import preset
from coppice.topology.operations import remove_links
from coppice.topology.symmetry import find_symmetry

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
TORUS: dict[str, Any] = {"name": "torus", "dims": (3, 4, 5)}


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_is_more_even(seed: int) -> None:
    rng = random.Random(seed)
    rows, columns = rng.randint(1, 6), rng.randint(1, 4)
    may = np.array([[rng.random() < 0.5 for _ in range(columns)] for _ in range(rows)])
    may[np.arange(rows), [rng.randrange(columns) for _ in range(rows)]] = True
    rate = np.array([rng.choice([0.25, 0.5, 1.0]) for _ in range(columns)])
    before = np.array([rng.randint(0, 2) for _ in range(columns)])
    load = before.copy()
    taken = _balanced(may, rate, load)
    assert may[np.arange(rows), taken].all()
    assert load.tolist() == (before + np.bincount(taken, minlength=columns)).tolist()
    every = itertools.product(*(np.flatnonzero(row).tolist() for row in may))
    best = min(float(((before + np.bincount(each, minlength=columns)) / rate).max()) for each in every)
    assert float((load / rate).max()) == pytest.approx(best)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("trees", "attempt"), [(1, 0), (1, 3), (2, 1)])
def test_images_are_a_plan_that_loads_all_links_alike(collective: str, trees: int, attempt: int) -> None:
    topology = preset(**TORUS)
    forest = balanced_trees(Problem(topology, collective), trees=trees, attempt=attempt)
    assert forest is not None
    assert forest.symmetry is not None
    rows = lower(replace(forest, symmetry=None))
    whole = images(rows, forest.symmetry)
    assert verify_schedule(whole).ok
    link = {ends: i for i, ends in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))}
    nodes = topology.rank_nodes
    used = [link[ends] for ends in zip(nodes[whole.src].tolist(), nodes[whole.dst].tolist(), strict=True)]
    load = np.bincount(used, minlength=topology.num_links)
    least = -(-59 * trees // 6)
    assert load.max() == least * (2 if collective == "all_reduce" else 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("model", ["ideal", "nccl-2.30"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_rows_of_one_rank_take_what_all_take(collective: str, model: str, pieces: int) -> None:
    topology = preset(**TORUS)
    forest = balanced_trees(Problem(topology, collective), trees=2)
    assert forest is not None
    assert forest.symmetry is not None
    rows = lower(replace(forest, symmetry=None))
    own = replace(routed_body(rows), alike=alike(topology, forest.symmetry))
    whole = routed_body(images(rows, forest.symmetry))
    size = 60 * 2 * 3 * 480

    def time_us(body: Any, size_bytes: int) -> float:
        cut = messages_of_routed(body, size_bytes, pieces=pieces, steps_bind=False)
        found = model_of(model)
        return run(cut, model=found, collective=rows.collective, size_bytes=size_bytes).time_us

    assert time_us(own, size // 60) == time_us(whole, size) > 0


def test_levels_become_few_messages() -> None:
    forest = balanced_trees(Problem(preset(**TORUS), "all_gather"))
    assert forest is not None
    assert forest.symmetry is not None
    levels = level_by_level(lower(replace(forest, symmetry=None)))
    assert levels is not None
    whole = images(levels, forest.symmetry)
    assert verify_schedule(whole).ok
    messages = messages_of_routed(routed_body(whole), 2**20, pieces=1, steps_bind=True)
    assert int(levels.step.max()) == 4  # of five levels: 1 + 2 + 2 hops
    assert messages.count <= 5 * 6 * 60


def test_what_stands_for_a_link_backwards() -> None:
    topology = preset(**TORUS)
    found = alike(topology, find_symmetry(topology))
    assert found is not None
    back, other = topology.transposed(), turned(found, topology)
    number = {
        ends: i for i, ends in enumerate(zip(topology.dst.tolist(), topology.src.tolist(), strict=True))
    }
    same = [number[ends] for ends in zip(back.src.tolist(), back.dst.tolist(), strict=True)]
    assert [same[each] for each in other.link.tolist()] == found.link[same].tolist()


def test_only_where_all_are_alike() -> None:
    hurt = remove_links(preset(**TORUS), [("gpu0", "gpu1")])
    for topology in (hurt, preset("dgx-a100", boxes=2)):
        assert balanced_trees(Problem(topology, "all_gather")) is None
    assert balanced_trees(Problem(preset(**TORUS), "broadcast", root=0)) is None
