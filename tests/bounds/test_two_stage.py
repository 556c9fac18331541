"""All-to-all of unequal blocks in two stages, against exact flows, the verifier and published ways to deal."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from coppice.bounds.all_to_all.concurrent_flow import concurrent_flow
from coppice.bounds.all_to_all.distances import distances, length_bound
from coppice.bounds.all_to_all.two_stage import Deal, boxes_with_hops, two_stages
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.planners.two_stage import direct_inv_rate
from coppice.topology.model import Topology
from coppice.topology.operations import scale_nodes
from coppice.topology.presets import preset

TWO_BOXES = ("dgx-h100", "dgx-a100", "mi300x")


def skewed(ranks: int, seed: int) -> Any:
    """Heavy tails, a hot receiver, or few blocks at all."""
    rng = np.random.default_rng(seed)
    found = {
        0: (100 * rng.pareto(1.2, (ranks, ranks))).astype(np.int64),
        1: rng.integers(1, 9, (ranks, ranks)) + 300 * (np.arange(ranks) == rng.integers(ranks)),
        2: rng.integers(1, 99, (ranks, ranks)) * (rng.random((ranks, ranks)) < 0.15),
    }[seed % 3]
    np.fill_diagonal(found, 0)
    found[0, ranks - 1] += 1
    return found.astype(np.int64)


def optimum(topology: Topology, demand: Any) -> Fraction:
    """The linear program, which knows nothing of boxes."""
    found = concurrent_flow(Problem(topology, Collective.ALL_TO_ALL, demands=demand), staged=False)
    assert found.exact
    return found.reached


@pytest.mark.parametrize(
    ("name", "seed"), [*itertools.product(TWO_BOXES, range(3)), ("mi100", 0), ("mi100", 1)]
)
def test_nearly_as_fast_as_any_flow(name: str, seed: int) -> None:
    topology = preset(name, boxes=2)
    demand = skewed(topology.num_ranks, seed)
    found, best = two_stages(topology, demand), optimum(topology, demand)
    assert found is not None
    assert found.bound <= best <= found.reached <= best * Fraction(101, 100)
    assert length_bound(topology, demand, found.length) == found.bound
    for deal in Deal:
        dealt = two_stages(topology, demand, deal=deal)
        assert dealt is not None
        assert dealt.reached >= found.reached


@pytest.mark.parametrize("name", ["mi100", "dgx-h100"])
def test_a_large_block_inside_a_box_leaves_it_where_nics_are_idle(name: str) -> None:
    topology = preset(name, boxes=2)
    demand = np.zeros((16, 16), dtype=np.int64)
    demand[0, 7] = 10**6
    given: Any = demand
    made = plan(Problem(topology, Collective.ALL_TO_ALL, demands=given), algorithm="two-stage", ring=False)
    assert made.report.ok
    assert made.loss <= (Fraction(3, 100) if name == "mi100" else Fraction(1, 1000))
    direct = two_stages(topology, demand, deal=Deal.DIRECT)
    found = two_stages(topology, demand)
    assert direct is not None
    assert found is not None
    assert direct.reached >= found.reached * Fraction(11, 10)


@pytest.mark.parametrize("algorithm", ["two-stage", "fast", "sabre", "direct", None])
def test_the_verifier_counts_what_the_core_counted(algorithm: str | None) -> None:
    topology = preset("mi300x", boxes=2)
    demand = 3 * skewed(16, 5)
    problem = Problem(topology, Collective.ALL_TO_ALL, demands=demand)
    result = plan(problem, algorithm=algorithm)
    assert result.report.ok
    if algorithm == "direct":
        assert result.inv_rate == direct_inv_rate(problem)
    if algorithm == "two-stage":
        found = two_stages(topology, demand // 3)
        assert found is not None
        assert result.inv_rate == 3 * found.reached


def test_all_blocks_are_dealt() -> None:
    topology = preset("dgx-h100", boxes=3)
    demand = skewed(24, 7)
    for deal in (*Deal, None):
        found = two_stages(topology, demand, deal=deal)
        assert found is not None
        total = np.zeros((24, 24), dtype=np.int64)
        np.add.at(total, (found.source, found.target), found.amount)
        assert (total == demand * found.scale).all()


def test_few_hops_where_balance_brings_nothing() -> None:
    topology = preset("dgx-h100", boxes=2)
    even = np.ones((16, 16), dtype=np.int64)
    np.fill_diagonal(even, 0)
    found = two_stages(topology, even)
    assert found is not None
    assert found.reached == found.bound
    assert (found.into == found.target).all()


def test_the_rail_of_a_slow_gpu_takes_less() -> None:
    slow = scale_nodes(preset("dgx-h100", boxes=2), {"box0/gpu3": Fraction(1, 4)})
    demand = skewed(16, 0)
    found = two_stages(slow, demand)
    assert found is not None
    assert found.gap < 0.01


def test_no_boxes_no_stages() -> None:
    assert boxes_with_hops(preset("ring", gpus=8)) is None
    assert boxes_with_hops(preset("dgx-h100")) is None
    with pytest.raises(InputError, match="several boxes"):
        plan(preset("ring", gpus=4), "all_to_all", algorithm="two-stage")


def test_a_large_cluster_has_a_bracket() -> None:
    topology = preset("dgx-h100", boxes=32)
    found = concurrent_flow(Problem(topology, Collective.ALL_TO_ALL, demands=skewed(256, 3)), time_limit=60)
    assert found.exact
    assert found.split is not None


def test_distances_of_the_core_are_those_of_numpy() -> None:
    topology = preset("dgx-a100-pcie", boxes=2)
    length = np.random.default_rng(1).integers(0, 9, topology.num_links)
    for backwards in (False, True):
        both = [
            distances(topology, topology.rank_nodes, column, backwards=backwards)
            for column in (length, length.astype(np.float64))
        ]
        assert (both[0] == both[1]).all()
