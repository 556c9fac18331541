"""Hosts and fabrics, from Python and from cluster files."""

from __future__ import annotations

import json
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.topology import (
    DirectFabric,
    DragonflyFabric,
    Fabric,
    FatTreeFabric,
    Host,
    Node,
    NodeKind,
    Port,
    RailFabric,
    SwitchFabric,
    Topology,
    compose,
    default_ports,
    gpu_ports,
    preset,
    repeated,
    resolve,
)
from coppice.topology.composition.fabric import HostCable, fabric_from_fields
from coppice.topology.readers.document import write_topology
from support.injuries import injured
from support.shared_data import SHARED, needs_shared

GPU = Topology.of("gpu", [Node(id="gpu0")], [])


def hosts_of(count: int, ports: int, rate: int = 10) -> list[Host]:
    box = Topology.of("box", [Node(id=f"gpu{i}") for i in range(ports)], [])
    return repeated(Host(name="box", topology=box, ports=gpu_ports(box, Fraction(rate))), count)


def joined(hosts: list[Host], fabric: Fabric) -> Topology:
    return compose(hosts, fabric, name="joined")


def rate(topology: Topology, a: str, b: str) -> Fraction:
    e = topology.link_index.get((topology.node_index[a], topology.node_index[b]))
    return Fraction(0) if e is None else topology.gb_per_s(e)


def test_ranks_hosts_and_names_follow_the_hosts() -> None:
    topology = joined(hosts_of(3, 2), SwitchFabric(name="sw"))
    assert topology.hosts == ("box0", "box1", "box2")
    names = [topology.node_ids[v] for v in topology.rank_nodes.tolist()]
    assert names == [f"box{h}/gpu{i}" for h in range(3) for i in range(2)]
    assert topology.node_ids[-1] == "sw"
    assert topology.host[-1] == -1
    assert topology.num_links == 12


def test_ranks_and_relays_of_a_host_are_kept() -> None:
    box = Topology.of("box", [Node(id="a", rank=1), Node(id="spare"), Node(id="b", rank=0)], [])
    host = Host(name="h1", topology=box, ports=gpu_ports(box, Fraction(5)))
    topology = joined(repeated(host, 2), SwitchFabric())
    names = [topology.node_ids[v] for v in topology.rank_nodes.tolist()]
    assert names == ["h1-0/b", "h1-0/a", "h1-1/b", "h1-1/a"]
    assert topology.rank[topology.node_index["h1-1/spare"]] == -1


def test_a_nic_lies_between_the_host_and_its_cable() -> None:
    port = Port(at="gpu0", gb_per_s=Fraction(25), nic="nic0", nic_gb_per_s=Fraction(24), latency_us=2)
    topology = joined(repeated(Host(name="h", topology=GPU, ports=(port,)), 2), SwitchFabric(latency_us=1.5))
    assert rate(topology, "h0/gpu0", "h0/nic0") == 24
    assert rate(topology, "h0/nic0", "network") == 25
    assert topology.kind[topology.node_index["h1/nic0"]] == NodeKind.NIC
    assert set(topology.latency_us.tolist()) == {0.0, 2.0}


def test_rail_with_spines_and_oversubscription() -> None:
    fabric = RailFabric(spines=3, hosts_per_leaf=2, oversubscription=Fraction(2))
    topology = joined(hosts_of(5, 2), fabric)
    assert rate(topology, "box3/gpu1", "rail1/leaf1") == 10
    assert rate(topology, "rail1/leaf1", "spine2") == Fraction(20, 6)
    assert rate(topology, "rail0/leaf2", "spine0") == Fraction(10, 6)
    assert sum("rail" in name for name in topology.node_ids) == 6


def test_rails_of_unequal_hosts() -> None:
    hosts = [hosts_of(2, 2)[0], Host(**{**_fields(hosts_of(2, 3)[1]), "name": "other"})]
    topology = joined(hosts, RailFabric())
    assert rate(topology, "other/gpu2", "rail2") == 10
    assert rate(topology, "box0/gpu1", "rail1") == 10


def _fields(host: Host) -> dict[str, Any]:
    return {"name": host.name, "topology": host.topology, "ports": host.ports}


def test_fat_tree_of_three_levels_conserves_rate() -> None:
    fabric = FatTreeFabric(
        hosts_per_leaf=2,
        spines=2,
        leaves_per_pod=2,
        cores=4,
        oversubscription=Fraction(2),
        core_oversubscription=Fraction(5, 2),
    )
    topology = joined(hosts_of(8, 1), fabric)
    assert rate(topology, "leaf0", "pod0/spine1") == 5
    assert rate(topology, "leaf0", "pod1/spine1") == 0
    assert rate(topology, "pod1/spine1", "core3") == 2
    assert rate(topology, "pod1/spine1", "core2") == 0
    assert sum(name.startswith("core") for name in topology.node_ids) == 4


@pytest.mark.parametrize(("groups", "routers"), [(3, 2), (5, 2), (4, 5), (1, 3), (9, 4)])
def test_dragonfly_links_every_two_groups_once(groups: int, routers: int) -> None:
    fabric = DragonflyFabric(
        routers_per_group=routers, local_gb_per_s=Fraction(3), global_gb_per_s=Fraction(7)
    )
    topology = joined(hosts_of(groups * routers, 1), fabric)
    pairs = Counter()
    per_router = Counter()
    for link in topology.links():
        if link.gb_per_s == 7:
            pairs[link.src.split("/")[0], link.dst.split("/")[0]] += 1
            per_router[link.src] += 1
    assert set(pairs.values()) <= {1}
    assert len(pairs) == groups * (groups - 1)
    if groups > 1:
        assert max(per_router.values()) <= -(-(groups - 1) // routers)


def test_direct_cabling_patterns() -> None:
    pairs = joined(hosts_of(2, 3), DirectFabric())
    assert [rate(pairs, f"box0/gpu{i}", f"box1/gpu{i}") for i in range(3)] == [10, 10, 10]
    ring = joined(hosts_of(4, 2), DirectFabric(pattern="ring"))
    assert rate(ring, "box3/gpu1", "box0/gpu0") == 10
    assert ring.num_links == 8
    everywhere = joined(hosts_of(4, 6, rate=3), DirectFabric(pattern="complete"))
    between = Counter((a.split("/")[0], b.split("/")[0]) for a, b in _ends(everywhere))
    assert len(between) == 12
    assert set(between.values()) == {2}
    assert max(Counter(a for a, _ in _ends(everywhere)).values()) == 1
    cable = HostCable(src="box0/gpu0", dst="box1/gpu1", gb_per_s=Fraction(4))
    listed = joined(hosts_of(2, 2), DirectFabric(pattern="cables", cables=(cable,)))
    assert rate(listed, "box1/gpu1", "box0/gpu0") == 4
    assert listed.num_links == 2


def _ends(topology: Topology) -> list[tuple[str, str]]:
    return [(link.src, link.dst) for link in topology.links()]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=9),
    st.sampled_from(
        [
            SwitchFabric(),
            RailFabric(spines=2, hosts_per_leaf=2),
            RailFabric(rails=2, spines=1, oversubscription=Fraction(3, 2)),
            FatTreeFabric(hosts_per_leaf=2, spines=3),
            FatTreeFabric(hosts_per_leaf=1, spines=2, leaves_per_pod=2, cores=4),
            DragonflyFabric(routers_per_group=2, local_gb_per_s=Fraction(1), global_gb_per_s=Fraction(2)),
        ]
    ),
)
def test_every_fabric_joins_all_hosts_in_both_directions(sizes: list[int], fabric: Fabric) -> None:
    hosts = [
        Host(name=f"h{i}", topology=box.topology, ports=box.ports)
        for i, box in enumerate(hosts_of(1, size)[0] for size in sizes)
    ]
    topology = joined(hosts, fabric)
    assert topology.num_ranks == sum(sizes)
    index = topology.link_index
    assert all(topology.capacity[e] == topology.capacity[index[b, a]] for (a, b), e in index.items())
    seen, queue = {0}, [0]
    while queue:
        v = queue.pop()
        for w in topology.dst[topology.src == v].tolist():
            if w not in seen:
                seen.add(w)
                queue.append(w)
    joined_up = len(seen) == topology.num_nodes
    # Rails of hosts with too few ports hang on the hosts; here the hosts have no inner links.
    assert joined_up or isinstance(fabric, RailFabric)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compose(hosts_of(2, 1), None, name="x"), "2 hosts need a fabric"),
        (lambda: joined([hosts_of(1, 1)[0]] * 2, SwitchFabric()), "must be unique, found 'box' twice"),
        (lambda: joined([Host(name="h", topology=GPU, ports=())] * 1, SwitchFabric()), "has no network port"),
        (lambda: joined(hosts_of(3, 1), RailFabric(hosts_per_leaf=1)), "expects spines"),
        (lambda: joined(hosts_of(3, 1), RailFabric(rails=0)), "rails of 1 .."),
        (lambda: joined(hosts_of(3, 1), RailFabric(spines=10**9)), "spines of 0 .. 1048576"),
        (lambda: joined(hosts_of(3, 1), FatTreeFabric(spines=2**20)), "at most 2097152 links"),
        (lambda: joined(hosts_of(3, 1), RailFabric(spines=1, oversubscription=Fraction(0))), "> 0, found"),
        (lambda: joined(hosts_of(4, 1), FatTreeFabric(spines=2, leaves_per_pod=2, cores=3)), "multiple of"),
        (lambda: joined(hosts_of(3, 1), DirectFabric()), "two hosts with equally many ports"),
        (lambda: joined(hosts_of(3, 1), DirectFabric(pattern="ring")), "even number of ports"),
        (lambda: joined(hosts_of(4, 2), DirectFabric(pattern="complete")), "at least 3 ports"),
        (
            lambda: joined(
                hosts_of(2, 1),
                DirectFabric(pattern="cables", cables=(HostCable(src="box0/gpu0", dst="nic"),)),
            ),
            "names 'nic', which is no port",
        ),
        (lambda: repeated(hosts_of(1, 1)[0], 0), "1 or more, found 0"),
        (lambda: preset("gb200-nvl72", boxes=60_000), "at most 2097152 nodes"),
        (lambda: fabric_from_fields("rail", {"spine": "4"}), "did you mean 'spines'"),
        (lambda: fabric_from_fields("rail", {"spines": "four"}), "spines"),
        (lambda: fabric_from_fields("dragonfly", {}), "local_gb_per_s"),
        (lambda: fabric_from_fields("rail", {"oversubscription": "1/0"}), "Expected a number"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_default_ports_are_the_nics() -> None:
    box = preset("dgx-a100", boxes=2)
    assert [port.gb_per_s for port in default_ports(box)] == [50] * 16  # 25 from the GPU, 25 from the rail


def cluster(tmp_path: Path, document: Any, name: str = "cluster.json") -> str:
    file = tmp_path / name
    file.write_text(json.dumps(document) if name.endswith("json") else yaml.safe_dump(document))
    return str(file)


DOCUMENT: dict[str, Any] = {
    "format": "coppice-cluster",
    "version": 1,
    "name": "mixed",
    "hosts": [
        {"name": "dgx", "count": 2, "preset": "dgx-a100", "options": {"rates": "measured"}},
        {"name": "amd", "file": "amd.json", "ports": [{"at": "gpu0", "gb_per_s": "25/2", "nic": "nic0"}]},
        {
            "name": "tiny",
            "topology": {
                "format": "coppice-topology",
                "version": 1,
                "name": "tiny",
                "nodes": [{"id": "g", "kind": "gpu"}, {"id": "h", "kind": "gpu"}],
                "links": [{"from": "g", "to": "h", "gb_per_s": 0.1}],
            },
            "port_gb_per_s": 6.25,
        },
    ],
    "fabric": {"kind": "rail", "rails": 2, "spines": 2, "oversubscription": 2, "latency_us": 0.5},
}


@pytest.mark.parametrize("name", ["cluster.json", "cluster.yaml"])
def test_cluster_file(tmp_path: Path, name: str) -> None:
    write_topology(preset("mi250"), tmp_path / "amd.json")
    topology = resolve(cluster(tmp_path, DOCUMENT, name))
    assert topology.name == "mixed"
    assert topology.num_ranks == 8 + 8 + 16 + 2
    assert rate(topology, "dgx1/gpu0", "dgx1/nvswitch") == 240
    assert rate(topology, "amd/nic0", "rail0") == Fraction(25, 2)
    assert rate(topology, "tiny/g", "tiny/h") == Fraction(1, 10)
    assert rate(topology, "tiny/h", "rail1") == Fraction(25, 4)
    assert rate(topology, "rail1", "spine0") == Fraction(8 * 25 + Fraction(25, 4)) / 4
    assert max(topology.latency_us) == 0.5


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("version",), 2, "newer than 1"),
        (("version",), "1", "coppice-cluster version 1"),
        (("hosts",), [], "at least one host"),
        (("hosts", 0, "count"), 0, r"\$\.hosts\[0\]\.count"),
        (("hosts", 0, "count"), 10**6, r"\$\.hosts\[0\]\.count"),
        (("hosts", 0, "count"), "two", r"\$\.hosts\[0\]\.count"),
        (("hosts", 0, "preset"), "dgx-a101", "did you mean 'dgx-a100'"),
        (("hosts", 0, "preset"), "torus", "not a box"),
        (("hosts", 0, "options"), {"boxes": 2}, "takes no 'boxes'"),
        (("hosts", 0, "file"), "x.json", "exactly one of preset, file and topology"),
        (("hosts", 1, "file"), "none.json", "none.json"),
        (("hosts", 1, "ports", 0, "at"), "gpu99", "expects the id of a node"),
        (("hosts", 1, "ports", 0, "gb_per_s"), -1, r"\$\.hosts\[1\]\.ports\[0\]\.gb_per_s"),
        (("hosts", 1, "ports", 0, "gb_per_s"), None, r"\$\.hosts\[1\]\.ports\[0\]\.gb_per_s"),
        (("hosts", 1, "ports", 0, "rate"), 1, "unknown field `rate`"),
        (("hosts", 1, "name"), "dgx0", "found 'dgx0' twice"),
        (("hosts", 2, "topology", "links", 0, "to"), "i", r"hosts\[2\]\.topology\.links\[0\]\.to"),
        (("fabric", "kind"), "rails", r"\$\.fabric"),
        (("fabric", "spines"), 1.5, r"\$\.fabric\.spines"),
        (("fabric",), None, "need a fabric"),
    ],
)
def test_cluster_file_errors_name_the_place(tmp_path: Path, place: Any, value: Any, message: str) -> None:
    write_topology(preset("mi250"), tmp_path / "amd.json")
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(InputError, match=message):
        resolve(cluster(tmp_path, document))


def test_options_and_boxes_do_not_belong_to_files(tmp_path: Path) -> None:
    write_topology(preset("mi250"), tmp_path / "amd.json")
    file = cluster(tmp_path, DOCUMENT)
    with pytest.raises(InputError, match="takes no options, found rates"):
        resolve(file, options={"rates": "nominal"})
    with pytest.raises(InputError, match="`boxes` belongs to presets"):
        resolve(str(tmp_path / "amd.json"), boxes=2)


@needs_shared
def test_real_machine_files_compose(tmp_path: Path) -> None:
    document = {
        "format": "coppice-cluster",
        "version": 1,
        "hosts": [
            {"name": "mi300", "count": 2, "file": str(SHARED / "topologies" / "rccl_topo_8p_940.xml")},
            {"name": "perl", "file": str(SHARED / "topologies" / "perlmutter_a100_4x_nid001056.xml")},
        ],
        "fabric": {"kind": "switch"},
    }
    topology = resolve(cluster(tmp_path, document))
    assert topology.num_ranks == 20
    into_network = topology.dst == topology.node_index["network"]
    assert int(into_network.sum()) == 8 + 8 + 4


def survive(runs: int, tmp_path: Path) -> None:
    rng = random.Random("coppice cluster")
    small = json.loads(json.dumps(DOCUMENT))
    del small["hosts"][1]
    data = json.dumps(small).encode()
    file = tmp_path / "cluster.json"
    read = 0
    for _ in range(runs):
        file.write_bytes(injured(rng, "json", data))
        try:
            topology = resolve(str(file))
        except InputError as error:
            assert len(str(error)) < 2000  # noqa: PT017
        else:
            assert isinstance(topology, Topology)
            read += 1
    assert 0 < read < runs


def test_damaged_cluster_files_are_read_or_refused(tmp_path: Path) -> None:
    survive(300, tmp_path)


@pytest.mark.slow
def test_many_damaged_cluster_files_are_read_or_refused(tmp_path: Path) -> None:
    survive(10_000, tmp_path)


def test_large_clusters_are_built() -> None:
    topology = preset("dgx-a100", boxes=2048)
    assert topology.num_ranks == 16_384
    assert int(np.bincount(topology.host[topology.rank_nodes]).min()) == 8
