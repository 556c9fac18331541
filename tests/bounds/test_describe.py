"""Cuts in words, for each kind of collective and side; the crossing is counted rightly."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.bounds import bound
from coppice.bounds.describe import crossing, describe_cut, describe_ranks
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.topology import resolve
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import remove_nodes


def boxes(count: int, gpus: int = 4) -> Topology:
    """Boxes with a fast switch each and a NIC per GPU; all NICs meet in one fabric switch."""
    nodes, links = [Node(id="fabric", kind=NodeKind.SWITCH)], []
    for box in range(count):
        nodes.append(Node(id=f"nvs{box}", kind=NodeKind.SWITCH, host=f"box{box}"))
        for gpu in range(gpus):
            name, nic = f"gpu{box}.{gpu}", f"nic{box}.{gpu}"
            nodes.append(Node(id=name, host=f"box{box}"))
            nodes.append(Node(id=nic, kind=NodeKind.NIC, host=f"box{box}"))
            links.append(Link(src=name, dst=f"nvs{box}", gb_per_s=Fraction(300)))
            links.append(Link(src=name, dst=nic, gb_per_s=Fraction(25)))
            links.append(Link(src=nic, dst="fabric", gb_per_s=Fraction(25)))
    return Topology.of("boxes", nodes, links)


def told(topology: Topology, collective: Collective, **more: int) -> str:
    return describe_cut(bound(Problem(topology=topology, collective=collective, **more)))


def test_a_box_is_named_with_its_nics() -> None:
    words = told(boxes(4), Collective.ALL_GATHER)
    assert words == "4 GPUs of box0 receive through 4 NICs of 25 GB/s: 12 shards over 100 GB/s"


def test_reductions_speak_of_contributions() -> None:
    words = told(boxes(4), Collective.REDUCE_SCATTER)
    assert words == "4 GPUs of box0 send contributions through 4 NICs of 25 GB/s: 12 shards over 100 GB/s"
    assert "12/16 of the data over 100 GB/s in each of two phases" in told(boxes(4), Collective.ALL_REDUCE)


def test_broadcast_leaves_the_box_of_its_root() -> None:
    topology = boxes(2)
    words = told(topology, Collective.BROADCAST, root=0)
    assert "through 4 NICs of 25 GB/s: 1 shard over 100 GB/s" in words
    assert words.startswith(("4 GPUs of box0 leave", "4 GPUs of box1 receive"))


def test_the_smaller_side_is_told() -> None:
    topology = boxes(4)
    box = [v for v, host in enumerate(topology.host.tolist()) if host == 2]
    problem = Problem(topology=topology, collective=Collective.ALL_GATHER)
    words = describe_cut(Bound(problem=problem, inv_rate=Fraction(1, 25), cut=tuple(box)))
    assert words == "4 GPUs of box2 leave through 4 NICs of 25 GB/s: 4 shards over 100 GB/s"


@pytest.mark.parametrize("preset", ["dgx-a100", "mi250", "ring", "torus", "hypercube", "dgx-a100-pcie"])
@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
def test_what_crosses_proves_the_bound(preset: str, collective: Collective) -> None:
    """Shards over capacity, as counted for the words, is the bound itself."""
    found = bound(Problem(topology=resolve(preset), collective=collective))
    counted = crossing(found)
    assert counted.shards is not None
    assert counted.shards / counted.gb_per_s == found.inv_rate
    assert sum(len(g.links) * g.gb_per_s for g in counted.groups) == counted.gb_per_s
    assert len(counted.sending_ranks) + len(counted.receiving_ranks) == found.problem.topology.num_ranks


def test_sets_of_ranks_have_names() -> None:
    topology = boxes(6)
    assert describe_ranks(topology, list(range(24))) == "all 24 GPUs"
    assert describe_ranks(topology, list(range(8))) == "8 GPUs of box0 and box1"
    assert describe_ranks(topology, list(range(20))) == "20 GPUs of 5 boxes (box0, box1, .. box4)"
    assert describe_ranks(topology, [4, 5]) == "GPUs 4-5 of box1"
    assert describe_ranks(topology, [3, 4]) == "GPUs 3-4"
    assert describe_ranks(topology, list(range(0, 24, 2))).endswith(".. 22 (12 in all)")


def test_nothing_to_send() -> None:
    lone = Topology.of("one", [Node(id="a")], [])
    problem = Problem(topology=lone, collective=Collective.ALL_GATHER)
    assert (
        describe_cut(Bound(problem=problem, inv_rate=Fraction(0), cut=())) == "none: there is nothing to send"
    )


@pytest.mark.parametrize(
    ("preset", "nic"), [("dgx-a100", "nic0"), ("dgx-a100", "nic5"), ("dgx-h100", "nic0")]
)
def test_no_cut_is_blamed_that_does_not_set_the_rate(preset: str, nic: str) -> None:
    """With a dead NIC an all-reduce in one go beats two phases, and no single cut limits it."""
    options = {"nics": "node"}
    broken = remove_nodes(resolve(preset, boxes=2, options=options), [f"box1/{nic}"])
    found = bound(Problem(topology=broken, collective=Collective.ALL_REDUCE))
    assert found.inv_rate < found.alternatives["two-phase"]
    assert found.cut == ()
    words = describe_cut(found)
    assert words.startswith("no single cut: several limit it together, around each of the ")
    gathered = told(broken, Collective.ALL_GATHER)
    assert re.search(r"GPU (8|13) of box1 receives .* 15 shards over (300|450) GB/s$", gathered)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.booleans())
def test_a_cut_of_an_all_reduce_proves_its_rate(rates: list[int], ring: bool) -> None:
    """Where links are as fast one way as the other, a single cut is named only with the count that proves the rate."""
    nodes = [Node(id=f"g{i}") for i in range(len(rates))]
    hub = [] if ring else [Node(id="hub", kind=NodeKind.SWITCH)]
    ends = [f"g{(i + 1) % len(rates)}" if ring else "hub" for i in range(len(rates))]
    links = [
        Link(src=f"g{i}", dst=end, gb_per_s=Fraction(rate))
        for i, (end, rate) in enumerate(zip(ends, rates, strict=True))
    ]
    found = bound(Problem(topology=Topology.of("t", nodes + hub, links), collective=Collective.ALL_REDUCE))
    assert not found.cut or re.search(
        r": 1 shard over .*|: .* GB/s in each of two phases$", describe_cut(found)
    )
