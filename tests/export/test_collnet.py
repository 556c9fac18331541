"""Files of trees for the network plugin: those of the plan, with its shares, or a refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coppice
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.formats import NcclCollnetOptions
from coppice.export.nccl.collnet import collnet_trees, export_nccl_collnet
from coppice.planners.planning import plan
from coppice.schedule.plan import Plan
from coppice.topology.model import Topology
from coppice.topology.presets import preset


def planned(topology: Topology, collective: Collective = Collective.ALL_REDUCE) -> Plan:
    return plan(Problem(topology=topology, collective=collective, root=None)).plan


@pytest.mark.parametrize(
    "collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
)
@pytest.mark.parametrize("nodes", [2, 4, 6])
def test_trees_have_the_shares_of_the_plan(nodes: int, collective: Collective) -> None:
    made = planned(preset("fat-tree", leaves=2, gpus_per_leaf=nodes // 2), collective)
    trees, turned = collnet_trees(made)
    assert not turned
    shares = np.zeros(nodes)
    for parents, share in trees.items():
        assert len(parents) == nodes
        assert parents.count(-1) == 1
        for node in range(nodes):
            steps, at = 0, node
            while parents[at] >= 0:
                at, steps = parents[at], steps + 1
                assert steps < nodes
        shares[parents.index(-1)] += share
    assert len(set(shares)) == 1, "every node is the root of as much"


def test_the_file_and_its_notes(tmp_path: Path) -> None:
    made = planned(preset("fat-tree", leaves=2, gpus_per_leaf=1))
    assert (
        export_nccl_collnet(made, NcclCollnetOptions()).text
        == "coppice-collnet 1\nnodes 2\ntree 1 -1 0\ntree 1 1 -1\n"
    )
    found = coppice.export(made, "nccl-collnet", tmp_path / "forest")
    assert (tmp_path / "forest").read_text() == found.text
    assert any("NCCL_COLLNET_ENABLE=1" in note for note in found.notes)


def test_what_has_no_trees_between_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="one rank each, found 8 ranks on"):
        export_nccl_collnet(planned(preset("dgx-a100", boxes=2)), NcclCollnetOptions())
    ring = plan(
        Problem(topology=preset("fat-tree", leaves=2, gpus_per_leaf=2), collective=Collective.ALL_REDUCE),
        algorithm="ring",
    ).plan
    with pytest.raises(InputError, match="made of trees"):
        export_nccl_collnet(ring, NcclCollnetOptions())
