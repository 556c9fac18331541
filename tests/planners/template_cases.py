"""Template forests of the presets, for the tests that look at them from all sides."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.planners.forest import packed
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.topology import resolve
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry
from reference.symmetry import elements

TWO_PHASES = [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]

# Preset, options or boxes, order of the group that the templates are for.
PRESETS: list[tuple[str, dict[str, str], int | None, int]] = [
    ("ring", {"gpus": "5"}, None, 5),
    ("ring", {"gpus": "8"}, None, 8),
    ("torus", {"dims": "4x4"}, None, 16),
    ("torus", {"dims": "3x5"}, None, 15),
    ("torus", {"dims": "3x3x3"}, None, 27),
    ("torus", {"dims": "2x3x4"}, None, 24),
    ("torus", {"dims": "2x3x2x3"}, None, 36),
    ("hypercube", {}, None, 16),
    ("complete", {}, None, 8),
    ("bipartite", {}, None, 8),
    ("petersen", {}, None, 5),
    ("circulant", {}, None, 16),
    ("generalized-kautz", {}, None, 3),
    ("star", {}, None, 8),
    ("fat-tree", {}, None, 16),
    ("dragonfly", {}, None, 6),
    ("pcie-box", {}, None, 4),
    ("dgx-1v", {}, 2, 4),
    ("dgx-a100", {}, 1, 8),
    ("dgx-a100", {}, 2, 16),
    ("dgx-a100", {}, 4, 32),
    ("dgx-a100-pcie", {}, 2, 16),
    ("dgx-h100", {}, 1, 8),
    ("dgx-h100", {}, 2, 16),
    ("mi250", {}, 3, 12),
    ("mi250", {}, 4, 16),
    ("mi300x", {}, 2, 16),
]
NAMES = [" ".join([name, *options.values(), str(boxes or "")]).strip() for name, options, boxes, _ in PRESETS]
MULTI_ORBIT = ["petersen", "dragonfly", "dgx-1v 2", "mi250 3"]
"""Where the ranks fall into several orbits."""
ORDER = dict(zip(NAMES, (order for *_, order in PRESETS), strict=True))


def plan_templates(problem: Problem) -> Forest:
    """Plan without writing templates out, however small they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "WRITTEN_OUT", 0)
        return plan_forest(problem)


@cache
def preset(name: str) -> Topology:
    spec, options, boxes, _ = PRESETS[NAMES.index(name)]
    return resolve(spec, boxes=boxes, options=options)


@cache
def planned(name: str, collective: Collective) -> Plan:
    problem = Problem(topology=preset(name), collective=collective)
    found = bound(problem)
    assert found.attainable is not None
    return Plan(
        problem=problem,
        inv_rate=found.attainable,
        forest=plan_templates(problem),
        bound=found,
        planner="forest",
        parameters={"trees": None, "tolerance": None, "in_network": False},
    )


def forest_in(plan: Plan) -> Forest:
    assert plan.forest is not None
    return plan.forest


def symmetry_in(forest: Forest) -> Symmetry:
    assert forest.symmetry is not None
    return forest.symmetry


def slowly_expanded(forest: Forest) -> list[tuple[int, int, int, tuple[tuple[int, ...], ...]]]:
    """(phase, root, weight, paths) of every image of every tree, from the generators alone."""
    symmetry = forest.symmetry
    identity = tuple(range(forest.topology.num_nodes))
    group = [identity] if symmetry is None else elements(symmetry, forest.topology.num_nodes)
    trees = []
    for t in range(forest.num_trees):
        paths = [path for _, _, path in forest.edges(t)]
        trees += [
            (
                int(forest.tree_phase[t]),
                image[int(forest.tree_root[t])],
                int(forest.tree_weight[t]),
                tuple(tuple(image[v] for v in path) for path in paths),
            )
            for image in group
        ]
    return trees


def columns(body: Forest | Schedule) -> dict[str, Any]:
    return {
        field.name: getattr(body, field.name)
        for field in fields(body)
        if isinstance(getattr(body, field.name), np.ndarray)
    }


def assert_same_columns(one: Forest | Schedule, other: Forest | Schedule) -> None:
    for name, column in columns(one).items():
        np.testing.assert_array_equal(column, columns(other)[name], err_msg=name)
        assert column.dtype == columns(other)[name].dtype, name
