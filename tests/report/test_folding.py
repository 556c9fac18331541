"""Drawings of large topologies: what is alike stands as one with its number, and nothing is lost or mixed."""

from __future__ import annotations

import time
from collections import Counter
from fractions import Fraction

import pytest

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.report.topology.picture import Drawing, drawing_of, topology_picture
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import remove_links
from coppice.topology.presets import preset
from coppice.topology.sources import resolve
from support.geometry_checks import check_layout

LARGE = [
    ("dgx-h100", 40, {}),
    ("dgx-h100", 128, {}),
    ("gb200-nvl72", 2, {}),
    ("dgx-a100-pcie", 8, {}),
    ("mi250", 20, {}),
    ("star", None, {"gpus": "300"}),
    ("fat-tree", None, {"leaves": "20", "gpus_per_leaf": "16"}),
    ("dragonfly", None, {"groups": "16", "routers_per_group": "4"}),
]


def labels(drawn: Drawing) -> Counter[str]:
    return Counter(node.label for node in drawn.graph.nodes)


@pytest.mark.parametrize(("name", "boxes", "options"), LARGE, ids=str)
def test_every_node_stands_somewhere_with_its_like(
    name: str, boxes: int | None, options: dict[str, str]
) -> None:
    topology = resolve(name, boxes=boxes, options=options)
    assert topology.num_nodes >= 100
    cut = bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).cut
    begin = time.process_time()
    drawn = drawing_of(topology, cut)
    assert time.process_time() - begin < 3
    check_layout(drawn.layout, drawn.cut)
    assert len(drawn.graph.nodes) < 100
    assert drawn.omitted == (
        f"what is alike stands as one, {len(drawn.graph.nodes)} for {topology.num_nodes:,} nodes",
    )
    members = [v for node in drawn.graph.nodes for v in node.members]
    assert sorted(members) == list(range(topology.num_nodes))
    side = set(cut)
    for number, node in enumerate(drawn.graph.nodes):
        assert len({(topology.kind[v], v in side) for v in node.members}) == 1
        assert all(drawn.graph.drawn[v] == number for v in node.members)
    lines = [each for links in drawn.graph.links.values() for each in links]
    apart = [(a, b) for a, b in topology.link_index if drawn.graph.drawn[a] != drawn.graph.drawn[b]]
    assert sorted(lines) == sorted(apart)
    picture = topology_picture(topology, cut=cut)
    assert len(picture.svg) < 200_000
    assert {pair for pair in topology.link_index if pair in picture.joined} == set(apart)


def test_a_cluster_of_rails_is_one_box_and_127_like_another() -> None:
    topology = preset("dgx-h100", boxes=128)
    inside = [v for v in range(topology.num_nodes) if topology.host[v] == 27]
    drawn = drawing_of(topology, inside)
    assert sorted(frame.name for frame in drawn.layout.frames) == ["127 boxes like box0", "box27"]
    assert [frame.stacked for frame in drawn.layout.frames] == [True, False]
    assert labels(drawn)["gpu0"] == labels(drawn)["gpu7"] == 2
    assert "127 links like box0/gpu0 → rail0: 50 GB/s" in topology_picture(topology, cut=inside).svg


def test_nodes_of_a_box_that_are_alike_are_counted() -> None:
    topology = resolve("gb200-nvl72", boxes=2)
    drawn = drawing_of(topology, [topology.node_index["box0/gpu3"]])
    assert labels(drawn)["71 GPUs"] == labels(drawn)["72 GPUs"] == labels(drawn)["gpu3"] == 1
    assert "71 nodes alike: box0/gpu0, " in topology_picture(topology, cut=[3]).svg


def test_leaf_switches_and_their_gpus_are_groups() -> None:
    topology = resolve("fat-tree", options={"leaves": "20", "gpus_per_leaf": "16"})
    drawn = drawing_of(topology, [0])
    assert {frame.name for frame in drawn.layout.frames} == {"leaf0", "19 groups like leaf1"}
    assert {"host0", "host15", "host16", "spine0"} <= labels(drawn).keys()


def test_a_box_that_lost_a_link_stands_by_itself() -> None:
    whole = preset("dgx-h100", boxes=16)
    left = remove_links(whole, [("box5/gpu2", "rail2")])
    names = {frame.name for frame in drawing_of(left, whole=whole).layout.frames}
    assert names == {"box5", "15 boxes like box0"}
    text = topology_picture(left, whole=whole).svg
    assert "box5/gpu2 → rail2: lost" in text
    assert text.count('class="cross"') == 1


def test_unlike_boxes_beyond_all_room_stand_by_their_kinds() -> None:
    """Two hundred hosts, each with GPUs of another rate."""
    nodes = [Node(id="spine", kind=NodeKind.SWITCH)]
    links = []
    for host in range(200):
        nodes += [Node(id=f"h{host}/gpu{at}", host=f"h{host}") for at in range(2)]
        links += [Link(src=f"h{host}/gpu{at}", dst="spine", gb_per_s=Fraction(host + 1)) for at in range(2)]
    drawn = drawing_of(Topology.of("uneven", nodes, links), [1, 2])
    check_layout(drawn.layout, drawn.cut)
    assert len(drawn.graph.nodes) < 100
    assert sum(len(node.members) for node in drawn.graph.nodes) == 401


def test_links_from_group_to_group_are_arcs_above_them() -> None:
    topology = resolve("dragonfly", options={"groups": "16", "routers_per_group": "4"})
    layout = drawing_of(topology, [0]).layout
    top = min(frame.y for frame in layout.frames)
    between = [way for way in layout.routes.values() if min(y for _, y in way.flat) < top - 5]
    assert between
    assert all(y < top + 30 for way in between for _, y in way.flat)
