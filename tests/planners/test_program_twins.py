"""The exact linear programs behind the bounds against the twins that write every cut and every path out."""

from __future__ import annotations

import pytest

from coppice.bounds import Problem
from coppice.bounds.all_reduce import combined_all_reduce
from coppice.bounds.all_to_all.concurrent_flow import concurrent_flow
from coppice.bounds.attainable import attainable_rate
from coppice.collectives import Collective
from reference import attainable, brute_force
from reference.expected import broadcast_view
from reference.network import describe, network_of, supply_of
from reference.strategies import (
    BALANCED_FAMILIES,
    CONNECTED_FAMILIES,
    UNBALANCED_FAMILIES,
    seeded,
    seeded_problem,
    slow_uplinks,
)


@pytest.mark.parametrize("block", range(10))
def test_attainable_rate(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        problem = seeded_problem(seed, UNBALANCED_FAMILIES, 9)
        rate = attainable.attainable_rate(broadcast_view(problem), supply_of(problem))
        found = attainable_rate(problem)
        assert float(found.inv_rate) * rate == pytest.approx(1, rel=1e-7), describe(problem)
        check_capacity(problem, found.capacity)


def check_capacity(problem: Problem, capacity: list) -> None:
    """What is said to be packable is within the links, and no switch sends more than it gets."""
    topology = problem.topology
    surplus = dict.fromkeys(range(topology.num_nodes), 0)
    for e, (u, v) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        assert 0 <= capacity[e] <= topology.gb_per_s(e), f"link {u} -> {v}: {describe(problem)}"
        surplus[u] += capacity[e]
        surplus[v] -= capacity[e]
    sign = -1 if problem.collective.reduces else 1
    for w in network_of(topology).switches:
        assert sign * surplus[w] <= 0, f"node {w}: {describe(problem)}"


@pytest.mark.parametrize("block", range(10))
def test_combined_all_reduce(block: int) -> None:
    for seed in range(block * 14, block * 14 + 14):
        topology = seeded(seed, CONNECTED_FAMILIES, 7)
        found = combined_all_reduce(Problem(topology=topology, collective=Collective.ALL_REDUCE))
        assert found.exact, describe(topology)
        assert found.rate is not None
        rate = attainable.all_reduce_rate(network_of(topology))
        assert float(found.rate) == pytest.approx(rate, rel=1e-7), describe(topology)
        assert sum(found.root_rates.values()) == found.rate, describe(topology)


@pytest.mark.parametrize("block", range(6))
def test_concurrent_flow(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        topology = seeded(seed, (*BALANCED_FAMILIES, slow_uplinks), 7)
        found = concurrent_flow(Problem(topology=topology, collective=Collective.ALL_TO_ALL))
        rate = brute_force.all_to_all_rate(network_of(topology))
        assert found.exact, describe(topology)
        assert float(found.inv_rate) * rate == pytest.approx(1, rel=1e-7), describe(topology)
