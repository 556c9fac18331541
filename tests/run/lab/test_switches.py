"""Aggregating switches in a lab: which of them add up, and sums through one and through leaf and spine."""

from __future__ import annotations

import io
import os
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.run.lab.blueprint import draw
from coppice.run.lab.namespaces import build, link_bytes, remove
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets import preset

NAME = f"s{os.getpid() % 10**6}"


def leaves_and_spine(leaves: int, ranks: int) -> Topology:
    """Leaves with so many ranks each, and a spine that can be the bottleneck."""
    nodes = [Node(id="spine", kind=NodeKind.SWITCH)]
    links = []
    for leaf in range(leaves):
        nodes.append(Node(id=f"leaf{leaf}", kind=NodeKind.SWITCH))
        links.append(Link(src=f"leaf{leaf}", dst="spine", gb_per_s=Fraction(1)))
        for rank in range(ranks):
            nodes.append(Node(id=f"gpu{leaf}.{rank}"))
            links.append(Link(src=f"gpu{leaf}.{rank}", dst=f"leaf{leaf}", gb_per_s=Fraction(1)))
    return Topology.of("leaves", nodes, links)


def test_which_switches_add_up() -> None:
    from coppice.run.lab.switches import switch_parents

    network = leaves_and_spine(2, 2)
    ids = network.node_ids
    parents, of_rank = switch_parents(network)
    assert {ids[node]: ids[above] if above >= 0 else "" for node, above in parents.items()} == {
        "spine": "",
        "leaf0": "spine",
        "leaf1": "spine",
    }
    assert [ids[node] for node in of_rank] == ["leaf0", "leaf0", "leaf1", "leaf1"]
    with pytest.raises(InputError, match=r"expected a switch that all ranks of .* reach"):
        switch_parents(preset("ring", gpus=4))


def can_build() -> str | None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a lab needs Linux and root"
    try:
        build(NAME, draw(preset("ring", gpus=2, gb_per_s=1), Fraction(1, 100)))
    except (InputError, OSError) as error:
        return f"this kernel builds no lab: {error}"
    remove(NAME)
    return None


reason = can_build()


@pytest.mark.skipif(reason is not None, reason=str(reason))
def test_sums_through_leaves_and_spine() -> None:
    """Each cable between a leaf and the spine carries the tensor once each way, not once for each rank."""
    from coppice.run.lab.launch import launch_ranks
    from coppice.run.lab.switches import standing_switches

    network = leaves_and_spine(2, 2)
    lab = build(NAME, draw(network, Fraction(1, 40)))
    size = 1 << 20
    try:
        with standing_switches(lab, "switchml") as addresses:
            before = link_bytes(lab)
            program = Path(__file__).parents[2] / "support" / "switched_sum.py"
            out = io.StringIO()
            launch_ranks(
                lab,
                [sys.executable, str(program), str(size // 4)],
                switches=addresses,
                timeout_s=120,
                out=out,
            )
            carried = {pair: count - before[pair] for pair, count in link_bytes(lab).items()}
    finally:
        remove(NAME)
    assert out.getvalue().count("right") == 4
    ids = network.node_ids
    for (a, b), count in carried.items():
        if "spine" in (ids[a], ids[b]):
            assert count < 1.6 * size, (ids[a], ids[b])
