"""Hashed flows collide, ideal multipath does not, and the median lies between it and the worst case."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.schedule.schedule import Schedule, routed
from coppice.simulation.hashed import Hashed, hashed_times
from coppice.simulation.model import Model
from coppice.topology import Topology, fat_tree
from simulation.cases import ring_on, shift_on
from support.ideal import simulate

BLOCK = 2**20


@pytest.fixture(scope="module")
def network() -> Topology:
    """A fat-tree of 2:1: a leaf with 4 GPUs of 8 GB/s has four links of 4 GB/s up."""
    return fat_tree(leaves=4, gpus_per_leaf=4, spines=4, oversubscription=2, gb_per_s=8)


def time_us(schedule: Schedule) -> float:
    return simulate(schedule, 16 * BLOCK, model=Model(overhead_us=0)).time_us


def most_flows_on_a_link(schedule: Schedule) -> int:
    start, nodes = schedule.path_start.tolist(), schedule.path_nodes.tolist()
    names = schedule.topology.node_ids
    flows: Counter[tuple[int, int]] = Counter()
    for path in schedule.path.tolist():
        hops = pairwise(nodes[start[path] : start[path + 1]])
        flows.update(hop for hop in hops if any(names[v].startswith("spine") for v in hop))
    return max(flows.values())


def test_collisions_cost_what_they_must(network: Topology) -> None:
    """Every GPU sends a block to the next leaf: with k flows on the worst link, k blocks at 4 GB/s."""
    shift = shift_on(network, 4)
    found = hashed_times(shift, 40, time_us)
    ideal = 4 * BLOCK / 16e3  # four blocks leave a leaf at 16 GB/s
    assert found.multipath_us == pytest.approx(ideal, rel=1e-6)
    worst = [most_flows_on_a_link(routed(shift, seed=seed)) for seed in range(40)]
    assert max(worst) >= 3
    for flows, time in zip(worst, found.times_us.tolist(), strict=True):
        # A flow may queue on its way up and once more on its way down.
        assert flows * BLOCK / 4e3 * (1 - 1e-6) <= time <= (2 * flows - 1) * BLOCK / 4e3 * (1 + 1e-6)
    assert found.multipath_us < found.median_us <= found.p99_us == found.times_us.max()
    assert len(set(found.times_us.tolist())) > 1


def test_whole_collective_is_between_multipath_and_worst(network: Topology) -> None:
    made = ring_on(network)
    found = hashed_times(made, 12, time_us)
    assert found.times_us[0] == time_us(made)  # seed 0 is the default
    assert found.multipath_us <= found.times_us.min() * (1 + 1e-9)


def test_quantiles_are_those_of_nearest_rank() -> None:
    found = Hashed(times_us=np.arange(100, 0, -1.0), multipath_us=1.0)
    assert (found.median_us, found.p99_us) == (50.0, 99.0)
    odd = Hashed(times_us=np.array([5.0, 9.0, 7.0]), multipath_us=1.0)
    assert (odd.median_us, odd.p99_us) == (7.0, 9.0)
    one = Hashed(times_us=np.array([7.0]), multipath_us=1.0)
    assert (one.median_us, one.p99_us) == (7.0, 7.0)


def test_nothing_to_hash_is_said(network: Topology) -> None:
    with pytest.raises(InputError, match="nothing is left to a hash"):
        hashed_times(routed(shift_on(network, 4)), 4, time_us)
    with pytest.raises(InputError, match="1 or more seeds"):
        hashed_times(shift_on(network, 4), 0, time_us)
