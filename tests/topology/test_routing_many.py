"""Paths of many pairs at once, from the native core, against the readable router, one path at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, pairs
from coppice.schedule.schedule import Schedule, in_pieces, routed
from coppice.topology import Link, Node, NodeKind, Router, Topology, fat_tree, preset, random_balanced, subset

FORWARDING = (NodeKind.SWITCH, NodeKind.NIC)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """GPUs, some of them without rank, switches and NICs in any order; few rates, so that many ways are equal."""
    gpus = draw(st.integers(2, 6))
    kinds = [NodeKind.GPU] * gpus + draw(st.lists(st.sampled_from(FORWARDING), max_size=7))
    kinds = draw(st.permutations(kinds))
    nodes = [Node(id=f"n{v}", kind=kind) for v, kind in enumerate(kinds)]
    ends = st.integers(0, len(nodes) - 1)
    drawn = draw(st.lists(st.tuples(ends, ends, st.integers(1, 3), st.booleans()), max_size=5 * len(nodes)))
    links = [
        Link(src=f"n{a}", dst=f"n{b}", gb_per_s=Fraction(rate), duplex=duplex) for a, b, rate, duplex in drawn
    ]
    topology = Topology.of("drawn", nodes, links)
    ranks = draw(st.permutations(range(gpus)))[: draw(st.integers(1, gpus))]
    return subset(topology, ranks, relays=True)


Request = tuple[int, int, int]


def one_at_a_time(router: Router, requests: list[Request]) -> list[tuple[int, ...]] | str:
    """The paths, or what is said of the first that does not exist."""
    try:
        return [router.path(src, dst, channel=channel) for src, dst, channel in requests]
    except UnreachableError as error:
        return str(error)


def at_once(router: Router, requests: list[Request]) -> list[tuple[int, ...]] | str:
    """The same from `Router.paths`."""
    src, dst, channel = np.array(requests, dtype=np.int64).reshape(-1, 3).T
    try:
        return split(*router.paths(src, dst, channel))
    except UnreachableError as error:
        return str(error)


def split(start: NDArray[np.int64], nodes: NDArray[np.int32]) -> list[tuple[int, ...]]:
    return [tuple(nodes[a:b].tolist()) for a, b in itertools.pairwise(start.tolist())]


@given(
    topologies(),
    st.booleans(),
    st.integers(0, 3) | st.integers(0, 2**70),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**62)), max_size=30),
)
def test_many_paths_are_those_of_one_at_a_time(
    topology: Topology, relay: bool, seed: int, drawn: list[Request]
) -> None:
    router = Router(topology, relay_gpus=relay, seed=seed)
    ranks = topology.num_ranks
    requests = [(src % ranks, dst % ranks, channel) for src, dst, channel in drawn]
    expected = one_at_a_time(router, requests)
    event("unreachable" if isinstance(expected, str) else "routed")
    assert at_once(router, requests) == expected
    # What has a path, all of it together: one pair without must not hide the others.
    reached = [
        (src, dst, channel)
        for dst in range(ranks)
        for src in range(ranks)
        for channel in range(3)
        if not isinstance(one_at_a_time(router, [(src, dst, 0)]), str)
    ]
    assert at_once(router, reached) == one_at_a_time(router, reached)


@pytest.mark.parametrize("seed", [0, 5])
def test_presets(seed: int) -> None:
    for topology in (
        preset("dgx-a100", boxes=2),
        preset("dgx-h100", boxes=2, fabric="switch"),
        fat_tree(leaves=4, gpus_per_leaf=3, spines=5),
        preset("path", gpus=5),
    ):
        router = Router(topology, relay_gpus=True, seed=seed)
        ranks = range(topology.num_ranks)
        requests = [(src, dst, channel) for src in ranks for dst in ranks for channel in range(2)]
        assert at_once(router, requests) == one_at_a_time(router, requests), topology.name


def all_to_all(topology: Topology) -> Schedule:
    """One transfer for every two ranks, in no order of receivers."""
    case = AlgorithmCase(topology=topology, collective=Collective.ALL_TO_ALL)
    gpus = topology.num_ranks
    moves, at = Moves(case, pairs(case)), np.arange(gpus)
    for shift in range(1, gpus):
        moves.add(shift - 1, at, (at + shift) % gpus, at * gpus + (at + shift) % gpus)
    return moves.schedule()


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("steps", [True, False])
def test_every_transfer_of_a_schedule_takes_its_path(steps: bool, seed: int) -> None:
    topology = fat_tree(leaves=3, gpus_per_leaf=3, spines=4)
    schedule = in_pieces(all_to_all(topology), 3)
    if not steps:
        schedule = replace(schedule, step=np.full_like(schedule.step, -1))
    found = routed(schedule, seed=seed)
    router = Router(topology, seed=seed)
    paths = split(found.path_start, found.path_nodes)
    columns = (found.src, found.dst, found.chunk, found.path)
    assert len(found.src) == 9 * 8 * 3
    for src, dst, chunk, path in zip(*(column.tolist() for column in columns), strict=True):
        assert paths[path] == router.path(src, dst, channel=0 if steps else chunk % 3)
    assert (found.path_start.dtype, found.path_nodes.dtype) == (np.int64, np.int32)


def test_a_schedule_without_a_way_names_its_first_pair_by_receiver() -> None:
    schedule = all_to_all(preset("path", gpus=4))
    with pytest.raises(UnreachableError, match=r"from gpu2 to gpu0 .*`relay_gpus`"):
        routed(schedule)
    assert len(routed(schedule, relay_gpus=True).path_nodes) == 6 * 2 + 4 * 3 + 2 * 4


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
