"""Clusters as training jobs see them: no rate of a formula passes what the topology lets through."""

from __future__ import annotations

import pytest

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.iteration.cluster import cluster_of
from coppice.iteration.costs.calibrated import CalibratedCosts
from coppice.iteration.costs.group import RankGroup
from coppice.topology.model import Topology
from coppice.topology.operations import set_link_rate
from coppice.topology.presets import preset


def check_all_reduce(topology: Topology) -> None:
    costs = CalibratedCosts(cluster_of(topology))
    found = costs.cost("all_reduce", 2**30, RankGroup(topology.num_ranks, 1)).seconds
    assert found >= 2**30 / 1e9 / float(bound(Problem(topology, Collective.ALL_REDUCE)).algbw_gb_per_s)


@pytest.mark.parametrize("boxes", [1, 2, 4])
@pytest.mark.parametrize("name", ["dgx-1v", "dgx-a100", "dgx-a100-pcie", "dgx-h100", "dgx-b200"])
def test_presets(name: str, boxes: int) -> None:
    check_all_reduce(preset(name, boxes=boxes))


def test_a_narrow_fabric_is_reckoned_with_and_said() -> None:
    options = {"fabric": "rail", "hosts_per_leaf": "1", "spines": "1", "oversubscription": "16"}
    narrow = preset("dgx-a100", boxes=4, **options)
    with pytest.warns(
        UserWarning, match=r"send 200 GB/s and the network lets 12\.5 GB/s through between boxes"
    ):
        assert cluster_of(narrow).nic_bytes_per_second == 12.5e9
    with pytest.warns(UserWarning, match="calibrated rings"):
        check_all_reduce(narrow)


def test_one_slow_box_holds_all() -> None:
    slow = preset("dgx-a100", boxes=4)
    for i in range(8):
        slow = set_link_rate(slow, f"box2/nic{i}", f"rail{i % 2}", "10%")
    with pytest.warns(UserWarning, match=r"lets 20 GB/s through"):
        check_all_reduce(slow)
