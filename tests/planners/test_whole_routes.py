"""Whole blocks on one way each: paths that lead where they should, loads as said, and orders that keep links busy."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from bounds.sizes.test_least_times import drawn
from coppice import _core
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.planners.ordering import by_longest_way
from coppice.planners.whole_routes import WholeRoutes, least_waiting, whole_routes
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.least_time import LeastTimes
from coppice.simulation.models import model_of
from coppice.simulation.simulator import fastest
from coppice.topology.presets import preset
from reference.circuits import LoadedLinks

DRAGONFLY = Problem(preset("dragonfly", groups=5, routers_per_group=2, gpus_per_router=2), "all_to_all")


def check(found: WholeRoutes) -> None:
    """Every part has a path of its own ranks, and the fullest link is as full as said."""
    topology, ranks = found.problem.topology, found.problem.topology.num_ranks
    nodes, load = topology.rank_nodes.tolist(), np.zeros(topology.num_links)
    ends = [(i, j) for i in range(ranks) for j in range(ranks) if i != j for _ in range(found.parts)]
    for (i, j), links in zip(ends, found.links, strict=True):
        assert (topology.src[links[0]], topology.dst[links[-1]]) == (nodes[i], nodes[j])
        assert all(topology.dst[a] == topology.src[b] for a, b in pairwise(links))
        load[list(links)] += 1 / found.parts
    least = float(bound_of(found.problem).inv_rate)
    assert found.load == pytest.approx(float((load * topology.denominator / topology.capacity).max()) / least)
    assert found.load > 1 - 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_routes_on_drawn_networks(seed: int) -> None:
    rng = random.Random(f"whole {seed}")
    topology = drawn(rng, most=7)
    if topology.num_ranks < 2:
        pytest.skip("one rank")
    problem, parts = Problem(topology, "all_to_all"), rng.choice((1, 2, 3))
    found = whole_routes(problem, bound_of(problem), parts=parts)
    check(found)
    made = least_waiting(found, np.ones(topology.num_links), rng.choice((0.0, 1.0)))
    verify_schedule(made, relay_gpus=True).require_ok()
    assert made.num_chunks == parts * topology.num_ranks * (topology.num_ranks - 1)


@pytest.mark.parametrize("seed", range(12))
def test_as_the_reference(seed: int) -> None:
    """The native kernel takes the same links as plain Python, whose loads are as exact."""
    rng = random.Random(f"circuits {seed}")
    topology = drawn(rng, most=8) if seed else preset("dragonfly", groups=3, routers_per_group=2)
    parts, rounds = rng.choice((1, 2, 3)), [(rng.choice((1, 4, 8, 16)), rng.random()) for _ in range(4)]
    rate = [rng.choice((1.0, 2.0, 3.5)) for _ in range(topology.num_links)]
    fixed = [rng.choice((0.0, 0.25, 1.0)) for _ in range(topology.num_links)]
    ends = topology.rank_nodes.tolist(), topology.src.tolist(), topology.dst.tolist()
    slow = LoadedLinks(*ends, rate, fixed, 4.0)
    load, routes = slow.routed(parts, rounds, 1.001)
    found_load, loads, start, links = _core.route_circuits(
        topology.num_nodes,
        topology.src,
        topology.dst,
        np.array(rate),
        np.array(fixed),
        topology.rank_nodes.astype(np.int32),
        parts,
        np.array([power for power, _ in rounds], dtype=np.int32),
        np.array([message for _, message in rounds]),
        4.0,
        1.001,
    )
    assert found_load == load
    assert loads.tolist() == slow.loads
    assert [links[a:b].tolist() for a, b in pairwise(start)] == [routes[key] for key in sorted(routes)]


def test_only_blocks_that_have_to_take_full_links() -> None:
    """What stays in a box of two MI250 leaves the network to the rest, which crosses in one message."""
    problem = Problem(preset("mi250", boxes=2), "all_to_all")
    found = whole_routes(problem, bound_of(problem))
    check(found)
    assert found.load == 1
    topology = problem.topology
    network = np.flatnonzero(topology.rank < 0)[0]
    through = [links for links in found.links if topology.dst[links[0]] == network]
    assert len(through) == 2 * 16 * 16
    assert all(len(links) == 2 for links in through)
    assert all(topology.host[topology.src[a]] != topology.host[topology.dst[b]] for a, b in through)


def test_the_busiest_links_wait_least() -> None:
    """The same routes in the order of the ranks leave links between groups idle."""
    model, size = model_of(None), 2**18
    routes = whole_routes(DRAGONFLY, bound_of(DRAGONFLY))
    topology = DRAGONFLY.topology
    part_us = size / topology.num_ranks * topology.denominator / topology.capacity / 1000
    found = least_waiting(routes, part_us, 14.0)
    plain = by_longest_way(found, np.ones(found.num_transfers), 1, pieces_first=False)
    least_us = LeastTimes(DRAGONFLY, model).at(size).time_us
    ours, theirs = (fastest(each, size, model=model, keep_hops=False).time_us for each in (found, plain))
    assert least_us < ours < 0.9 * theirs
