"""Broadcasts over groups of ranks: right, balanced, of three messages in a row, and taken where they are fastest."""

from __future__ import annotations

import numpy as np
import pytest

from coppice.bounds.problem import Problem
from coppice.comparison.planned import plan_for
from coppice.planners.over_groups import shared_over_groups, switch_groups
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.model import Topology
from coppice.topology.operations import remove_nodes
from coppice.topology.presets import preset


def _dragonfly(groups: int = 5) -> Topology:
    return preset("dragonfly", groups=groups, routers_per_group=2, gpus_per_router=2)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("root", [0, 7])
@pytest.mark.parametrize("chunks", [1, 3, 40])
def test_every_number_of_chunks_is_right(collective: str, root: int, chunks: int) -> None:
    for topology in (_dragonfly(), remove_nodes(_dragonfly(), ["host8/gpu"])):
        found = shared_over_groups(Problem(topology, collective, root=root), chunks=chunks)
        assert found is not None
        assert found.num_chunks == chunks
        assert verify_schedule(found).ok


def test_all_ranks_send_as_much_as_they_receive_and_no_group_receives_twice() -> None:
    chunks = 190
    found = shared_over_groups(Problem(_dragonfly(), "broadcast", root=0), chunks=chunks)
    assert found is not None
    sends = np.bincount(found.src)
    assert sends[0] == chunks
    assert np.abs(sends[1:] - chunks * 18 / 19).max() < 0.05 * chunks
    crossing = found.src // 4 != found.dst // 4
    entered = np.bincount(found.chunk[crossing] * 5 + found.dst[crossing] // 4, minlength=5 * chunks)
    assert entered.max() <= 1 + (entered.reshape(chunks, 5).sum(axis=1) == 5).max()


def test_networks_without_narrow_links_between_switches_have_no_groups() -> None:
    for each in (preset("star", gpus=4), preset("ring", gpus=4), preset("dgx-a100", boxes=2)):
        assert switch_groups(each) == ()
        assert shared_over_groups(Problem(each, "broadcast", root=0), chunks=4) is None
    assert [len(group) for group in switch_groups(_dragonfly())] == [4] * 5
    assert shared_over_groups(Problem(_dragonfly(), "all_gather"), chunks=4) is None


@pytest.mark.parametrize("collective", ["broadcast", pytest.param("reduce", marks=pytest.mark.slow)])
def test_a_middle_size_is_shared_over_groups(collective: str) -> None:
    topology = preset("dragonfly", groups=5, routers_per_group=4, gpus_per_router=1)
    problem = Problem(topology, collective, root=0)
    found = plan_for(problem, "256K")
    assert found.result.plan.parameters["over_groups"] is True
    body = shared_over_groups(problem, chunks=int(found.result.plan.parameters["chunks"]))  # type: ignore[arg-type]
    assert body is not None
    as_made = fastest(body, 2**18, model=model_of(None), pieces=1).time_us
    assert found.preferred.fastest[2**18][1] <= as_made * (1 + 1e-9)
