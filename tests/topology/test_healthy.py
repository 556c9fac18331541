"""What the network was before one fault, as far as the nodes that are unlike their kind show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from coppice import load
from coppice.topology.composition.compose import Host, compose, gpu_ports, repeated
from coppice.topology.composition.fabric import RailFabric
from coppice.topology.healthy import without_fault
from coppice.topology.model import Link, Topology
from coppice.topology.operations import remove_links, remove_nodes, scale_nodes, set_link_rate


def rails() -> Topology:
    """Eight boxes on rails of two leaves each over four spines."""
    box = load("dgx-h100")
    hosts = repeated(Host(name="box", topology=box, ports=gpu_ports(box, Fraction(50))), 8)
    return compose(hosts, RailFabric(rails=8, spines=4, hosts_per_leaf=4), name="rails")


WHOLE: dict[str, Callable[[], Topology]] = {
    "rails": rails,
    "boxes": lambda: load("dgx-a100", boxes=6),
    "dragonfly": lambda: load("dragonfly", groups=5, routers_per_group=4, gpus_per_router=2),
    "torus": lambda: load("torus", dims="4x4"),
}


def links(topology: Topology) -> list[Link]:
    """Links by name, with whatever was lost under one name."""
    return sorted(topology.links(), key=lambda link: (link.src, link.dst))


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_network_has_no_counterpart(name: str) -> None:
    assert without_fault(WHOLE[name]()) is None


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("rate", ["50%", "0"])
def test_a_slow_or_lost_link_is_restored(name: str, one_way: bool, rate: str) -> None:
    whole = WHOLE[name]()
    for link in {0, whole.num_links // 3, whole.num_links // 2, whole.num_links - 1}:
        src, dst = (whole.node_ids[end[link]] for end in (whole.src, whole.dst))
        if rate == "0":
            hurt = remove_links(whole, [(src, dst)], one_way=one_way)
        else:
            hurt = set_link_rate(whole, src, dst, rate, one_way=one_way)
        healthy = without_fault(hurt)
        assert healthy is not None
        assert links(healthy) == links(whole)


def test_a_nic_that_is_lost_on_one_of_few_rails_is_restored() -> None:
    whole = load("gb200-nvl72", boxes=4, nics="node")
    healthy = without_fault(remove_nodes(whole, ["box1/nic5"]))
    assert healthy is not None
    named = {"lost": "box1/nic5"}
    found = [
        replace(link, src=named.get(link.src, link.src), dst=named.get(link.dst, link.dst))
        for link in healthy.links()
    ]
    assert sorted(found, key=lambda link: (link.src, link.dst)) == links(whole)


def test_a_slow_node_is_restored() -> None:
    whole = load("gb200-nvl72", boxes=4, nics="node")
    healthy = without_fault(scale_nodes(whole, {"box1/nic5": "50%"}))
    assert healthy is not None
    assert links(healthy) == links(whole)
    assert without_fault(scale_nodes(whole, {"box1/nic5": "50%", "box2/nic7": "50%"})) is None


@pytest.mark.parametrize("name", ["rails", "dragonfly"])
def test_a_lost_gpu_is_restored_under_another_name(name: str) -> None:
    whole = WHOLE[name]()
    lost = whole.node_ids[whole.rank_nodes[3]]
    healthy = without_fault(remove_nodes(whole, [lost]))
    assert healthy is not None
    assert healthy.num_ranks == whole.num_ranks
    assert healthy.node_ids[-1] == "lost"

    def named(end: str) -> str:
        return str(lost) if end == "lost" else end

    found = {(named(link.src), named(link.dst), link.gb_per_s) for link in healthy.links()}
    assert found == {(link.src, link.dst, link.gb_per_s) for link in whole.links()}


def test_several_faults_have_no_counterpart() -> None:
    whole = rails()
    slow = set_link_rate(whole, "box5/gpu3", "rail3/leaf1", "50%")
    assert without_fault(slow) is not None
    assert without_fault(set_link_rate(slow, "box2/gpu6", "rail6/leaf0", "50%")) is None
