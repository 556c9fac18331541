"""Routes: seeds choose among equally good paths, and ideal multipath uses all of them evenly."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.loads import schedule_loads
from coppice.schedule.schedule import Schedule, in_parts, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import Model
from coppice.simulation.simulated import Hashed, hashed_times, over_all_routes
from coppice.topology import Link, Node, NodeKind, Router, Topology, fat_tree, random_balanced
from simulation.cases import ring_on, shift_on
from support.alpha_beta import simulate


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(0, 6), st.integers(1, 6))
def test_equal_paths_are_all_shortest_widest_ones(seed: int, gpus: int, switches: int, cycles: int) -> None:
    topology = random_balanced(gpus, switches=switches, cycles=cycles, max_gb_per_s=3, seed=seed)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    for e, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        graph.add_edge(a, b, capacity=int(topology.capacity[e]))
    nodes = topology.rank_nodes.tolist()
    router = Router(topology, relay_gpus=True)
    for src in range(gpus):
        for dst in range(gpus):
            if src == dst:
                continue
            a, b = nodes[src], nodes[dst]
            switched = graph.copy()
            switched.remove_nodes_from([v for v in nodes if v not in (a, b)])
            usable = switched if nx.has_path(switched, a, b) else graph
            best = [tuple(path) for path in nx.all_shortest_paths(usable, a, b)]
            width = {p: min(graph.edges[hop]["capacity"] for hop in pairwise(p)) for p in best}
            widest = sorted(p for p in best if width[p] == max(width.values()))
            assert router.equal_paths(src, dst, most=1000) == widest
            for other in range(4):
                assert Router(topology, relay_gpus=True, seed=other).path(src, dst) in widest


def test_seed_zero_is_the_default_and_others_differ() -> None:
    topology = fat_tree(leaves=4, gpus_per_leaf=2, spines=4)
    default = [Router(topology).path(0, dst) for dst in range(2, 8)]
    assert [Router(topology, seed=0).path(0, dst) for dst in range(2, 8)] == default
    taken = Counter(Router(topology, seed=seed).path(0, 2)[2] for seed in range(400))
    assert len(taken) == 4
    assert min(taken.values()) > 60


def test_a_limit_on_routes_is_kept() -> None:
    with pytest.raises(InputError, match="at most 3 equally good paths from host0/gpu to host2/gpu"):
        Router(fat_tree(leaves=2, gpus_per_leaf=2, spines=4)).equal_paths(0, 2, most=3)


def test_parts_keep_dependencies_part_by_part() -> None:
    made = ring_on(fat_tree(leaves=2, gpus_per_leaf=2, spines=1))
    rows = made.num_transfers
    waits: list[list[int]] = [[] if i < 4 else [i - 4, i - 3] for i in range(rows)]
    chained = replace(
        made,
        step=np.full(rows, -1, dtype=np.int32),
        after_start=np.cumsum([0, *map(len, waits)], dtype=np.int64),
        after=np.array([w for each in waits for w in each], dtype=np.int32),
    )
    cut = in_parts(chained, 3)
    for i in range(rows):
        for j in range(3):
            row = 3 * i + j
            found = cut.after[cut.after_start[row] : cut.after_start[row + 1]].tolist()
            assert found == [3 * w + j for w in waits[i]]
            assert (cut.src[row], cut.chunk[row]) == (made.src[i], 3 * made.chunk[i] + j)
    assert in_parts(made, 1) is made


def test_parts_are_limited() -> None:
    made = ring_on(fat_tree(leaves=2, gpus_per_leaf=2, spines=1))
    for parts in (0, 2**26):
        with pytest.raises(InputError, match="1 or more parts"):
            in_parts(made, parts)


def test_a_spread_schedule_still_does_its_work() -> None:
    topology = fat_tree(leaves=3, gpus_per_leaf=2, spines=3, oversubscription=2, gb_per_s=6)
    made = ring_on(topology)
    spread = over_all_routes(made)
    assert spread.num_transfers == 3 * made.num_transfers
    assert verify_schedule(spread).ok
    assert (spread.path >= 0).all()
    # Under one seed a spine link may carry several flows; spread, all spine links carry the same.
    loads = schedule_loads(spread)
    ends = zip(topology.src.tolist(), topology.dst.tolist(), loads.load, strict=True)
    upward = {load for a, b, load in ends if load and topology.node_ids[b].startswith("spine")}
    assert len(upward) == 1
    assert loads.inv_rate <= min(schedule_loads(routed(made, seed=seed)).inv_rate for seed in range(8))


def test_routes_of_different_number_share_evenly() -> None:
    """From a to b there are two routes, from b to c three: six parts, three and two on each."""
    nodes = [Node(id=name) for name in "abc"]
    nodes += [Node(id=f"s{i}", kind=NodeKind.SWITCH) for i in range(6)]
    hops = [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
        *(("b", i) for i in (2, 3, 4)),
        *(("c", i) for i in (2, 3, 4)),
    ]
    hops += [("a", 5), ("c", 5)]
    links = [Link(src=name, dst=f"s{i}", gb_per_s=Fraction(1)) for name, i in hops]
    made = ring_on(Topology.of("uneven", nodes, links), Collective.ALL_GATHER)
    spread = over_all_routes(made)
    assert spread.num_chunks == 6 * made.num_chunks
    assert verify_schedule(spread).ok
    on_path = Counter(zip(spread.src.tolist(), spread.path.tolist(), strict=True))
    assert sorted(n for (src, _), n in on_path.items() if src == 0) == [6, 6]
    assert sorted(n for (src, _), n in on_path.items() if src == 1) == [4, 4, 4]


def test_named_paths_stay() -> None:
    made = routed(ring_on(fat_tree(leaves=2, gpus_per_leaf=2, spines=4)))
    assert over_all_routes(made) is made


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
