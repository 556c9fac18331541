"""What bounds say and are asked: cuts in words, the schedules for which they hold, files of weights."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from coppice.bounds import bound
from coppice.bounds.demands import read_demands
from coppice.bounds.describe import crossing, describe_cut, describe_ranks
from coppice.bounds.figures import MOST_HELPED, bound_figures, bound_record
from coppice.bounds.problem import Problem, parse_demands, parse_weights, read_weights
from coppice.bounds.result import Bound
from coppice.cli import app
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.topology import resolve
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import remove_nodes
from coppice.topology.presets import preset


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
    assert re.search(r"; the narrowest is GPU (8|13|0) of box[01].* with 1 link of (300|450) GB/s ", words), (
        words
    )
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


def text(*words: str) -> str:
    return " ".join(CliRunner().invoke(app, ["bound", *words]).stdout.split())


def test_switches_that_add_pass_the_plain_bound() -> None:
    figures = bound_figures(Problem(preset("dgx-h100"), Collective.ALL_REDUCE))
    assert figures.switches_could_help
    assert figures.helped is not None
    assert (figures.algbw_gb_per_s, figures.helped.algbw_gb_per_s) == (Fraction(1800, 7), 450)
    assert "only GPUs copy and add" in figures.holds_for
    record = bound_record(figures)
    assert record["with_in_network"]["busbw_gb_per_s"] == 787.5
    assert record["holds_for"] == figures.holds_for


def test_the_bound_with_switches_says_so() -> None:
    figures = bound_figures(Problem(preset("dgx-h100"), Collective.ALL_REDUCE), in_network=True)
    assert not figures.switches_could_help
    assert figures.helped is None
    assert figures.holds_for == "schedules in which switches copy and add where they can"


@pytest.mark.parametrize(
    ("name", "collective", "holds"),
    [
        ("dgx-a100", Collective.ALL_REDUCE, "all schedules: no switch copies or adds"),
        ("dgx-h100", Collective.ALL_GATHER, "all schedules"),  # a switch that copies gains nothing there
        ("dgx-h100", Collective.ALL_TO_ALL, "all schedules: nothing is copied or added"),
    ],
)
def test_one_bound_where_switches_gain_nothing(name: str, collective: Collective, holds: str) -> None:
    figures = bound_figures(Problem(preset(name), collective))
    assert not figures.switches_could_help
    assert figures.holds_for == holds


def test_the_command_prints_both_or_names_the_option() -> None:
    assert "with them algbw 450 GB/s, busbw 787.5 GB/s at most (`--in-network`)" in text(
        "dgx-h100", "-c", "all_reduce"
    )
    boxes = MOST_HELPED // 8 + 1
    large = text("dgx-h100", "--boxes", str(boxes), "-c", "all_reduce")
    assert "`--in-network` gives the bound with them" in large
    assert "busbw 450 GB/s, where only GPUs copy and add time per shard" in text(
        "dgx-h100", "-c", "all_reduce"
    )
    assert "where switches copy and add if they can" in text("dgx-h100", "-c", "all_reduce", "--in-network")
    plain = text("dgx-a100", "-c", "all_reduce")
    assert "holds for" not in plain
    assert "copy" not in plain
    assert plain.endswith(f"rates {preset('dgx-a100').source}")
    found = json.loads(CliRunner().invoke(app, ["bound", "dgx-a100", "-c", "all_reduce", "--json"]).stdout)
    assert found["with_in_network"] is None


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("[1, 2, 3]", (1, 2, 3)),
        ("1\n2\n3\n", (1, 2, 3)),
        ("1 2 3", (1, 2, 3)),
        ("1, 2, 3  # skewed", (1, 2, 3)),
        ("[0.1, 0.25]", (2, 5)),
        ('["1/3", "1/2"]', (2, 3)),
        ("[2, 4]", (2, 4)),
        ("[0, 1]", (0, 1)),
    ],
)
def test_spellings(text: str, weights: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_text(text)
    assert read_weights(str(path)) == weights


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "none"),
        ("[]", "none"),
        ("[1, -1]", "$[1]"),
        ("[1, true]", "$[1]"),
        ("[1, 1e400]", "$[1]"),
        ('[1, "1/0"]', "$[1]"),
        ("[1, {}]", "$[1]"),
        ("1\nx", "row 1"),
        ("1 2\n3", "rows"),
        ("[1", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[4294967296, 1]", "2^31"),
    ],
)
def test_refused_with_the_place(text: str, place: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_weights(text, where="w")
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_demands(tmp_path: Path) -> None:
    path = tmp_path / "demands.json"
    path.write_text("[[0, 1], [2.5, 0]]")
    assert read_demands(str(path), 2) == ((0, 2), (5, 0))
    with pytest.raises(InputError, match="square"):
        parse_demands("[[0, 1]]", where="d")
    with pytest.raises(InputError, match="absent"):
        read_demands(str(tmp_path / "absent"), 2)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_demands(str(path), 2)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        weights = parse_weights(text, where="w")
    except InputError:
        return
    assert weights
    assert min(weights) >= 0


@given(st.lists(st.fractions(0, 1000, max_denominator=20), min_size=1, max_size=8))
@example([Fraction(5683, 7), *(Fraction(1, each) for each in (9, 10, 13, 17, 19))])
def test_ratios_are_kept(values: list[Fraction]) -> None:
    text = "\n".join(map(str, values))
    if math.lcm(*(each.denominator for each in values)) * max(values) >= 1 << 31:
        with pytest.raises(InputError, match=r"ratios of numbers below 2\^31"):
            parse_weights(text, where="w")
        return
    weights = parse_weights(text, where="w")
    assert [w * sum(values) for w in weights] == [v * sum(weights) for v in values]
