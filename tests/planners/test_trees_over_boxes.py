"""Trees over the rails of many boxes, and transfers in turns, hold what they say of loads and order."""

from __future__ import annotations

import numpy as np
import pytest

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.alternatives import alternatives
from coppice.planners.choice import PlannerOptions
from coppice.planners.in_turns import in_turns
from coppice.planners.trees_over_boxes import straight_to_boxes, trees_over_boxes
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset


def crossings(found: Schedule) -> np.ndarray:
    """Parts that each rank sends to other boxes, in the direction of a broadcast."""
    ends = (found.src, found.dst) if found.collective is Collective.BROADCAST else (found.dst, found.src)
    leaves = ends[0] // 8 != ends[1] // 8
    return np.bincount(ends[0][leaves], minlength=found.topology.num_ranks)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize(("boxes", "degree", "root"), [(3, 2, 0), (6, 2, 11), (9, 3, 70), (12, 11, 1)])
def test_every_box_passes_on_as_much_as_it_receives(
    collective: Collective, boxes: int, degree: int, root: int
) -> None:
    problem = Problem(preset("dgx-h100", boxes=boxes), collective, root=root)
    found = trees_over_boxes(problem, degree=degree)
    assert found is not None
    assert verify_schedule(found).ok
    sent = crossings(found)
    home = np.arange(8 * boxes) // 8 == root // 8
    assert (sent[home] == degree).all()
    assert (
        sent[~home].max() <= 2 * degree
    )  # where boxes do not divide evenly, one is an inner node of two trees
    assert sent[~home].sum() == 8 * degree * (boxes - 2)


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_the_box_of_the_root_sends_to_all_itself(collective: Collective, groups: int) -> None:
    found = straight_to_boxes(Problem(preset("dgx-h100", boxes=5), collective, root=3), groups=groups)
    assert found is not None
    assert verify_schedule(found).ok
    assert crossings(found)[8:].sum() == 0


@pytest.mark.parametrize("name", ["star", "torus"])
def test_what_has_no_rails_has_no_such_trees(name: str) -> None:
    problem = Problem(preset(name), Collective.BROADCAST, root=0)
    assert trees_over_boxes(problem, degree=2) is None
    assert straight_to_boxes(problem, groups=1) is None


@pytest.mark.parametrize(
    "collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]
)
def test_turns_change_the_order_alone(collective: Collective) -> None:
    problem = Problem(preset("dgx-h100", boxes=4), collective)
    made = next(alternatives(problem, PlannerOptions.of(problem), bound_of(problem))).made.body
    assert isinstance(made, Forest)
    rows = lower(made)
    found = in_turns(rows)
    assert found is not None
    assert verify_schedule(found).ok
    columns = [np.stack([each.src, each.dst, each.chunk, each.op]) for each in (rows, found)]
    ordered = [each[:, np.lexsort(each)] for each in columns]
    assert np.array_equal(*ordered)


def test_turns_keep_all_links_busy() -> None:
    problem = Problem(preset("dgx-h100", boxes=8), Collective.ALL_REDUCE)
    made = next(alternatives(problem, PlannerOptions.of(problem), bound_of(problem))).made.body
    assert isinstance(made, Forest)
    rows = lower(made)
    ordered = in_turns(rows)
    assert ordered is not None
    model = model_of("nccl-2.30")
    before, after = (
        fastest(each, 64 * 2**20, model=model, pieces=1, keep_hops=False).time_us for each in (rows, ordered)
    )
    assert after < 0.85 * before
