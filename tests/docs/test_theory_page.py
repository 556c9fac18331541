"""docs/theory.md: its programs print what it shows, and what it says of the butterfly is counted here."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import highspy
import pytest

from coppice.bounds.attainable import in_network_bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.topology.model import Link, Node, NodeKind, Topology
from support.pages import run_page

BUTTERFLY = "s>a s>b a>t a>m b>u b>m m>n n>t n>u"


def test_the_programs_on_the_page(tmp_path: Path) -> None:
    assert run_page("theory.md", tmp_path) == 7


def test_copying_switches_need_not_reach_the_bound_of_the_cuts() -> None:
    """In the butterfly cuts allow two trees, and no trees with copying switches reach more than 3/2."""
    links = [tuple(link.split(">")) for link in BUTTERFLY.split()]
    nodes = [Node(id=v) for v in "stu"] + [Node(id=v, kind=NodeKind.SWITCH, multicast=True) for v in "abmn"]
    topology = Topology.of(
        "butterfly", nodes, [Link(src=a, dst=b, gb_per_s=Fraction(1), duplex=False) for a, b in links]
    )
    # t and u get everything from s and have no other links, so a broadcast from s is a packing of these trees
    problem = Problem(topology=topology, collective=Collective.BROADCAST, root=0)
    assert in_network_bound(problem).inv_rate == Fraction(1, 2)
    trees = []
    for size in range(2, len(links) + 1):
        for chosen in itertools.combinations(links, size):
            heads = [b for _, b in chosen]
            reached = {"s"}
            for _ in chosen:
                reached |= {b for a, b in chosen if a in reached}
            if len(set(heads)) == size and {"t", "u"} <= reached and set(heads) <= reached:
                trees.append(chosen)
    program = highspy.Highs()
    program.setOptionValue("output_flag", False)
    share = [program.addVariable(lb=0) for _ in trees]
    for link in links:
        used = [x for x, tree in zip(share, trees, strict=True) if link in tree]
        if used:
            program.addConstr(program.qsum(used) <= 1)
    program.maximize(program.qsum(share))
    assert program.getInfo().objective_function_value == pytest.approx(1.5)
