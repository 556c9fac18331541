"""Topologies from and to networkx."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from coppice.errors import InputError
from coppice.topology.model import NodeKind
from coppice.topology.presets import preset
from coppice.topology.readers import from_networkx, read_file, to_networkx
from support.reader_samples import JSON


def test_there_and_back() -> None:
    topology = read_file(JSON)
    back = from_networkx(to_networkx(topology))
    assert back.sha256 == topology.sha256
    assert back.name == topology.name


def test_gpus_stay_what_they_are() -> None:
    box = preset("dgx-h100")
    back = from_networkx(to_networkx(box))
    assert (back.arch, back.cpu) == (box.arch, box.cpu)
    assert to_networkx(box).nodes["gpu0"]["arch"] == "sm_90"
    assert "arch" not in to_networkx(box).nodes["nvswitch"]


def test_undirected_edges_have_their_rate_each_way_and_parallel_ones_add_up() -> None:
    graph = nx.MultiGraph()
    graph.add_node(0)
    graph.add_node("s", kind=NodeKind.SWITCH, multicast=True)
    graph.add_edge(0, "s", gb_per_s=0.1)
    graph.add_edge("s", 0, gb_per_s="1/5")
    topology = from_networkx(graph)
    assert topology.node_ids == ("0", "s")
    assert topology.kind.tolist() == [NodeKind.GPU, NodeKind.SWITCH]
    assert [topology.gb_per_s(e) for e in range(topology.num_links)] == [Fraction(3, 10)] * 2


@pytest.mark.parametrize("value", [25, 25.0, Decimal(25), Fraction(25), np.float64(25), np.int32(25), "25"])
def test_rates_of_all_kinds(value: object) -> None:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", capacity=value)
    topology = from_networkx(graph, rate="capacity")
    assert topology.num_links == 1
    assert topology.gb_per_s(0) == 25


def test_rounding() -> None:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", gb_per_s=1 / 3)
    assert from_networkx(graph, round_digits=3).gb_per_s(0) == Fraction(333, 1000)


def test_missing_rates_and_clashing_names_are_refused() -> None:
    graph = nx.path_graph(2)
    with pytest.raises(InputError, match="gb_per_s"):
        from_networkx(graph)
    graph = nx.Graph()
    graph.add_nodes_from([1, "1"])
    with pytest.raises(InputError, match="unique"):
        from_networkx(graph)
    graph = nx.Graph()
    graph.add_edge("a", "b", gb_per_s=float("inf"))
    with pytest.raises(InputError, match=r"graph\.links\[0\]\.gb_per_s"):
        from_networkx(graph)
