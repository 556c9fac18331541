"""Aggregating systems on links of topologies: loads counted by hand, the exact bound above all of them, refusals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.attainable import in_network_bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.innetwork.clusters import cluster_system
from coppice.innetwork.placement.trees import AddingNetwork, build_tree, stream_counts
from coppice.innetwork.places import places_of, with_adding
from coppice.innetwork.switch_trees import SwitchTrees
from coppice.innetwork.systems import SYSTEMS, AggregationCase, estimate
from coppice.innetwork.systems.nvls import nvls_share
from coppice.simulation.latency import least_latency
from coppice.simulation.models import model_of
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset

SWITCHED = {"fabric": "switch", "multicast": "true", "aggregate": "true"}

CLUSTERS = {
    "box": preset("dgx-h100"),
    "boxes": preset("dgx-h100", boxes=2, **SWITCHED),
    "rails": with_adding(preset("dgx-h100", boxes=3), "rail*"),
    "one rail": with_adding(preset("dgx-h100", boxes=2), "rail0"),
    "shared NICs": with_adding(preset("dgx-a100", boxes=2), "*"),
    "leaves and spines": with_adding(preset("fat-tree"), "*"),
    "spines": with_adding(preset("fat-tree"), "spine*"),
    "one leaf": with_adding(preset("fat-tree", oversubscription=2), "leaf1"),
    "torus": preset("torus", dims=(3, 3, 3)),
    "star": with_adding(preset("star", gpus=5), "switch"),
    "tray": preset("gb200-nvl72"),
}


def held(topology: Topology) -> dict[str, Fraction]:
    """Time for each byte of every system that a cluster holds."""
    found = {}
    for system in SYSTEMS:
        try:
            found[system] = cluster_system(system, topology).inv_rate
        except InputError:
            continue
    return found


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_system_beats_the_exact_bound(name: str) -> None:
    topology = CLUSTERS[name]
    problem = Problem(topology, Collective.ALL_REDUCE)
    bound = in_network_bound(problem).inv_rate / problem.shards
    systems = held(topology)
    assert systems or name == "one rail"
    for system, inv_rate in systems.items():
        assert inv_rate >= bound, system
        placed = cluster_system(system, topology)
        for model in map(model_of, ("nccl-2.30", "alpha-beta")):
            least = least_latency(problem, model).time_us
            for size in (1, 4096, 2**20, 2**30):
                time = placed.time_us(size, model)
                assert time >= float(bound) * size / 1000 * (1 - 1e-12)
                assert time >= least * (1 - 1e-12)


@settings(max_examples=40)
@given(st.data())
def test_no_system_beats_the_bound_on_drawn_networks(data: st.DataObject) -> None:
    """Two tiers of switches of which some add, links of any rate."""
    leaves = data.draw(st.integers(1, 3))
    per_leaf = data.draw(st.integers(1, 3))
    spines = data.draw(st.integers(1, 2))
    able = st.booleans()
    rate = st.integers(1, 6).map(Fraction)

    def switch(name: str) -> Node:
        adds = data.draw(able)
        return Node(id=name, kind=NodeKind.SWITCH, multicast=adds, aggregate=adds)

    nodes = [Node(id=f"g{i}") for i in range(leaves * per_leaf)]
    nodes += [switch(f"leaf{i}") for i in range(leaves)] + [switch(f"spine{i}") for i in range(spines)]
    links = [
        Link(src=f"g{i}", dst=f"leaf{i // per_leaf}", gb_per_s=data.draw(rate))
        for i in range(leaves * per_leaf)
    ]
    links += [
        Link(src=f"leaf{a}", dst=f"spine{b}", gb_per_s=data.draw(rate))
        for a in range(leaves)
        for b in range(spines)
    ]
    topology = Topology.of("drawn", nodes, links)
    if topology.num_ranks < 2:
        return
    problem = Problem(topology, Collective.ALL_REDUCE)
    systems = held(topology)
    if systems:
        bound = in_network_bound(problem).inv_rate / problem.shards
        assert min(systems.values()) >= bound


def test_a_star_is_the_closed_form() -> None:
    star = with_adding(preset("star", gpus=4), "*")
    assert held(star) == {
        **dict.fromkeys(
            ("switchml", "fpisa", "netreduce", "streaming", "sharp-v1", "sharp", "sharp-v3"), Fraction(1)
        ),
        "atp": Fraction(2),
        "nvls": nvls_share(4),
    }
    model = model_of("alpha-beta")
    case = AggregationCase(workers=4, gb_per_s=Fraction(1), rtt_us=1.0, radix=4)
    assert cluster_system("sharp", star).time_us(2**20, model) == estimate("sharp", case, 2**20).time_us


def test_streams_are_one_above_what_adds_and_many_above_what_does_not() -> None:
    tree = preset("fat-tree", leaves=2, gpus_per_leaf=3, spines=1)
    index, ranks = tree.node_index, tree.rank_nodes.tolist()
    spine, leaf = index["spine0"], index["leaf0"]
    up, down = tree.link_index[leaf, spine], tree.link_index[spine, leaf]
    for adding, streams, tiers in (([spine], 3, 1), ([spine, leaf, index["leaf1"]], 1, 2)):
        found = SwitchTrees(tree, adding).tree(spine, ranks)
        assert (found.streams[up], found.streams[down], found.tiers) == (streams, streams, tiers)
    around_leaf = SwitchTrees(tree, [leaf]).tree(leaf, ranks)
    assert around_leaf.streams[down] == around_leaf.streams[up] == 3


def test_boxes_reduce_to_heads_first() -> None:
    rails = CLUSTERS["rails"]
    phases, across = Fraction(2 * 7, 8 * 450), Fraction(1, 8 * 50)
    assert cluster_system("netreduce", rails).inv_rate == phases + across
    assert cluster_system("sharp", rails).inv_rate == max(phases, across)
    assert {tree.root for tree in cluster_system("sharp", rails).trees} == {
        rails.node_index[f"rail{i}"] for i in range(8)
    }
    for boxes in (2, 3, 4, 5, 6, 9):
        case = {
            "workers": 8 * boxes,
            "gpus": 8,
            "nics": 8,
            "gb_per_s": Fraction(50),
            "box_gb_per_s": Fraction(450),
        }
        closed = estimate("nvls-tree", AggregationCase(**case), 10**9).gb_per_s
        assert float(1 / cluster_system("nvls-tree", preset("dgx-h100", boxes=boxes)).inv_rate) == closed
    assert 1 / cluster_system("nvls", CLUSTERS["box"]).inv_rate == 400


def test_boxes_may_be_unequal() -> None:
    switch = Node(id="sw", kind=NodeKind.SWITCH, multicast=True, aggregate=True)
    nodes = [Node(id=f"a{i}", host="a") for i in range(3)] + [Node(id="b0", host="b")]
    inside = [Link(src=f"a{i}", dst=f"a{j}", gb_per_s=Fraction(4)) for i in range(3) for j in range(i)]
    links = [Link(src=node.id, dst="sw", gb_per_s=Fraction(1)) for node in nodes]
    topology = Topology.of("unequal", [*nodes, switch], inside + links)
    found = cluster_system("netreduce", topology)
    assert (found.heads, found.members) == (1, 2)
    assert found.inv_rate == Fraction(2, 4) + 1


def test_latencies_of_links_count_both_ways() -> None:
    nodes = [
        *(Node(id=f"g{i}") for i in range(2)),
        Node(id="s", kind=NodeKind.SWITCH, multicast=True, aggregate=True),
    ]
    slow = [Link(src=f"g{i}", dst="s", gb_per_s=Fraction(1), latency_us=50.0 * i) for i in range(2)]
    far = cluster_system("sharp", Topology.of("far", nodes, slow))
    near = cluster_system(
        "sharp", Topology.of("near", nodes, [replace(each, latency_us=0.0) for each in slow])
    )
    model = model_of("alpha-beta")
    assert far.time_us(1024, model) - near.time_us(1024, model) == pytest.approx(100)


@pytest.mark.parametrize(
    ("system", "name", "told"),
    [
        ("switchml", "box", "needs a switch outside boxes that adds and copies; dgx-h100 has none"),
        ("sharp", "torus", "needs a switch outside boxes"),
        ("nvls", "boxes", "that all GPUs hang on directly; 2 x dgx-h100 has none"),
        ("nvls-tree", "shared NICs", "that all GPUs of a box hang on directly; 2 x dgx-a100 has none"),
        ("nvls-tree", "box", "several boxes of as many GPUs each, 2 or more; dgx-h100 has one box"),
        ("sharp", "one rail", "finds no way|switch that adds and that all boxes reach"),
        ("camdoop", "star", "needs a 3D torus"),
        ("netagg", "star", "needs boxes beside the switches"),
        ("switchagg", "star", "no all-reduce by itself"),
    ],
)
def test_what_a_cluster_cannot_hold_is_said(system: str, name: str, told: str) -> None:
    with pytest.raises(InputError, match=f"^{system} .*({told})"):
        cluster_system(system, CLUSTERS[name])


def test_patterns_name_switches_outside_boxes() -> None:
    boxes = preset("dgx-h100", boxes=2)
    found = with_adding(boxes, "rail0+rail1")
    assert [boxes.node_ids[v] for v in places_of(found).network] == ["rail0", "rail1"]
    assert np.array_equal(found.aggregate[found.host >= 0], boxes.aggregate[boxes.host >= 0])
    assert places_of(with_adding(found, "rail2")).network == (boxes.node_index["rail2"],)
    with pytest.raises(
        InputError, match=r"found 'core\*': fat-tree of 12 x 4, 2 spines has leaf0, .*, \.\.\.\."
    ):
        with_adding(preset("fat-tree", leaves=12), "core*")
    with pytest.raises(InputError, match="torus 2x2 has none"):
        with_adding(preset("torus", dims=(2, 2)), "*")


@given(st.data())
def test_streams_are_those_of_the_placement_of_switches(data: st.DataObject) -> None:
    """Another count of the same streams: with one spine every route is the only one."""
    leaves, per_leaf = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    tree = preset("fat-tree", leaves=leaves, gpus_per_leaf=per_leaf, spines=1)
    if tree.num_ranks < 2:
        return
    root = data.draw(st.sampled_from(np.flatnonzero(tree.kind == NodeKind.SWITCH).tolist()))
    others = np.flatnonzero(tree.kind == NodeKind.SWITCH).tolist()
    adding = {root, *data.draw(st.sets(st.sampled_from(others)))}
    ranks = tree.rank_nodes.tolist()
    network = AddingNetwork(tree)
    placed = build_tree(network, ranks, root)
    assert placed is not None
    counted = {network.edges[edge]: count for edge, count in stream_counts(placed, adding).items()}
    found = SwitchTrees(tree, adding).tree(root, ranks).streams
    ends = {link: (int(tree.src[link]), int(tree.dst[link])) for link in found}
    assert {(min(ab), max(ab)) for ab in ends.values()} == set(counted)
    for link, streams in found.items():
        assert streams == counted[min(ends[link]), max(ends[link])]
