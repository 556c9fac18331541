"""The native file, as JSON and YAML: exact numbers, and messages with the place."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset
from coppice.topology.readers import from_networkx, read, read_file, to_networkx
from coppice.topology.readers.document import topology_document, topology_json, write_topology
from support.reader_samples import JSON, YAML


def rate(topology: Topology, a: str, b: str) -> Fraction:
    return topology.gb_per_s(topology.link_index[topology.node_index[a], topology.node_index[b]])


def document(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "format": "coppice-topology",
        "version": 1,
        "name": "pair",
        "nodes": [{"id": "a"}, {"id": "b"}],
        "links": [{"from": "a", "to": "b", "gb_per_s": 1}],
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not ...}


def refused(text: bytes | dict[str, Any], options: dict[str, str] | None = None) -> str:
    data = text if isinstance(text, bytes) else json.dumps(text).encode()
    with pytest.raises(InputError) as caught:
        read(data, options=options)
    return str(caught.value)


@pytest.mark.parametrize("data", [JSON, YAML], ids=["json", "yaml"])
def test_the_sample_is_read_exactly(data: bytes) -> None:
    topology = read_file(data)
    assert topology.name == "two boxes"
    assert topology.source == "made up"
    assert topology.num_ranks == 4
    assert topology.hosts == ("a", "b")
    assert rate(topology, "a0", "wire") == rate(topology, "wire", "a0") == Fraction(25, 2)
    assert rate(topology, "a1", "wire") == Fraction(75, 7)
    assert ("wire", "a1") not in {(link.src, link.dst) for link in topology.links()}
    assert rate(topology, "card", "wire") == Fraction(1, 10)
    assert rate(topology, "b0", "b1") == 300
    wire = topology.node_index["wire"]
    assert topology.multicast[wire]
    assert not topology.aggregate[wire]
    assert topology.kind[topology.node_index["card"]] == NodeKind.NIC
    assert topology.latency_us[topology.link_index[0, wire]] == 1.5


def test_json_and_yaml_agree() -> None:
    assert read_file(JSON).sha256 == read_file(YAML).sha256


def test_a_number_means_its_decimal_digits() -> None:
    text = b"""{"format":"coppice-topology","version":1,"nodes":[{"id":"a"},{"id":"b"}],
      "links":[{"from":"a","to":"b","gb_per_s":0.30000000000000000000001e0}]}"""
    assert "round" in refused(text)
    topology = read_file(text.replace(b"0.30000000000000000000001e0", b"0.3"))
    assert topology.gb_per_s(0) == Fraction(3, 10)


def test_parallel_links_add_up_and_duplex_is_the_default() -> None:
    links = [
        {"from": "a", "to": "b", "gb_per_s": 1},
        {"from": "b", "to": "a", "gb_per_s": "1/2", "duplex": False},
    ]
    topology = read_file(json.dumps(document(links=links)).encode())
    assert (rate(topology, "a", "b"), rate(topology, "b", "a")) == (1, Fraction(3, 2))


def test_rounding_makes_unwieldy_rates_fit() -> None:
    links = [
        {"from": "a", "to": "b", "gb_per_s": "1/2147483647"},
        {"from": "a", "to": "b", "gb_per_s": "100/2147483629"},
    ]
    text = json.dumps(document(links=links)).encode()
    assert "2^31" in refused(text)
    assert "`round_digits=3`" in refused(text)
    assert "rounds to 0" in refused(text, {"round": "3"})
    links[0]["gb_per_s"], links[1]["gb_per_s"] = "10000000000/2147483647", "1/3"
    topology = read(json.dumps(document(links=links)).encode(), options={"round": "3"}).topology
    assert topology.gb_per_s(0) == Fraction(4657 + 333, 1000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "coppice-plan"}, ["$.format", "plan"]),
        ({"format": ...}, ["$.format", "nothing"]),
        ({"version": 2}, ["$.version", "newer", "upgrade"]),
        ({"version": "1"}, ["$.version"]),
        ({"version": True}, ["$.version"]),
        ({"nodez": []}, ["$ has an unknown key", "did you mean 'nodes'"]),
        ({"nodes": {}}, ["$.nodes", "a list"]),
        ({"nodes": [{"id": "a"}, 7]}, ["$.nodes[1]", "an object", "7"]),
        ({"nodes": [{"id": "a"}, {"id": "b", "kindd": "gpu"}]}, ["$.nodes[1]", "did you mean 'kind'"]),
        ({"nodes": [{"id": "a"}, {"id": "b", "kind": "cpu"}]}, ["$.nodes[1].kind", "gpu, switch, nic"]),
        ({"nodes": [{"id": "a"}, {"id": "a"}]}, ["$.nodes[1].id", "unique"]),
        ({"nodes": [{"id": "a"}, {"id": 5}]}, ["$.nodes[1].id", "text"]),
        ({"nodes": [{"id": "a"}, {"id": ""}]}, ["$.nodes[1].id"]),
        ({"nodes": [{"id": "a"}, {"id": "b", "rank": 1.5}]}, ["$.nodes[1].rank", "1.5"]),
        ({"nodes": [{"id": "a"}, {"id": "b", "rank": True}]}, ["$.nodes[1].rank"]),
        ({"nodes": [{"id": "a"}, {"id": "b", "kind": "nic", "rank": 0}]}, ["$.nodes[1].rank", "GPUs"]),
        ({"nodes": [{"id": "a", "rank": -1}, {"id": "b", "rank": -1}]}, ["rank -1"]),
        ({"nodes": [{"id": "a", "multicast": 1}, {"id": "b"}]}, ["$.nodes[0].multicast", "true or false"]),
        ({"links": ...}, ["$.links", "a list"]),
        ({"links": [{"from": "a", "to": "b"}]}, ["$.links[0].gb_per_s", "nothing"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": -1}]}, ["$.links[0].gb_per_s", "0 or more"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": "fast"}]}, ["$.links[0].gb_per_s", "fast"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": "1/0"}]}, ["$.links[0].gb_per_s"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": True}]}, ["$.links[0].gb_per_s"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": 10**40}]}, ["$.links[0].gb_per_s", "unit"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": float("nan")}]}, ["$.links[0].gb_per_s", "NaN"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": 1, "latency_us": -1}]}, ["$.links[0].latency_us"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": 1, "bw": 3}]}, ["$.links[0]", "unknown key 'bw'"]),
        ({"links": [{"from": "a", "to": "c", "gb_per_s": 1}]}, ["$.links[0].to", "'c'"]),
        ({"links": [{"from": "a", "to": "a", "gb_per_s": 1}]}, ["$.links[0]", "itself"]),
        ({"links": [{"from": "a", "to": "b", "gb_per_s": 1, "duplex": "no"}]}, ["$.links[0].duplex"]),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], words: list[str]) -> None:
    message = refused(document(**changes))
    assert all(word in message for word in words), message


def test_huge_exponents_do_not_explode() -> None:
    text = JSON.replace(b"12.5", b"1e999999999")
    assert "$.links[1].gb_per_s" in refused(text)


def test_a_repeated_key_is_named_with_its_place() -> None:
    twice = JSON.replace(b'"gb_per_s": 12.5', b'"gb_per_s": 12.5, "gb_per_s": 13')
    assert "$.links[1]" in refused(twice)
    assert "'gb_per_s' twice" in refused(twice)
    twice = YAML.replace(b"gb_per_s: 12.5", b"gb_per_s: 12.5, gb_per_s: 13")
    assert "$.links[1]" in refused(twice)


def test_broken_json_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    path.write_bytes(JSON[: len(JSON) // 2])
    with pytest.raises(InputError, match=r"box\.json:\d+:\d+ is not JSON"):
        read_file(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"nodes: &a [1]\nlinks: *a\n", ["anchor"]),
        (b"nodes: !!python/object:os.system x\n", ["tag"]),
        (b"name: a\n---\nname: b\n", ["second document", ":2"]),
        (b"nodes: [1, 2\n", ["is not YAML"]),
        (b"nodes: " + b"[" * 30 + b"]" * 30, ["levels"]),
        (b"1: 2\nnodes: []\n", ["key that is not text"]),
    ],
)
def test_yaml_beyond_plain_is_refused(text: bytes, words: list[str]) -> None:
    message = refused(text)
    assert all(word in message for word in words), message


def test_relays_have_no_rank() -> None:
    nodes = [{"id": "a"}, {"id": "b", "rank": -1}, {"id": "c"}]
    topology = read_file(json.dumps(document(nodes=nodes)).encode())
    assert topology.rank.tolist() == [0, -1, 1]
    nodes = [{"id": "a", "rank": 1}, {"id": "b"}, {"id": "c", "rank": 0}]
    topology = read_file(json.dumps(document(nodes=nodes)).encode())
    assert topology.rank.tolist() == [1, -1, 0]


def test_name_and_file_name(tmp_path: Path) -> None:
    path = tmp_path / "my box.json"
    path.write_text(json.dumps(document(name=...)))
    assert read_file(path).name == "my box"
    assert read_file(path, name="other").name == "other"


def test_unknown_options_are_refused_with_a_suggestion() -> None:
    assert "did you mean 'rates'" in refused(JSON, {"rate": "nominal"})
    assert "did you mean 'nominal'" in refused(JSON, {"rates": "nomina"})
    assert "round" in refused(JSON, {"round": "x"})


def test_options_without_meaning_are_told() -> None:
    assert "mean nothing" in read(JSON, options={"rates": "nominal"}).warnings[0]


@pytest.mark.parametrize("content", [b"", b"   \n", b"hello\n", b"\x89PNG\r\n\0\0", b"\0" * 100])
def test_other_files_are_refused(content: bytes) -> None:
    assert "give one of coppice JSON" in refused(content)


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, "a\0b"):
        with pytest.raises(InputError, match="cannot read"):
            read_file(path)


rates = st.one_of(
    st.integers(1, 10**6).map(Fraction),
    st.fractions(min_value=Fraction(1, 12), max_value=1000, max_denominator=12),
)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    size = draw(st.integers(2, 7))
    kinds = [NodeKind.GPU, *draw(st.lists(st.sampled_from(NodeKind), min_size=size - 1, max_size=size - 1))]
    ranked = draw(st.booleans())
    nodes = []
    for i, kind in enumerate(kinds):
        rank = None
        if ranked and kind == NodeKind.GPU and (i == 0 or draw(st.booleans())):
            rank = sum(node.rank is not None for node in nodes)
        host = draw(st.sampled_from([None, "h0", "höst 1"]))
        nodes.append(Node(id=f'n"{i}ü', kind=kind, host=host, rank=rank, multicast=draw(st.booleans())))
    ends = st.integers(0, size - 1)
    links = draw(
        st.lists(st.tuples(ends, ends, rates, st.sampled_from([0.0, 0.7, 5e-7, 3.0]), st.booleans()))
    )
    return Topology.of(
        "näme",
        nodes,
        [
            Link(src=nodes[a].id, dst=nodes[b].id, gb_per_s=r, latency_us=latency, duplex=duplex)
            for a, b, r, latency, duplex in links
        ],
        source="drawn",
    )


@given(topologies())
def test_what_is_written_reads_back_the_same(topology: Topology) -> None:
    data = topology_json(topology)
    back = read_file(data)
    assert back.sha256 == topology.sha256
    assert (back.name, back.source) == (topology.name, topology.source)
    assert topology_json(back) == data
    import yaml

    text = yaml.safe_dump(topology_document(topology), allow_unicode=True, sort_keys=False).encode()
    assert read_file(text).sha256 == topology.sha256


def test_the_writer_writes_short_decimals_fractions_and_both_directions_once() -> None:
    nodes = [Node(id=name) for name in "abc"]
    links = [
        Link(src="a", dst="b", gb_per_s=Fraction(75, 2)),
        Link(src="b", dst="c", gb_per_s=Fraction(75, 7), latency_us=1.0),
        Link(src="c", dst="a", gb_per_s=Fraction(3), duplex=False),
    ]
    assert topology_document(Topology.of("t", nodes, links))["links"] == [
        {"from": "a", "to": "b", "gb_per_s": 37.5},
        {"from": "b", "to": "c", "gb_per_s": "75/7", "latency_us": 1},
        {"from": "c", "to": "a", "gb_per_s": 3, "duplex": False},
    ]


def test_writing_replaces_a_file_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "box.json"
    path.write_text("old")
    topology = read_file(JSON)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_topology(topology, path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["box.json"]
    write_topology(topology, path)
    assert read_file(path).sha256 == topology.sha256
    assert [entry.name for entry in tmp_path.iterdir()] == ["box.json"]
    with pytest.raises(InputError, match="cannot write"):
        write_topology(topology, tmp_path / "no such directory" / "box.json")


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
    graph.add_node(0, kind="gpu")
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
    topology = from_networkx(graph, rate="capacity", kind="gpu")
    assert topology.num_links == 1
    assert topology.gb_per_s(0) == 25
    in_bits = from_networkx(graph, rate="capacity", unit="Gb/s", kind="gpu")
    assert in_bits.gb_per_s(0) == Fraction(25, 8)


def test_rounding() -> None:
    graph = nx.DiGraph()
    graph.add_edge("a", "b", gb_per_s=1 / 3)
    assert from_networkx(graph, round_digits=3, kind="gpu").gb_per_s(0) == Fraction(333, 1000)


def test_missing_rates_and_clashing_names_are_refused() -> None:
    graph = nx.path_graph(2)
    graph.edges[0, 1]["capacity"] = 100
    with pytest.raises(InputError, match=r"'gb_per_s' on the edge 0 - 1, found 'capacity': .*unit='Gb/s'"):
        from_networkx(graph, kind="gpu")
    with pytest.raises(
        InputError, match=r"a kind at the node 0 \(gpu, switch or nic\), found none: .*kind='gpu'"
    ):
        from_networkx(graph, rate="capacity")
    with pytest.raises(InputError, match=r"expected a `unit` of GB/s, .* found 'bits'"):
        from_networkx(graph, rate="capacity", unit="bits", kind="gpu")
    graph = nx.Graph()
    graph.add_nodes_from([1, "1"])
    with pytest.raises(InputError, match="unique"):
        from_networkx(graph, kind="gpu")
    graph = nx.Graph()
    graph.add_edge("a", "b", gb_per_s=float("inf"))
    with pytest.raises(InputError, match="gb_per_s of 'a' - 'b'"):
        from_networkx(graph, kind="gpu")
