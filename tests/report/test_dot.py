"""DOT: read back by a small reader of our own, and by Graphviz where it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from fractions import Fraction

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.report.dot import quoted, to_dot, tree_to_dot
from coppice.topology.model import Link, Node, Topology
from coppice.topology.presets import preset

NODE = re.compile(r'^\s*n(\d+) \[label="((?:[^"\\]|\\.)*)", shape=\w+, .*\];$')
EDGE = re.compile(r'^\s*n(\d+) -> n(\d+) \[(?:label="([^"]*)")?(.*)\];$')


def edges_of(text: str) -> dict[tuple[int, int], tuple[str, bool, bool]]:
    """(label, both ways, dashed) by ends."""
    found = (EDGE.match(line) for line in text.splitlines())
    return {
        (int(m[1]), int(m[2])): (m[3], "dir=both" in m[4], "dashed" in m[4]) for m in found if m is not None
    }


def test_boxes_are_clusters_and_links_keep_their_rates() -> None:
    topology = preset("dgx-a100", boxes=2)
    text = to_dot(topology, cut=[topology.node_index["box0/gpu0"]])
    names = {int(m[1]): m[2] for line in text.splitlines() if (m := NODE.match(line))}
    assert names == dict(enumerate(topology.node_ids))
    inside = re.findall(r"subgraph cluster_(\d) \{\n(.*?)\n  \}", text, re.DOTALL)
    assert [(box, body.splitlines()[0].strip(), body.count("shape=")) for box, body in inside] == [
        ("0", 'label="box0";', 17),
        ("1", 'label="box1";', 17),
    ]
    edges = edges_of(text)
    assert len(edges) == topology.num_links // 2
    for (a, b), (label, both, dashed) in edges.items():
        assert both
        assert Fraction(label) == topology.gb_per_s(topology.link_index[a, b])
        assert dashed == ("box0/gpu0" in (topology.node_ids[a], topology.node_ids[b]))


def test_links_of_different_rates_stay_apart() -> None:
    pair = Topology.of(
        "pair",
        [Node(id="a"), Node(id="b")],
        [
            Link(src="a", dst="b", gb_per_s=Fraction(2), duplex=False),
            Link(src="b", dst="a", gb_per_s=Fraction(1), duplex=False),
        ],
    )
    assert edges_of(to_dot(pair)) == {(0, 1): ("2", False, False), (1, 0): ("1", False, False)}


def test_names_are_quoted() -> None:
    assert quoted('"; } digraph {') == r'"\"; } digraph {"'
    assert quoted("a\\") == r'"a\\"'
    assert quoted("\ud800\n") == r'"?\n"'


def test_trees_run_with_the_data() -> None:
    problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
    forest = plan(problem).plan.forest
    assert forest is not None
    for tree in range(forest.num_trees):
        text = tree_to_dot(forest, tree)
        assert {(a, b) for a, b, _ in forest.edges(tree)} == set(edges_of(text))
        assert f"n{forest.tree_root[tree]} [penwidth=3]" in text
    with pytest.raises(InputError, match="expected a tree from 0"):
        tree_to_dot(forest, forest.num_trees)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_takes_it() -> None:
    nasty = Topology.of(
        'a "name" \\ <b>',
        [Node(id='g"0"', host="box {0}"), Node(id="g\\1", host="box {0}"), Node(id="grün;")],
        [
            Link(src='g"0"', dst="g\\1", gb_per_s=Fraction(1)),
            Link(src="g\\1", dst="grün;", gb_per_s=Fraction(3)),
        ],
    )
    for topology in (nasty, preset("dgx-a100", boxes=2), preset("dragonfly")):
        done = subprocess.run(
            ["dot", "-Tplain"], input=to_dot(topology), capture_output=True, text=True, check=True
        )
        assert not done.stderr
        lines = done.stdout.splitlines()
        assert sum(line.startswith("node ") for line in lines) == topology.num_nodes
