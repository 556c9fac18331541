"""Trees for RCCL: read back from the text alone, counted again, and refused where RCCL could not run them."""

from __future__ import annotations

import random
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import coppice
from coppice import Collective, Problem, plan
from coppice.cli.export import export
from coppice.errors import InputError
from coppice.export.formats import NcclCollnetOptions, RcclRingsOptions, RcclTreesOptions
from coppice.export.nccl.collnet import collnet_trees, export_nccl_collnet
from coppice.export.rccl import export_rccl_rings, export_rccl_trees, rccl_trees
from coppice.fitting.rccl import depth_of, packed_trees, rccl_rings
from coppice.schedule.files.plan_file import write_plan
from coppice.schedule.plan import Plan
from coppice.topology import subset
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset


def planned(topology: Topology, collective: Collective = Collective.ALL_REDUCE) -> Plan:
    return plan(Problem(topology=topology, collective=collective), ring=False).plan


def read_trees(text: str) -> list[dict[int, int]]:
    """Parent of each rank (-1: root) of each tree, by RCCL's rules: digits are GPUs, parentheses nest."""
    trees = text.split("|")
    assert 1 <= len(trees) <= 63
    found = []
    for tree in trees:
        assert len(tree) <= 255
        assert re.fullmatch(r"[0-9()]+", tree)
        parent: dict[int, int] = {}
        stack: list[int] = []
        for token in re.findall(r"\d+|[()]", tree):
            if token == ")":
                stack.pop()
            elif token != "(":
                rank = int(token)
                assert rank not in parent
                parent[rank] = stack[-1] if stack else -1
                stack.append(rank)
        assert not stack
        assert list(parent.values()).count(-1) == 1
        assert max(Counter(above for above in parent.values() if above >= 0).values()) <= 3
        found.append(parent)
    return found


def counted(topology: Topology, trees: list[dict[int, int]]) -> Fraction:
    """1 / rate of reduction and broadcast along trees of equal shares, over direct links."""
    loads: Counter[tuple[int, int]] = Counter()
    for parent in trees:
        for rank, above in parent.items():
            if above >= 0:
                loads[rank, above] += 1
                loads[above, rank] += 1
    nodes = topology.rank_nodes.tolist()
    return max(
        Fraction(load, len(trees)) / topology.gb_per_s(topology.link_index[nodes[a], nodes[b]])
        for (a, b), load in loads.items()
    )


@pytest.mark.parametrize("name", ["mi300x", "mi250"])
@pytest.mark.parametrize("count", [None, 1, 5])
def test_boxes(name: str, count: int | None) -> None:
    topology = preset(name)
    made = planned(topology)
    trees = rccl_trees(made, trees=count)
    parents = read_trees(trees.text)
    assert all(set(parent) == set(range(topology.num_ranks)) for parent in parents)
    assert trees.inv_rate == counted(topology, parents)
    assert trees.inv_rate >= made.inv_rate
    assert len(parents) == (count or len(parents))
    if count is None:
        assert made.inv_rate == trees.inv_rate
        assert len(parents) > 1
        assert all(trees.inv_rate <= rccl_trees(made, trees=n).inv_rate for n in (8, 16, 24, 63))


def test_children_move() -> None:
    """Every tree of an MI300X plan has seven children at its root, so that some of each move."""
    trees = rccl_trees(planned(preset("mi300x")), trees=3)
    assert trees.moved == 3 * 4
    assert rccl_trees(planned(preset("ring", gpus=4))).moved == 0


@pytest.mark.parametrize(("name", "count"), [("mi300x", 4), ("mi250", 24)])
def test_nothing_is_lost(name: str, count: int) -> None:
    """Trees made anew for equal shares reach the plan, with fewer of them than the plan's own would need."""
    made = planned(preset(name))
    trees = rccl_trees(made)
    assert len(trees.parents) == count
    assert trees.inv_rate == made.inv_rate
    if name == "mi300x":
        assert "nothing lost" in export_rccl_trees(made, RcclTreesOptions()).notes[1]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 8])
def test_as_good_as_trees_can_be(count: int) -> None:
    """Between the eight pairs of an MI250 box lie 24 times 50 GB/s, and every tree crosses seven times."""
    inv_rate = rccl_trees(planned(preset("mi250")), trees=count).inv_rate
    assert inv_rate >= Fraction(-(-7 * count // 24), 50 * count)
    assert count == 1 or inv_rate == Fraction(-(-7 * count // 24), 50 * count)


@pytest.mark.parametrize("seed", range(8))
def test_search_on_random_links(seed: int) -> None:
    """Every tree spans, no GPU has too many children, the time is that of the busiest pair, and no bound is beaten."""
    rng = random.Random(seed)
    ranks, children = rng.randint(2, 9), rng.randint(2, 3)
    rates = {(a, b): Fraction(rng.randint(1, 4)) for a in range(ranks) for b in range(a + 1, ranks)}
    for pair in rng.sample(sorted(rates), len(rates) // 3):
        del rates[pair]
    rates.update({(0, b): Fraction(50) for b in range(1, ranks)})  # a hub that every tree would like to use
    count = rng.randint(1, 6)
    found = packed_trees(ranks, rates, trees=count, children=children)
    if found is None:
        return
    trees, inv_rate = found
    loads: Counter[tuple[int, int]] = Counter()
    for parents in trees:
        assert list(parents).count(-1) == 1
        assert depth_of(parents) < ranks
        assert max(Counter(above for above in parents if above >= 0).values(), default=0) <= children
        for rank, above in enumerate(parents):
            if above >= 0:
                loads[min(rank, above), max(rank, above)] += 1
    assert inv_rate == max(Fraction(load, count) / rates[pair] for pair, load in loads.items())
    assert inv_rate >= Fraction(ranks - 1) / sum(rates.values())


def test_search_without_a_tree() -> None:
    star = {(0, rank): Fraction(1) for rank in range(1, 6)}
    assert packed_trees(6, star, trees=1, children=3) is None
    made = packed_trees(6, star, trees=2, children=5)
    assert made is not None
    assert made[1] == 1


def test_trees_are_those_of_the_plan_where_they_fit() -> None:
    made = planned(preset("ring", gpus=5))
    trees = read_trees(rccl_trees(made).text)
    forest = made.forest
    assert forest is not None
    rank = forest.topology.rank
    theirs = [
        {int(rank[dst]): int(rank[src]) for src, dst, _ in forest.edges(tree)}
        for tree in range(forest.num_trees)
        if forest.tree_phase[tree] == 0
    ]
    for tree in trees:
        assert {rank: above for rank, above in tree.items() if above >= 0} in theirs


def test_what_rccl_cannot_run() -> None:
    for made, words in (
        (planned(preset("mi300x"), Collective.ALL_GATHER), "for all-reduce by trees"),
        (planned(preset("mi300x", boxes=2)), "found 2 hosts"),
        (planned(subset(preset("mi300x"), [0, 1, 2], relays=True)), "all 8 GPUs"),
    ):
        with pytest.raises(InputError, match=words):
            export_rccl_trees(made, RcclTreesOptions())
    for count in (0, 64):
        with pytest.raises(InputError, match="63 trees"):
            rccl_trees(planned(preset("mi300x")), trees=count)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(planned(preset("mi300x")), tmp_path / "plan.json")
    export(str(tmp_path / "plan.json"), to="rccl-trees", options=["trees=8"])
    printed = capsys.readouterr()
    assert printed.out.startswith("RCCL_TREES=(")
    assert len(read_trees(printed.out.removeprefix("RCCL_TREES=").strip())) == 8
    assert "note: 8 trees of equal shares" in printed.err
    with pytest.raises(InputError, match="made of a plan, found none at mi300x"):
        export("mi300x", to="rccl-trees")


def kept_rings(text: str, gpus: int) -> list[list[int]]:
    """The rings that RCCL keeps: every GPU of 0 .. gpus - 1 once."""
    rings = [[int(number) for number in re.findall(r"\d+", ring)] for ring in text.split("|")]
    return [ring for ring in rings if sorted(ring) == list(range(gpus))]


@pytest.mark.parametrize("name", ["mi300x", "mi250"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("count", [None, 5])
def test_rings(name: str, collective: str, count: int | None) -> None:
    topology = preset(name)
    ranks = topology.num_ranks
    made = planned(topology, Collective(collective))
    text = export_rccl_rings(made, RcclRingsOptions(rings=count)).text
    assert text.startswith('NCCL_RINGS="')
    rings = kept_rings(text.removeprefix('NCCL_RINGS="').removesuffix('"\n'), ranks)
    found = rccl_rings(made, rings=count)
    assert len(rings) == len(found.orders) == (count or len(rings))
    loads: Counter[tuple[int, int]] = Counter()
    for ring in rings:
        loads.update(zip(ring, [*ring[1:], ring[0]], strict=True))
    nodes = topology.rank_nodes.tolist()
    hops = Fraction(2 * (ranks - 1), ranks) if collective == "all_reduce" else Fraction(ranks - 1)
    assert found.inv_rate == hops * max(
        Fraction(load, len(rings)) / topology.gb_per_s(topology.link_index[nodes[a], nodes[b]])
        for (a, b), load in loads.items()
    )
    assert found.inv_rate >= found.best_inv_rate >= made.inv_rate
    assert found.detours == 0
    if count is None:
        assert found.inv_rate == found.best_inv_rate
        assert float(made.inv_rate / found.inv_rate) > 0.93


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_rooted_rings(collective: str) -> None:
    """The hop that closes a ring at its root carries nothing: two ways of four GPUs in a ring use all four links."""
    topology = preset("ring", gpus=4)
    made = plan(Problem(topology=topology, collective=Collective(collective), root=2), ring=False).plan
    found = rccl_rings(made)
    rate = topology.gb_per_s(0)
    assert found.inv_rate == made.inv_rate == Fraction(1, 2) / rate
    assert all(order[0] == 2 for order in found.orders)


def one_way(*rates: int) -> Topology:
    """A ring of GPUs with links in one direction."""
    names = [f"g{at}" for at in range(len(rates))]
    links = [
        Link(src=name, dst=names[(at + 1) % len(names)], gb_per_s=Fraction(rates[at]), duplex=False)
        for at, name in enumerate(names)
    ]
    return Topology.of("one-way", [Node(id=name, host="box") for name in names], links)


@pytest.mark.parametrize(("collective", "slow"), [("broadcast", 2), ("reduce", 0)])
def test_the_closing_hop_carries_nothing(collective: str, slow: int) -> None:
    """Into the root of a broadcast, and out of the root of a reduction."""
    for at in range(3):
        topology = one_way(*(1 if at == other else 10 for other in range(3)))
        made = plan(Problem(topology=topology, collective=Collective(collective), root=0), ring=False).plan
        assert rccl_rings(made).inv_rate == made.inv_rate == (Fraction(1, 10) if at == slow else 1)


def test_rings_in_proportion_to_their_shares() -> None:
    names = ["a", "b", "c", "d"]
    links = [
        Link(src=a, dst=b, gb_per_s=Fraction(30), duplex=False) for a, b in zip(names, "bcda", strict=True)
    ]
    links += [
        Link(src=b, dst=a, gb_per_s=Fraction(10), duplex=False) for a, b in zip(names, "bcda", strict=True)
    ]
    topology = Topology.of("uneven", [Node(id=name, host="box") for name in names], links)
    found = rccl_rings(planned(topology))
    assert Counter(found.orders) == {(0, 1, 2, 3): 3, (0, 3, 2, 1): 1}
    assert found.inv_rate == found.best_inv_rate
    assert rccl_rings(planned(topology), rings=2).inv_rate > found.inv_rate


def test_what_rings_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box = preset("mi300x")
    for made, words in (
        (planned(preset("mi300x", boxes=2)), "found 2 hosts"),
        (planned(subset(box, [0, 1, 2], relays=True)), "all 8 GPUs"),
        (planned(preset("star", gpus=4)), None),
    ):
        if words is None:
            assert rccl_rings(made).detours > 0
        else:
            with pytest.raises(InputError, match=words):
                rccl_rings(made)
    with pytest.raises(InputError, match=r"1 \.\. 64 rings"):
        rccl_rings(planned(box), rings=65)
    write_plan(planned(box), tmp_path / "plan.json")
    export(str(tmp_path / "plan.json"), to="rccl-rings", options=["rings=7"])
    assert "note: 7 rings of equal shares" in capsys.readouterr().err


def planned_trees(topology: Topology, collective: Collective = Collective.ALL_REDUCE) -> Plan:
    return plan(Problem(topology=topology, collective=collective, root=None)).plan


@pytest.mark.parametrize(
    "collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
)
@pytest.mark.parametrize("nodes", [2, 4, 6])
def test_trees_have_the_shares_of_the_plan(nodes: int, collective: Collective) -> None:
    made = planned_trees(preset("fat-tree", leaves=2, gpus_per_leaf=nodes // 2), collective)
    trees, turned = collnet_trees(made)
    assert not turned
    shares = np.zeros(nodes)
    for parents, share in trees.items():
        assert len(parents) == nodes
        assert parents.count(-1) == 1
        for node in range(nodes):
            steps, at = 0, node
            while parents[at] >= 0:
                at, steps = parents[at], steps + 1
                assert steps < nodes
        shares[parents.index(-1)] += share
    assert len(set(shares)) == 1, "every node is the root of as much"


def test_the_file_and_its_notes(tmp_path: Path) -> None:
    made = planned_trees(preset("fat-tree", leaves=2, gpus_per_leaf=1))
    assert (
        export_nccl_collnet(made, NcclCollnetOptions()).text
        == "coppice-collnet 1\nnodes 2\ntree 1 -1 0\ntree 1 1 -1\n"
    )
    found = coppice.export(made, "nccl-collnet", tmp_path / "forest")
    assert (tmp_path / "forest").read_text() == found.text
    assert any("NCCL_COLLNET_ENABLE=1" in note for note in found.notes)


def test_what_has_no_trees_between_nodes_is_refused() -> None:
    with pytest.raises(InputError, match="one rank each, found 8 ranks on"):
        export_nccl_collnet(planned_trees(preset("dgx-a100", boxes=2)), NcclCollnetOptions())
    ring = plan(
        Problem(topology=preset("fat-tree", leaves=2, gpus_per_leaf=2), collective=Collective.ALL_REDUCE),
        algorithm="ring",
    ).plan
    with pytest.raises(InputError, match="made of trees"):
        export_nccl_collnet(ring, NcclCollnetOptions())
