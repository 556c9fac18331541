"""All-reduces in which boxes exchange sums in one stage or several."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.comparison.sizes.ordered import OrderSearch
from coppice.planners.exchanges_between_boxes import exchanged_between_boxes, ways_in_stages
from coppice.planners.over_boxes import rails
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes
from coppice.topology.presets import preset

DEAD = remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"])
CLUSTERS = [
    DEAD,
    preset("dgx-a100", boxes=6),
    preset("dgx-h100", boxes=8),
    preset("mi250", boxes=2),
    preset("fat-tree", leaves=4, gpus_per_leaf=2),
]


@pytest.mark.parametrize("topology", CLUSTERS, ids=lambda topology: topology.name)
def test_all_stages_perform_an_all_reduce(topology: Topology) -> None:
    joined = rails(topology)
    assert joined is not None
    boxes, members = joined
    number = {rank: box for box, ranks in enumerate(boxes) for rank in ranks}
    for stages in ways_in_stages(len(boxes)):
        found = exchanged_between_boxes(Problem(topology, "all_reduce"), stages)
        assert found is not None
        assert verify_schedule(found).ok
        box_of = np.array([number[rank] for rank in range(topology.num_ranks)])
        crosses = box_of[found.src] != box_of[found.dst]
        sent = np.bincount(box_of[found.src[crosses]], minlength=len(boxes))
        assert sent.tolist() == [len(members) * sum(each - 1 for each in stages)] * len(boxes)
        assert sorted(set(found.step[crosses].tolist())) == list(range(1, len(stages) + 1))


def test_ways_are_all_factors_in_any_order() -> None:
    for boxes in range(2, 65):
        found = ways_in_stages(boxes)
        assert len(found) == len(set(found))
        assert all(prod(each) == boxes and min(each) > 1 for each in found)
        for first in range(2, boxes):
            assert ((first, boxes // first) in found) == (boxes % first == 0)
    assert ways_in_stages(0) == ways_in_stages(1) == []


def test_a_gpu_without_nic_takes_part_through_others() -> None:
    problem, model = Problem(DEAD, "all_reduce"), model_of(None)
    body = exchanged_between_boxes(problem, (2,))
    assert body is not None
    lost = int(DEAD.rank[DEAD.node_ids.index("box0/gpu0")])
    host = DEAD.host[DEAD.rank_nodes]
    assert not ((host[body.src] != host[body.dst]) & ((body.src == lost) | (body.dst == lost))).any()
    found = OrderSearch(body, model, 2**16).fastest(4096, below_us=np.inf)
    assert found is not None
    assert found.time_us < 1.05 * LeastTimes(problem, model).at(4096).time_us


@pytest.mark.parametrize(
    ("name", "stages", "size", "gap"),
    [("dgx-a100", (4,), 2**18, 0.08), ("dgx-h100", (4,), 2**16, 0.1), ("dgx-h100", (2, 2), 2**20, 0.1)],
)
def test_in_pieces_they_come_near_the_least_time(
    name: str, stages: tuple[int, ...], size: int, gap: float
) -> None:
    problem, model = Problem(preset(name, boxes=4), "all_reduce"), model_of(None)
    body = exchanged_between_boxes(problem, stages)
    assert body is not None
    found = OrderSearch(body, model, 2**18).fastest(size, below_us=np.inf)
    assert found is not None
    assert verify_schedule(found.schedule).ok
    assert found.time_us < (1 + gap) * LeastTimes(problem, model).at(size).time_us


def test_there_are_none_without_boxes() -> None:
    ring = preset("ring", gpus=6)
    assert exchanged_between_boxes(Problem(ring, "all_reduce"), (6,)) is None
    assert exchanged_between_boxes(Problem(DEAD, "all_gather"), (2,)) is None
