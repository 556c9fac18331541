"""Default routing against brute force: fewest hops, then widest, then spread by the hash."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import UnreachableError
from coppice.topology import Link, Node, NodeKind, Router, Topology, fat_tree, preset, random_balanced, subset


def graph_of(topology: Topology) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    for e, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        graph.add_edge(a, b, capacity=int(topology.capacity[e]))
    return graph


def width_of(graph: nx.DiGraph, path: tuple[int, ...]) -> int:
    return min(graph.edges[edge]["capacity"] for edge in itertools.pairwise(path))


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(0, 6), st.integers(1, 6), st.booleans())
def test_paths_are_shortest_then_widest(
    seed: int, gpus: int, switches: int, cycles: int, relay: bool
) -> None:
    topology = random_balanced(gpus, switches=switches, cycles=cycles, max_gb_per_s=4, seed=seed)
    graph = graph_of(topology)
    router = Router(topology, relay_gpus=relay)
    ranks = topology.rank_nodes.tolist()
    for src in range(gpus):
        for dst in range(gpus):
            if src == dst:
                assert router.path(src, dst) == (ranks[src],)
                continue
            a, b = ranks[src], ranks[dst]
            others = [v for v in ranks if v not in (a, b)]
            switched = graph.copy()
            switched.remove_nodes_from(others)
            allowed = switched if nx.has_path(switched, a, b) else graph
            if allowed is graph and not relay:
                with pytest.raises(UnreachableError, match="`relay_gpus`"):
                    router.path(src, dst)
                continue
            best = [tuple(path) for path in nx.all_shortest_paths(allowed, a, b)]
            widest = max(width_of(graph, path) for path in best)
            for channel in range(3):
                path = router.path(src, dst, channel=channel)
                assert path in best
                assert width_of(graph, path) == widest


def test_channels_spread_over_equal_paths() -> None:
    topology = fat_tree(leaves=2, gpus_per_leaf=2, spines=4)
    router = Router(topology)
    used = Counter(topology.node_ids[router.path(0, 2, channel=c)[2]] for c in range(400))
    assert set(used) == {f"spine{j}" for j in range(4)}
    assert min(used.values()) > 60


def test_routes_are_the_same_every_time() -> None:
    topology = fat_tree(leaves=2, gpus_per_leaf=2, spines=4)
    names = [topology.node_ids[Router(topology).path(0, 3, channel=c)[2]] for c in range(8)]
    assert names == [f"spine{j}" for j in EXPECTED_SPINES]


EXPECTED_SPINES = (1, 3, 3, 0, 0, 0, 3, 0)


def test_gpus_without_rank_forward() -> None:
    line = preset("path", gpus=3)
    with pytest.raises(UnreachableError, match="gpu0 to gpu2"):
        Router(line).path(0, 2)
    assert Router(line, relay_gpus=True).path(0, 2) == (0, 1, 2)
    assert Router(subset(line, [0, 2], relays=True)).path(0, 1) == (0, 1, 2)


def test_a_switch_is_preferred_to_a_shorter_way_through_gpus() -> None:
    nodes = [Node(id="a"), Node(id="b"), Node(id="c")]
    nodes += [Node(id=name, kind=NodeKind.SWITCH) for name in ("s", "t")]
    links = [
        Link(src=a, dst=b, gb_per_s=Fraction(1))
        for a, b in (("a", "b"), ("b", "c"), ("a", "s"), ("s", "t"), ("t", "c"))
    ]
    topology = Topology.of("detour", nodes, links)
    assert Router(topology, relay_gpus=True).path(0, 2) == (0, 3, 4, 2)


def test_no_way_at_all_is_said() -> None:
    apart = Topology.of("apart", [Node(id="a"), Node(id="b")], [])
    with pytest.raises(UnreachableError, match="found none at all"):
        Router(apart, relay_gpus=True).path(0, 1)


def test_old_searches_are_forgotten_and_made_again() -> None:
    topology = preset("dgx-h100", boxes=2, fabric="switch")
    router = Router(topology)
    router._max_trees = 2
    paths = {(a, b): router.path(a, b) for a in range(16) for b in range(16)}
    assert len(router._trees) == 2
    assert all(Router(topology).path(a, b) == path for (a, b), path in paths.items())
