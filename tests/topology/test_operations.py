"""Operations on topologies keep what they promise to keep."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.bounds import Problem, bound
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.topology import (
    Link,
    Node,
    NodeKind,
    Topology,
    find_node,
    merge_nodes,
    preset,
    random_balanced,
    relabel,
    remove_links,
    remove_nodes,
    round_rates,
    scale,
    scale_nodes,
    set_link_rate,
    subset,
)
from coppice.topology.operations import without_dead_ends


def rates(topology: Topology) -> dict[tuple[str, str], Fraction]:
    return {(link.src, link.dst): link.gb_per_s for link in topology.links()}


def rebuilt(topology: Topology) -> Topology:
    return Topology.of(topology.name, topology.nodes(), topology.links(), source=topology.source)


def rank_names(topology: Topology) -> list[str]:
    return [topology.node_ids[v] for v in topology.rank_nodes.tolist()]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    seed = draw(st.integers(0, 10**6))
    gpus, switches = draw(st.integers(2, 7)), draw(st.integers(0, 4))
    topology = random_balanced(gpus, switches=switches, max_gb_per_s=12, seed=seed)
    return scale(topology, draw(st.sampled_from(["1", "1/6", "0.35"])))


@given(topologies(), st.data())
def test_subset_keeps_exactly_the_links_among_what_stays(topology: Topology, data: st.DataObject) -> None:
    ranks = data.draw(st.permutations(range(topology.num_ranks)))
    ranks = ranks[: data.draw(st.integers(1, len(ranks)))]
    relays = data.draw(st.booleans())
    kept = subset(topology, ranks, relays=relays)
    assert rank_names(kept) == [rank_names(topology)[r] for r in ranks]
    stays = set(kept.node_ids)
    gone = {rank_names(topology)[r] for r in range(topology.num_ranks) if r not in ranks}
    assert stays == set(topology.node_ids) if relays else stays == set(topology.node_ids) - gone
    assert rates(kept) == {ends: rate for ends, rate in rates(topology).items() if stays.issuperset(ends)}
    assert rebuilt(kept).sha256 == kept.sha256


@given(topologies())
def test_dead_ends_change_no_bound(topology: Topology) -> None:
    ends = [Node(id=f"end{i}", kind=NodeKind.NIC) for i in range(2)]
    links = [
        Link(src=topology.node_ids[0], dst="end0", gb_per_s=Fraction(1)),
        Link(src="end0", dst="end1", gb_per_s=Fraction(1)),
    ]
    longer = Topology.of("longer", [*topology.nodes(), *ends], [*topology.links(), *links])
    pruned = without_dead_ends(longer)
    assert not {"end0", "end1"} & set(pruned.node_ids)
    assert rank_names(pruned) == rank_names(topology)
    problem = Problem(topology, Collective.ALL_GATHER)
    assert bound(Problem(pruned, Collective.ALL_GATHER)).inv_rate == bound(problem).inv_rate


def test_what_gpus_are_goes_with_them() -> None:
    mixed = replace(preset("dgx-a100"), arch=(*(f"sm_{i}" for i in range(8)), None), cpu=(None,) * 9)
    assert subset(mixed, [5, 2]).arch == ("sm_2", "sm_5", None)
    assert remove_nodes(mixed, ["gpu0"]).arch == (*(f"sm_{i}" for i in range(1, 8)), None)
    assert merge_nodes(preset("dgx-a100-pcie"), ["cpu0", "cpu1"], into="cpu").arch[:8] == ("sm_80",) * 8


@given(topologies(), st.data())
def test_removed_nodes_and_links_are_gone_and_nothing_else(topology: Topology, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from(topology.node_ids[1:]))
    less = remove_nodes(topology, [node])
    assert rates(less) == {ends: rate for ends, rate in rates(topology).items() if node not in ends}
    assert rank_names(less) == [name for name in rank_names(topology) if name != node]
    assert rebuilt(less).sha256 == less.sha256
    src, dst = data.draw(st.sampled_from(sorted(rates(topology))))
    one_way = remove_links(topology, [(src, dst)], one_way=True)
    assert rates(one_way) == {ends: rate for ends, rate in rates(topology).items() if ends != (src, dst)}
    both = remove_links(topology, [(src, dst)])
    assert rates(both) == {
        ends: rate for ends, rate in rates(topology).items() if ends not in ((src, dst), (dst, src))
    }
    assert rebuilt(both).sha256 == both.sha256


@given(topologies(), st.data())
def test_rates_change_where_asked(topology: Topology, data: st.DataObject) -> None:
    before = rates(topology)
    src, dst = data.draw(st.sampled_from(sorted(before)))
    changed = rates(set_link_rate(topology, src, dst, "7/3", one_way=True))
    assert changed == {**before, (src, dst): Fraction(7, 3)}
    node = data.draw(st.sampled_from(topology.node_ids))
    slow = scale_nodes(topology, {node: "25%"})
    assert rates(slow) == {ends: rate / 4 if node in ends else rate for ends, rate in before.items()}
    assert rebuilt(slow).sha256 == slow.sha256
    assert scale_nodes(topology, {node: Fraction(1, 4)}).sha256 == slow.sha256
    assert rates(scale(topology, "3/7")) == {ends: rate * Fraction(3, 7) for ends, rate in before.items()}
    assert scale(scale(topology, 3), "1/3").sha256 == topology.sha256


def test_rate_zero_removes_a_link() -> None:
    box = preset("dgx-a100")
    assert set_link_rate(box, "gpu0", "nvswitch", 0).num_links == 14
    assert set_link_rate(box, "gpu0", "nvswitch", 0, one_way=True).num_links == 15
    assert scale_nodes(box, {"rank3": "0%"}).num_links == 14


def test_both_directions_of_a_link_change_unless_one_way() -> None:
    box = set_link_rate(preset("dgx-a100"), "gpu0", "nvswitch", "50%")
    assert rates(box)["gpu0", "nvswitch"] == rates(box)["nvswitch", "gpu0"] == 150
    box = set_link_rate(preset("dgx-a100"), "gpu0", "nvswitch", "50%", one_way=True)
    assert rates(box)["nvswitch", "gpu0"] == 300


def test_hosts_without_nodes_disappear() -> None:
    two = preset("dgx-a100", boxes=2)
    one = remove_nodes(two, [name for name in two.node_ids if name.startswith("box0/")])
    assert one.hosts == ("box1",)
    assert rank_names(one) == [f"box1/gpu{i}" for i in range(8)]
    assert one.host[one.node_index["rail0"]] == -1


def test_rounding() -> None:
    box = scale(preset("ring", gpus=3), "1/3")
    assert set(rates(round_rates(box, 2)).values()) == {Fraction(33, 100)}
    with pytest.raises(InputError, match=r"makes a rate of 0\.333 GB/s vanish"):
        round_rates(box, 0)


def test_merging_adds_parallel_links_up() -> None:
    nodes = [Node(id="a", host="h"), Node(id="b", host="h")]
    nodes += [Node(id=f"s{i}", kind=NodeKind.SWITCH, host="h", multicast=i < 2) for i in range(3)]
    links = [Link(src=g, dst=f"s{i}", gb_per_s=Fraction(5 + i)) for g in "ab" for i in range(3)]
    split = Topology.of("split", nodes, [*links, Link(src="s0", dst="s1", gb_per_s=Fraction(1))])
    merged = merge_nodes(split, ["s0", "s1"], into="s")
    assert merged.node_ids == ("a", "b", "s", "s2")
    assert rates(merged)["a", "s"] == 11
    assert rates(merged)["b", "s2"] == 7
    assert merged.multicast[merged.node_index["s"]]
    assert not merge_nodes(split, ["s0", "s2"], into="s0").multicast[2]
    assert rank_names(merge_nodes(subset(split, [1, 0]), ["s0", "s1"], into="s")) == ["b", "a"]


def test_relabelling() -> None:
    box = relabel(preset("dgx-a100"), {"gpu0": "gpu1", "gpu1": "gpu0", "rank5": "five"})
    assert rank_names(box)[:2] == ["gpu1", "gpu0"]
    assert find_node(box, "five") == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda box: subset(box, []), "at least one rank"),
        (lambda box: subset(box, [8]), "ranks 0 .. 7, found 8"),
        (lambda box: subset(box, [-1]), "ranks 0 .. 7, found -1"),
        (lambda box: subset(box, [1, 2, 1]), "found 1 twice"),
        (lambda box: remove_nodes(box, ["gpu9"]), "no node 'gpu9': did you mean"),
        (lambda box: remove_nodes(box, [f"gpu{i}" for i in range(8)]), "leaves no rank"),
        (lambda box: remove_links(box, [("gpu0", "gpu1")]), "gpu0 is linked to nvswitch"),
        (lambda box: set_link_rate(box, "gpu0", "nvswitch", "-5"), "rate"),
        (lambda box: set_link_rate(box, "gpu0", "nvswitch", "fast%"), "fast"),
        (lambda box: scale(box, 0), "factor > 0"),
        (lambda box: scale(box, "1/10007").denominator and scale(scale(box, "1/99991"), "1/99989"), "2.31"),
        (lambda box: merge_nodes(box, ["gpu0", "gpu1"], into="g"), "expected switches, or NICs"),
        (lambda box: merge_nodes(box, [], into="g"), "found none"),
        (lambda box: relabel(box, {"gpu0": "gpu1"}), "'gpu1' to two nodes"),
        (lambda box: find_node(box, "rank8"), "found 'rank8'"),
    ],
)
def test_what_cannot_be_done_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(preset("dgx-a100"))
