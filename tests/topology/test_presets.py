"""Presets equal the reference graphs, up to the names of nodes."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import pytest

from coppice.errors import InputError
from coppice.topology import (
    PRESETS,
    NodeKind,
    RailFabric,
    Topology,
    circulant,
    generalized_kautz,
    preset,
    random_balanced,
    resolve,
    torus,
)
from support.shared_data import forest_oracle, needs_shared

ORACLE = {entry["name"]: entry for entry in forest_oracle()}

EQUAL = {
    "a100x1": ("dgx-a100", {}),
    "a100x2": ("dgx-a100", {"boxes": 2}),
    "mi250x1": ("mi250", {}),
    "mi250x2": ("mi250", {"boxes": 2}),
    "dgx1v": ("dgx-1v", {}),
    "dgx1v_x2_ib": ("dgx-1v", {"boxes": 2}),
    "h100x2_rail4": ("dgx-h100", {"boxes": 2, "gpus": 4}),
    "h100x4_8gpu": ("dgx-h100", {"boxes": 4, "fabric": "switch"}),
    "ring8_bi": ("ring", {}),
    "ring7_bi_hetero": ("ring", {"gpus": 7, "gb_per_s": (3, 1, 4, 2, 5, 2, 6)}),
    "torus4x4": ("torus", {}),
    "mesh3x3": ("mesh", {}),
    "mesh2x5": ("mesh", {"dims": (2, 5)}),
    "hypercube4": ("hypercube", {}),
    "complete8": ("complete", {}),
    "pcie_box4": ("pcie-box", {}),
    "fattree_4x4_2spine_full": ("fat-tree", {}),
    "dragonfly_3g_2r_2h": ("dragonfly", {}),
    "path5_hetero": ("path", {"gpus": 5, "gb_per_s": (4, 2, 5, 3)}),
    "petersen": ("petersen", {}),
    "star_switch_one_slow": ("star", {"gb_per_s": (3, 10, 10, 10, 10)}),
    "star_switch_multi_speed": ("star", {"gb_per_s": (4, 6, 6, 12, 12, 12)}),
}


def as_graph(topology: Topology) -> nx.DiGraph:
    graph = nx.DiGraph()
    for v, kind in enumerate(topology.kind.tolist()):
        graph.add_node(v, gpu=kind == NodeKind.GPU)
    for e in range(topology.num_links):
        graph.add_edge(int(topology.src[e]), int(topology.dst[e]), rate=topology.gb_per_s(e))
    return graph


def oracle_graph(entry: dict[str, Any]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(entry["compute"], gpu=True)
    graph.add_nodes_from(entry["switches"], gpu=False)
    for a, b, rate in entry["edges"]:
        graph.add_edge(a, b, rate=Fraction(str(rate)))
    return graph


@needs_shared
@pytest.mark.parametrize("name", EQUAL)
def test_preset_equals_the_reference_graph(name: str) -> None:
    preset_name, values = EQUAL[name]
    ours, theirs = as_graph(preset(preset_name, **values)), oracle_graph(ORACLE[name])
    assert nx.is_isomorphic(
        ours, theirs, node_match=lambda a, b: a == b, edge_match=lambda a, b: a["rate"] == b["rate"]
    )


@needs_shared
@pytest.mark.parametrize(
    "name", ["a100x2", "mi250x2", "dgx1v_x2_ib", "torus4x4", "ring7_bi_hetero", "mesh2x5"]
)
def test_ranks_are_those_of_the_reference_graph(name: str) -> None:
    preset_name, values = EQUAL[name]
    topology, entry = preset(preset_name, **values), ORACLE[name]
    rank_of = {v: r for r, v in enumerate(topology.rank_nodes.tolist())}
    theirs = {gpu: r for r, gpu in enumerate(sorted(entry["compute"], key=_by_number))}
    between_gpus = Counter(
        (rank_of[a], rank_of[b], topology.gb_per_s(e))
        for e, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        if a in rank_of and b in rank_of
    )
    assert between_gpus == Counter(
        (theirs[a], theirs[b], Fraction(str(rate)))
        for a, b, rate in entry["edges"]
        if a in theirs and b in theirs
    )


def _by_number(name: str) -> tuple[str, list[int]]:
    parts = "".join(c if c.isdigit() else " " for c in name).split()
    return (name[0], [int(part) for part in parts])


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_sound(name: str) -> None:
    entry = PRESETS[name]
    several = {"boxes": 3} if entry.host else {}
    for values in ({}, several):
        topology = preset(name, **values)
        assert topology.num_ranks >= 4
        assert topology.source
        assert entry.description
        assert nx.is_strongly_connected(as_graph(topology))
        balance = np.zeros(topology.num_nodes, dtype=np.int64)
        np.add.at(balance, topology.dst, topology.capacity)
        np.subtract.at(balance, topology.src, topology.capacity)
        assert not balance.any()


@pytest.mark.parametrize("name", [name for name, entry in PRESETS.items() if entry.host])
def test_measured_rates_never_exceed_nominal_ones(name: str) -> None:
    nominal, measured = (preset(name, boxes=2, rates=rates) for rates in ("nominal", "measured"))
    assert nominal.node_ids == measured.node_ids
    assert nominal.src.tolist() == measured.src.tolist()
    assert nominal.dst.tolist() == measured.dst.tolist()
    pairs = [(measured.gb_per_s(e), nominal.gb_per_s(e)) for e in range(nominal.num_links)]
    assert all(low <= high for low, high in pairs)
    assert any(low < high for low, high in pairs)


@pytest.mark.parametrize(
    ("name", "per_gpu"),
    [
        ("dgx-1v", {"nominal": 150, "measured": 120}),
        ("dgx-a100", {"nominal": 300, "measured": 240}),
        ("dgx-h100", {"nominal": 450, "measured": Fraction("370.8")}),
        ("hgx-h200", {"nominal": 450, "measured": Fraction("370.8")}),
        ("dgx-b200", {"nominal": 900, "measured": Fraction("721.8")}),
        ("gb200-nvl72", {"nominal": 900, "measured": Fraction("721.8")}),
        ("mi300x", {"nominal": 448, "measured": 336}),
    ],
)
def test_rate_out_of_each_gpu(name: str, per_gpu: dict[str, Fraction]) -> None:
    for rates, expected in per_gpu.items():
        topology = preset(name, rates=rates)
        for v in topology.rank_nodes.tolist():
            out = sum(topology.gb_per_s(e) for e in np.flatnonzero(topology.src == v).tolist())
            assert out == expected


def test_torus_rates_by_dimension_and_single_links() -> None:
    topology = torus((2, 3, 4), gb_per_s=(5, 3, 1))
    assert Counter(topology.capacity.tolist()) == {5: 24, 3: 48, 1: 48}
    out_of_0 = {int(b): int(c) for a, b, c in _rows(topology) if a == 0}
    assert out_of_0 == {12: 5, 4: 3, 8: 3, 1: 1, 3: 1}


def _rows(topology: Topology) -> list[tuple[int, int, int]]:
    return list(zip(topology.src.tolist(), topology.dst.tolist(), topology.capacity.tolist(), strict=True))


def test_generalized_kautz_has_the_published_distances() -> None:
    graph = as_graph(generalized_kautz(16, 2))
    assert nx.diameter(graph) == 4
    graph = as_graph(generalized_kautz(64, 4))
    assert nx.diameter(graph) == 3


def test_circulant_folds_the_half_offset() -> None:
    topology = circulant(8, (1, 4))
    assert topology.num_links == 24
    assert set(topology.capacity.tolist()) == {1}
    assert circulant(8, (1, 3), directed=True).num_links == 16
    with pytest.raises(InputError, match="different offsets"):
        circulant(8, (1, 7))


def test_random_balanced_is_reproducible_and_connected() -> None:
    one, again, other = (random_balanced(9, switches=4, seed=seed) for seed in (5, 5, 6))
    assert one.sha256 == again.sha256 != other.sha256
    assert nx.is_strongly_connected(as_graph(one))
    inward = np.bincount(one.dst, weights=one.capacity, minlength=13)
    assert inward.tolist() == np.bincount(one.src, weights=one.capacity, minlength=13).tolist()


def test_fabric_of_a_preset_can_be_chosen() -> None:
    plain = preset("dgx-h100", boxes=4)
    assert sum("rail" in name for name in plain.node_ids) == 8
    spined = resolve("dgx-h100", boxes=4, options={"spines": "2", "oversubscription": "2"})
    up = spined.link_index[spined.node_index["rail0"], spined.node_index["spine1"]]
    assert spined.gb_per_s(up) == 50
    mapped = preset("dgx-h100", boxes=2, fabric=RailFabric(rails=1))
    assert "rail0" in mapped.node_ids
    assert "rail1" not in mapped.node_ids
    noded = preset("dgx-h100", boxes=2, nics="node")
    assert int((noded.kind == NodeKind.NIC).sum()) == 16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resolve("dgx-a1000"), "did you mean 'dgx-a100'"),
        (lambda: resolve("no/such.json"), "there is no file no/such.json"),
        (lambda: resolve("torus", options={"dim": "4x4"}), "did you mean 'dims'"),
        (lambda: resolve("torus", options={"dims": "4xa"}), "whole numbers such as 4x4x8 for dims"),
        (lambda: resolve("torus", options={"dims": "0x4"}), "sizes of 1 or more"),
        (lambda: resolve("dgx-a100", options={"rates": "fast"}), "nominal or measured"),
        (lambda: resolve("dgx-a100", boxes=2, options={"fabric": "rails"}), "did you mean 'rail'"),
        (lambda: resolve("dgx-a100", boxes=0), "1 .. 65536 boxes"),
        (lambda: resolve("ring", options={"boxes": "2"}), "no parameter 'boxes'"),
        (lambda: preset("ring", gpu=3), "did you mean 'gpus'"),
        (lambda: preset("ring", gpus=0), "1 .. 1048576 GPUs"),
        (lambda: preset("ring", gpus=4, gb_per_s=(1, 2)), "one rate or 4"),
        (lambda: preset("hypercube", dimension=30), "dimension 0 .. 20"),
        (lambda: preset("mi100", gpus=6), "gpus=4"),
        (lambda: preset("dgx-h100", gpus=0), "1 .. 1024 GPUs"),
        (lambda: preset("complete", gpus=10**6), "1 .. 2048"),
    ],
)
def test_bad_parameters_are_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
