"""Trees for RCCL: read back from the text alone, counted again, and refused where RCCL could not run them."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from coppice import Collective, Problem, plan
from coppice.cli.export_stock import export_stock
from coppice.errors import InputError
from coppice.export.rccl_trees import export_rccl_trees, rccl_trees
from coppice.schedule.plan import Plan
from coppice.schedule.plan_file import write_plan
from coppice.topology import subset
from coppice.topology.model import Topology
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
        assert made.inv_rate / trees.inv_rate > Fraction(4, 5)
        assert len(parents) > 1
        assert all(trees.inv_rate <= rccl_trees(made, trees=n).inv_rate for n in (8, 16, 24, 63))


def test_children_move() -> None:
    """Every tree of an MI300X plan has seven children at its root, so that some of each move."""
    trees = rccl_trees(planned(preset("mi300x")), trees=8)
    assert trees.moved >= 8 * 4
    assert rccl_trees(planned(preset("ring", gpus=4))).moved == 0


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
            export_rccl_trees(made)
    for count in (0, 64):
        with pytest.raises(InputError, match="63 trees"):
            rccl_trees(planned(preset("mi300x")), trees=count)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(planned(preset("mi300x")), tmp_path / "plan.json")
    export_stock(str(tmp_path / "plan.json"), "rccl-trees", options=["trees=8"])
    printed = capsys.readouterr()
    assert printed.out.startswith("RCCL_TREES=(")
    assert len(read_trees(printed.out.removeprefix("RCCL_TREES=").strip())) == 8
    assert "note: 8 trees of equal shares" in printed.err
    with pytest.raises(InputError, match="made of a plan, found none at mi300x"):
        export_stock("mi300x", "rccl-trees")
