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
from coppice.schedule.schedule import in_parts, routed
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.hashed import over_all_routes
from coppice.topology import Link, Node, NodeKind, Router, Topology, fat_tree, random_balanced
from simulation.cases import ring_on


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
