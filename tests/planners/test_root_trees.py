"""Trees of one root grow side by side as their reference does, fill all links and are low."""

from __future__ import annotations

import random

import numpy as np
import pytest

from coppice import _core
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from coppice.planners.forest.root_trees import root_trees
from coppice.schedule.loads import forest_loads
from coppice.schedule.shape import shape
from coppice.schedule.verification.forest import verify_forest
from coppice.topology.presets import preset
from reference import trees_together


@pytest.mark.parametrize("seed", range(60))
def test_trees_grow_as_the_reference_says(seed: int) -> None:
    rng = random.Random(seed)
    vertices, trees = rng.randint(2, 8), rng.randint(1, 4)
    links = [(a, b) for a in range(vertices) for b in range(vertices) if a != b and rng.random() < 0.7]
    capacity = [rng.randint(1, 2) for _ in links]
    root = rng.randrange(vertices)
    src, dst = (np.array([each[end] for each in links], dtype=np.int32) for end in (0, 1))
    found = _core.grow_together(vertices, src, dst, np.array(capacity, dtype=np.int64), root, trees)
    wanted = trees_together.grown(vertices, links, capacity, root, trees)
    assert found.tolist() == [link for tree in wanted for link in tree]


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize(
    ("dims", "height"), [((4, 4, 4), 8), ((3, 5), 6), ((8, 8, 16), 23)], ids=["cube", "odd", "thousand"]
)
def test_trees_of_a_torus_fill_all_links_and_are_low(
    collective: Collective, dims: tuple[int, ...], height: int
) -> None:
    problem = Problem(preset("torus", dims=dims), collective, root=1)
    found = root_trees(problem)
    assert found is not None
    assert verify_forest(found, root=1).ok
    assert found.num_trees == 2 * len(dims)
    assert forest_loads(found).inv_rate * problem.topology.gb_per_s(0) * found.num_trees == 1
    assert shape(found).max_height <= height


def test_fewer_trees_are_lower() -> None:
    problem = Problem(preset("torus", dims=(8, 8, 16)), "broadcast", root=0)
    heights = [shape(found).max_height for fewer in (0, 1, 5) if (found := root_trees(problem, fewer=fewer))]
    assert heights == [23, 19, 16]


def test_the_planner_takes_them_on_many_ranks() -> None:
    problem = Problem(preset("torus", dims=(8, 8, 16)), "reduce", root=5)
    assert shape(plan_forest(problem)).max_height <= 23


@pytest.mark.parametrize(
    ("name", "collective"), [("dgx-h100", "broadcast"), ("star", "reduce"), ("torus", "all_gather")]
)
def test_there_are_none_over_switches_or_of_many_roots(name: str, collective: str) -> None:
    topology = preset(name)
    root = None if collective == "all_gather" else 0
    assert root_trees(Problem(topology, collective, root=root)) is None
