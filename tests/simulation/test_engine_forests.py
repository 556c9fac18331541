"""Forest plans come up to the exact optimum from below as the size grows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from coppice.schedule.shape import shape
from coppice.simulation import Model, Sharing
from reference.oracle import SAMPLED_NAMES, oracle_topology
from support.ideal import simulate
from support.shared_data import needs_shared

COLLECTIVES = [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE, Collective.BROADCAST]
SIZES = (2**20, 2**36)


@needs_shared
@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
@pytest.mark.parametrize("name", SAMPLED_NAMES)
def test_converges_to_the_optimum(name: str, collective: Collective) -> None:
    root = 0 if collective is Collective.BROADCAST else None
    problem = Problem(topology=oracle_topology(name), collective=collective, root=root)
    forest, ranks = plan_forest(problem), problem.topology.num_ranks
    optimum = float(collective.shards(ranks) / bound(problem).inv_rate)
    # The first piece must pass the deepest tree before the pipeline is full.
    edges = forest.num_edges * forest.num_images
    pieces = min(96 * shape(forest).max_height, max(32, 400_000 // edges))
    found = [simulate(forest, size, pieces=pieces) for size in SIZES]
    reached = [timeline.algbw_gb_per_s / optimum for timeline in found]
    assert all(large >= 0.999 * small for small, large in pairwise(reached))
    assert max(reached) <= 1
    assert reached[-1] >= 0.97
    # What no schedule can beat: a link is never in use for longer than the whole time.
    assert found[-1].link_busy_us.max() <= found[-1].time_us


@needs_shared
@pytest.mark.parametrize("name", ["a100x2", "mi250x1", "pcie_box4"])
def test_never_beats_the_optimum_with_fair_shares(name: str) -> None:
    problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_GATHER)
    optimum = float(problem.topology.num_ranks / bound(problem).inv_rate)
    model = Model(sharing=Sharing.FAIR)
    found = simulate(plan_forest(problem), 2**32, model=model, pieces=64)
    assert 0.5 <= found.algbw_gb_per_s / optimum <= 1
