"""What forests reach where switches send more than they get."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from coppice import _core
from coppice.bounds.attainable import attainable_rate, in_network_bound
from coppice.bounds.network import Network, cut_bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError, UnreachableError
from coppice.topology.model import Link, Node, NodeKind, Topology
from reference.strategies import topologies


def lopsided(*, up: int, down: int, ranks: int = 3, able: bool = False) -> Topology:
    nodes = [*(Node(id=f"g{i}") for i in range(ranks))]
    nodes.append(Node(id="sw", kind=NodeKind.SWITCH, multicast=able, aggregate=able))
    links = [Link(src=f"g{i}", dst="sw", gb_per_s=Fraction(up), duplex=False) for i in range(ranks)]
    links += [Link(src="sw", dst=f"g{i}", gb_per_s=Fraction(down), duplex=False) for i in range(ranks)]
    return Topology.of("star", nodes, links)


@pytest.mark.parametrize(
    ("collective", "up", "down", "expected"),
    [
        (Collective.ALL_GATHER, 1, 4, 2),
        (Collective.ALL_GATHER, 4, 1, 2),
        (Collective.REDUCE_SCATTER, 4, 1, 2),
        (Collective.REDUCE_SCATTER, 1, 4, 2),
    ],
)
def test_star(collective, up, down, expected):
    problem = Problem(topology=lopsided(up=up, down=down), collective=collective)
    assert attainable_rate(problem).inv_rate == expected


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE])
def test_rooted(collective):
    up, down = (1, 4) if collective is Collective.BROADCAST else (4, 1)
    problem = Problem(topology=lopsided(up=up, down=down), collective=collective, root=1)
    found = attainable_rate(problem)
    assert found.inv_rate == 1
    check(problem, found.inv_rate, found.capacity)


def test_balanced_switches_take_the_cut_bound_at_once():
    problem = Problem(topology=lopsided(up=2, down=2), collective=Collective.ALL_GATHER)
    found = attainable_rate(problem, time_limit=0.0)
    assert found.inv_rate == cut_bound(Network.of(problem)).inv_rate == 1
    assert found.capacity == [2] * 6


def test_copying_restores_the_cut_bound():
    problem = Problem(topology=lopsided(up=1, down=4, able=True), collective=Collective.ALL_GATHER)
    assert attainable_rate(problem).inv_rate == 2
    assert in_network_bound(problem).inv_rate == cut_bound(Network.of(problem)).inv_rate == 1


def test_without_time_there_is_a_clear_failure():
    problem = Problem(topology=lopsided(up=1, down=4, ranks=16), collective=Collective.ALL_GATHER)
    with pytest.raises(CheckError, match="not proved"):
        attainable_rate(problem, time_limit=0.0)


def test_a_small_network_takes_the_time_that_it_needs():
    problem = Problem(topology=lopsided(up=1, down=4), collective=Collective.ALL_GATHER)
    assert attainable_rate(problem, time_limit=0.0).inv_rate == 2


@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_TO_ALL])
def test_other_collectives_are_refused(collective):
    with pytest.raises(InputError, match=str(collective)):
        attainable_rate(Problem(topology=lopsided(up=1, down=4), collective=collective))


def test_all_to_all_has_no_in_network_bound():
    with pytest.raises(InputError, match="all_to_all"):
        in_network_bound(Problem(topology=lopsided(up=1, down=4), collective=Collective.ALL_TO_ALL))


@given(topologies())
@settings(max_examples=80, deadline=None)
def test_capacities_can_be_packed_and_the_cut_bound_is_no_worse(topology):
    weights = tuple(1 + rank % 3 for rank in range(topology.num_ranks))
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        problem = Problem(topology=topology, collective=collective, weights=weights)
        try:
            found = attainable_rate(problem)
        except UnreachableError:
            return
        assert found.inv_rate >= cut_bound(Network.of(problem)).inv_rate
        if found.inv_rate:
            check(problem, found.inv_rate, found.capacity)


def check(problem: Problem, inv_rate: Fraction, capacity: list[Fraction]) -> None:
    """Within the links; balanced at switches unless that was free of charge; every cut holds exactly."""
    topology, network = problem.topology, Network.of(problem)
    reverse = problem.collective.reduces
    tail, head = (topology.dst, topology.src) if reverse else (topology.src, topology.dst)
    scale = int(np.lcm.reduce([f.denominator for f in [1 / inv_rate, *capacity]], dtype=object))
    units = np.array([int(f * scale) for f in capacity], dtype=np.int64)
    for e in range(topology.num_links):
        assert 0 <= capacity[e] <= topology.gb_per_s(e)
    supply = network.weight * int(scale / inv_rate)
    cuts = _core.violated_cuts(
        topology.num_nodes, tail, head, units, supply, network.terminal, int(supply.sum()), 1
    )
    assert not cuts
    balance = np.zeros(topology.num_nodes, dtype=np.int64)
    np.add.at(balance, head, units)
    np.subtract.at(balance, tail, units)
    assert (balance[~network.terminal] >= 0).all()
