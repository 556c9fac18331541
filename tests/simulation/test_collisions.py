"""Collisions of hashed routes: native draws are the routes of each seed, and their means are what is expected."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import coppice
from coppice import InputError
from coppice.schedule.loads import schedule_loads
from coppice.schedule.schedule import Schedule, routed
from coppice.simulation.collisions import (
    Flows,
    by_switch,
    collisions,
    drawn,
    expected_busiest,
    flows_of,
    outcomes,
)
from coppice.simulation.simulated import over_all_routes
from coppice.topology.model import Topology


def schedule_of(topology: Topology, collective: str, algorithm: str) -> Schedule:
    made = coppice.plan(topology, collective, algorithm=algorithm).plan.schedule
    assert made is not None
    return made


CASES = {
    "ring": (lambda: coppice.load("fat-tree", leaves=4, gpus_per_leaf=2, spines=4), "all_gather", "ring"),
    "all": (lambda: coppice.load("fat-tree", leaves=3, gpus_per_leaf=2, spines=2), "all_to_all", "linear"),
    "rails": (
        lambda: coppice.compose(["4xdgx-h100"], fabric="rail", spines=2, hosts_per_leaf=2),
        "reduce_scatter",
        "ring",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_draws_are_the_routes_of_each_seed(name: str) -> None:
    make, collective, algorithm = CASES[name]
    schedule = schedule_of(make(), collective, algorithm)
    flows = flows_of(schedule)
    found = drawn(flows, 12)
    unit = None
    for seed in range(12):
        loads = schedule_loads(routed(schedule, seed=seed))
        ratios = [load / c for load, c in zip(loads.load, schedule.topology.capacity.tolist(), strict=True)]
        unit = unit or max(ratios) / found.busiest[seed]
        assert max(ratios) == pytest.approx(found.busiest[seed] * unit, rel=1e-12)
    even = schedule_loads(over_all_routes(schedule))
    part = even.shard / schedule_loads(routed(schedule)).shard
    most = max(load / c for load, c in zip(even.load, schedule.topology.capacity.tolist(), strict=True))
    assert float(most / part) == pytest.approx(found.even * unit, rel=1e-12)


def test_the_mean_of_many_draws_is_what_is_expected() -> None:
    network = coppice.load("fat-tree", leaves=2, gpus_per_leaf=6, spines=3)
    senders = np.arange(6)
    flows = Flows(
        topology=network,
        src=senders,
        dst=senders + 6,
        channel=np.zeros(6, dtype=np.int64),
        units=np.ones(6, dtype=np.int64),
    )
    exact = expected_busiest(flows)
    assert exact is not None
    links = int(
        network.capacity[network.link_index[network.node_index["leaf0"], network.node_index["spine0"]]]
    )
    counted = sum(max(draw.count(way) for way in range(3)) for draw in product(range(3), repeat=6))
    assert exact == Fraction(counted, 3**6 * links)
    found = drawn(flows, 20_000)
    deviation = float(found.chosen.std()) / len(found.chosen) ** 0.5
    assert abs(float(found.chosen.mean()) - float(exact)) < 4 * deviation


def test_outcomes_are_counted() -> None:
    for flows, ways, most in product(range(5), range(1, 4), range(5)):
        draws = product(range(ways), repeat=flows)
        expected = sum(all(draw.count(way) <= most for way in range(ways)) for draw in draws)
        assert outcomes(flows, ways, most) == expected


def test_flows_that_are_not_alike_have_no_exact_mean() -> None:
    network = coppice.load("fat-tree", leaves=2, gpus_per_leaf=2, spines=2)
    columns = {
        "topology": network,
        "src": np.array([0, 1]),
        "dst": np.array([2, 3]),
        "channel": np.zeros(2, np.int64),
    }
    assert expected_busiest(Flows(**columns, units=np.array([1, 2]))) is None
    assert expected_busiest(Flows(**columns, units=np.array([1, 1]))) is not None
    star = schedule_of(coppice.load("star"), "all_gather", "ring")
    assert expected_busiest(flows_of(star)) is None  # nothing is chosen


def test_what_is_tried_helps() -> None:
    network = coppice.load("fat-tree", leaves=4, gpus_per_leaf=4, spines=4)
    found = collisions(schedule_of(network, "all_to_all", "linear"), 200)
    by_name = {way.name: way for way in found.ways}
    assert by_name["8 queue pairs"].quantile(0.99) < by_name["hashed"].quantile(0.99)
    assert by_name["4 paths"].quantile(1.0) == pytest.approx(1.0)
    assert found.best.quantile(0.99) <= found.plain.quantile(0.99)
    src, dst, share = found.worst_pair
    assert src // 4 != dst // 4
    assert 0 < share <= 1
    assert set(found.record()) >= {"hashes", "hashed_flows", "against_collisions", "helps_most", "worst_pair"}


def test_orders_keep_boxes_together() -> None:
    network = coppice.compose(["4xdgx-h100"], fabric="rail", spines=2, hosts_per_leaf=2)
    order = by_switch(network)
    assert sorted(order) == list(range(32))
    assert all(
        len({network.host[network.rank_nodes[r]] for r in order[i : i + 8]}) == 1 for i in range(0, 32, 8)
    )


def test_paths_leave_nothing_to_a_hash() -> None:
    forest = coppice.plan("fat-tree", "all_gather", ring=False).plan.body
    with pytest.raises(InputError, match="nothing is left to a hash"):
        flows_of(forest)
    with pytest.raises(InputError, match="1 or more"):
        collisions(schedule_of(coppice.load("star"), "all_gather", "ring"), 0)
