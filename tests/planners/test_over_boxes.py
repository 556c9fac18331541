"""Schedules over boxes: verified on any root and with lost NICs, and near the least time where others are not."""

from __future__ import annotations

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.planners.over_boxes import rails, spread_over_boxes
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes
from coppice.topology.presets import preset

DEAD = remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"])
CLUSTERS = [
    DEAD,
    preset("dgx-a100", boxes=3),
    preset("mi250", boxes=2),
    preset("fat-tree", leaves=3, gpus_per_leaf=2),
]


@pytest.mark.parametrize("topology", CLUSTERS, ids=lambda topology: topology.name)
def test_they_perform_their_collectives(topology: Topology) -> None:
    for root in (0, topology.num_ranks - 1):
        for collective in ("broadcast", "reduce"):
            problem = Problem(topology, collective, root=root)
            for segments, direct in ((1, 0), (1, 1), (3, 1)):
                found = spread_over_boxes(problem, segments=segments, direct=direct)
                assert found is not None
                assert verify_schedule(found).ok
                assert found.num_transfers == found.num_chunks * (topology.num_ranks - 1)


def test_no_box_sends_a_part_more_often_than_it_must() -> None:
    """But for the last segment the root's box sends each part once, and each other box two thirds of them."""
    topology = preset("dgx-a100", boxes=4)
    found = spread_over_boxes(Problem(topology, "broadcast", root=3), segments=4, direct=1)
    assert found is not None
    host = topology.host[topology.rank_nodes]
    early = found.chunk < found.num_chunks * 3 // 4
    crosses = host[found.src] != host[found.dst]
    parts = int(early.sum()) // 31
    sent = [int((crosses & early & (host[found.src] == box)).sum()) for box in range(4)]
    assert sent == [parts, *[parts * 2 // 3] * 3]
    assert int((crosses & ~early & (host[found.src] > 0)).sum()) == 0


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_ranks_may_be_boxes_of_their_own(collective: str) -> None:
    """At one switch the root sends each part once, and whoever has it passes it on to all others."""
    problem = Problem(preset("star", gpus=5), collective, root=2)
    found = spread_over_boxes(problem, segments=2, direct=0, apart=True)
    assert found is not None
    assert verify_schedule(found).ok
    ends = found.src if collective == "broadcast" else found.dst
    assert found.num_chunks == 8
    assert np.bincount(ends, minlength=5).tolist() == [6, 6, 8, 6, 6]
    assert (
        spread_over_boxes(
            Problem(preset("star", gpus=2), collective, root=0), segments=1, direct=0, apart=True
        )
        is None
    )


def test_there_are_none_without_boxes() -> None:
    ring = preset("ring", gpus=6)
    assert rails(ring) is None
    for apart in (False, True):  # ranks of a ring do not all reach each other
        problem = Problem(ring, "broadcast", root=0)
        assert spread_over_boxes(problem, segments=2, direct=0, apart=apart) is None
