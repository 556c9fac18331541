"""Drawings of topologies: everything has a place of its own, links say their numbers, the cut is where it is."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.report.reporting import quoted, to_dot, tree_to_dot
from coppice.report.svg import drawing, element, escape, fitted, number, text_width
from coppice.report.topology.picture import drawing_of, load_class, topology_picture, topology_svg
from coppice.schedule.explanation import plan_loads
from coppice.text import percent_text
from coppice.topology.model import Link, Node, Topology
from coppice.topology.operations import remove_links, remove_nodes
from coppice.topology.presets import preset
from coppice.topology.sources import resolve
from support.drawn_topologies import FILES, of_file
from support.geometry_checks import check_layout

SPECS = [
    ("dgx-1v", {}),
    ("dgx-1v", {"boxes": 2}),
    ("dgx-a100", {}),
    ("dgx-a100", {"boxes": 2}),
    ("dgx-a100-pcie", {"boxes": 2}),
    ("dgx-h100", {"boxes": 8}),
    ("mi100", {"boxes": 2}),
    ("mi250", {"boxes": 2}),
    ("mi300x", {"boxes": 3}),
    ("ring", {"gpus": "9"}),
    ("path", {"gpus": "5"}),
    ("torus", {"dims": "4x5"}),
    ("torus", {"dims": "3x3x3"}),
    ("mesh", {"dims": "3x7"}),
    ("hypercube", {}),
    ("petersen", {}),
    ("star", {"gpus": "6"}),
    ("fat-tree", {}),
    ("dragonfly", {}),
    ("pcie-box", {}),
]


def topology_of(name: str, options: dict[str, object]) -> Topology:
    given = dict(options)
    boxes = given.pop("boxes", None)
    return resolve(name, boxes=boxes, options={key: str(value) for key, value in given.items()})


@pytest.mark.parametrize(("name", "options"), SPECS, ids=lambda each: str(each))
def test_every_node_and_link_is_drawn(name: str, options: dict[str, object]) -> None:
    topology = topology_of(name, options)
    cut = bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).cut
    drawn = drawing_of(topology, cut)
    layout = drawn.layout
    check_layout(layout, drawn.cut)
    assert set(layout.place) == set(range(topology.num_nodes))
    assert drawn.omitted == ()
    assert layout.width <= 1130
    picture = topology_picture(topology)
    assert set(picture.joined) == {pair for a, b in topology.link_index for pair in ((a, b), (b, a))}
    root = ET.fromstring(picture.svg)
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    for a, b in topology.link_index:
        wanted = f"{topology.node_ids[a]} → {topology.node_ids[b]}: "
        assert any(wanted in title for title in titles)
    for node in topology.node_ids:
        assert any(title.split(",")[0] == node for title in titles)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("torus", {"dims": "32x32"}, "192 of 1,024 nodes are drawn"),
        ("torus", {"dims": "8x8x8"}, "128 of 512 nodes are drawn"),
        ("ring", {"gpus": "900"}, "72 of 900 nodes are drawn"),
    ],
    ids=str,
)
def test_large_networks_of_gpus_are_drawn_in_part(name: str, options: dict[str, object], words: str) -> None:
    topology = topology_of(name, options)
    picture = topology_picture(topology)
    check_layout(drawing_of(topology).layout)
    assert picture.omitted == (words,)
    assert len(picture.svg) < 200_000


@pytest.mark.parametrize(("name", "options"), SPECS, ids=lambda each: str(each))
def test_marks_are_on_the_links_of_the_cut(name: str, options: dict[str, object]) -> None:
    topology = topology_of(name, options)
    cut = bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).cut
    picture = topology_picture(topology, cut=cut)
    side = set(cut)
    crossing = {frozenset(pair) for pair in topology.link_index if (pair[0] in side) != (pair[1] in side)}
    assert picture.svg.count('class="tick"') == len(crossing)
    assert picture.svg.count("crosses the bottleneck cut") == len(crossing)
    assert picture.svg.count('class="cut"') == 1
    assert picture.svg.count(">bottleneck cut</text>") == 1


def test_the_line_around_a_side_holds_it_and_nothing_else() -> None:
    drawn = drawing_of(topology_of("torus", {"dims": "4x4"}), [0, 1, 4, 5])
    assert drawn.cut is not None
    inside = {v for v, at in drawn.layout.place.items() if drawn.cut.inside((at.x, at.y))}
    assert inside == {0, 1, 4, 5}
    way = drawn.layout.routes[1, 2]
    at = drawn.cut.crossed_by(way)
    assert drawn.cut.inside(way.at(at - 0.02)[0])
    assert not drawn.cut.inside(way.at(at + 0.02)[0])


@pytest.mark.parametrize("nodes", [["gpu0", "gpu3"], ["gpu0", "pcie0", "cpu0"], ["gpu1", "cpu1", "gpu6"]])
def test_a_side_that_lies_apart_has_a_line_along_its_links(nodes: list[str]) -> None:
    topology = topology_of("dgx-a100-pcie", {})
    side = [topology.node_index[name] for name in nodes]
    drawn = drawing_of(topology, side)
    assert drawn.cut is not None
    inside = {v for v, at in drawn.layout.place.items() if drawn.cut.inside((at.x, at.y))}
    assert inside == set(side)
    check_layout(drawn.layout, drawn.cut)


def test_grids_are_found() -> None:
    torus = drawing_of(topology_of("torus", {"dims": "4x5"})).layout.place
    rows = {round(at.y, 3) for at in torus.values()}
    columns = {round(at.x, 3) for at in torus.values()}
    assert (len(rows), len(columns)) == (4, 5)
    ring = drawing_of(topology_of("ring", {"gpus": "8"})).layout.place
    assert len({round(at.y, 3) for at in ring.values()}) == 4


def test_loads_colour_the_links() -> None:
    made = plan(
        Problem(topology=topology_of("dgx-a100", {"boxes": 2}), collective=Collective.ALL_GATHER)
    ).plan
    loads = plan_loads(made)
    picture = topology_picture(made.topology, loads=loads)
    assert "load4" in picture.svg
    assert "busy 100% of the time" in picture.svg
    assert [load_class(Fraction(0)), load_class(Fraction(1)), load_class(Fraction(99, 100))] == [0, 4, 3]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (Fraction(0), "0%"),
        (Fraction(1, 2), "50%"),
        (Fraction(2, 3), "66.7%"),
        (Fraction(10**6 - 1, 10**6), "99.9%"),
    ],
)
def test_percentages(share: Fraction, text: str) -> None:
    assert percent_text(share, most_decimals=1) == text


def test_names_are_escaped_and_the_file_stands_alone() -> None:
    nasty = Topology.of(
        "</svg><script>",
        [Node(id='<b a="1">', host="a & b"), Node(id="x\x00]]>", host="a & b")],
        [Link(src='<b a="1">', dst="x\x00]]>", gb_per_s=Fraction(1, 3))],
    )
    text = topology_svg(nasty, cut=[0])
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script" not in text
    assert "--gpu:" in text
    assert text == topology_svg(nasty, cut=[0])


def test_what_a_topology_lost_is_drawn_as_lost() -> None:
    whole = preset("dgx-a100", boxes=2)
    left = remove_nodes(remove_links(whole, [("box1/gpu2", "box1/nvswitch")]), ["box0/nic3"])
    text = topology_picture(left, whole=whole).svg
    assert "<title>box0/nic3, lost</title>" in text
    assert "box1/gpu2 → box1/nvswitch: lost" in text or "box1/nvswitch → box1/gpu2: lost" in text
    assert text.count('class="cross"') == 2
    assert ">lost</text>" in text
    assert text.count('class="nic"') == 15
    plain = topology_picture(whole, whole=whole)
    assert plain.svg == topology_picture(whole).svg
    with pytest.raises(InputError, match="`whole` to have all nodes"):
        topology_picture(whole, whole=left)


@pytest.mark.parametrize("name", FILES)
def test_real_machines_are_drawn_whole(name: str) -> None:
    topology = of_file(name)
    cut = bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).cut
    drawn = drawing_of(topology, cut)
    check_layout(drawn.layout, drawn.cut)
    assert set(drawn.layout.place) == set(range(topology.num_nodes))
    assert drawn.omitted == ()
    assert set(drawn.layout.routes) == {tuple(sorted(pair)) for pair in topology.link_index}


def test_rows_are_the_kinds_of_nodes_from_the_network_inwards() -> None:
    drawn = drawing_of(preset("dgx-a100-pcie", boxes=2))
    captions = [words for words, _ in sorted(drawn.layout.captions, key=lambda each: each[1][1])]
    assert captions == ["network", "NICs", "CPUs", "PCIe switches", "GPUs", "NVSwitches"]
    rows: dict[str, set[float]] = {}
    for v, at in drawn.layout.place.items():
        word = drawn.graph.nodes[v].label.rstrip("0123456789")
        rows.setdefault(word, set()).add(round(at.y, 3))
    order = sorted(rows, key=lambda word: min(rows[word]))
    assert order == ["rail", "nic", "cpu", "pcie", "gpu", "nvswitch"]
    assert all(len(ys) == 1 for ys in rows.values())


def test_boxes_too_many_for_one_row_have_the_network_between_them() -> None:
    drawn = drawing_of(preset("dgx-h100", boxes=6))
    tops = sorted({frame.y for frame in drawn.layout.frames})
    rails = {drawn.layout.place[v].y for v, node in enumerate(drawn.graph.nodes) if node.level}
    assert len(tops) == 2
    assert tops[0] < min(rails) < tops[1]
    check_layout(drawn.layout)


@given(st.text())
@example('a & b < c > d "e" &amp;')
def test_any_text_is_well_formed_and_read_back(text: str) -> None:
    tree = ET.fromstring(element("text", escape(text), class_=text, x=1.0))
    assert set(tree.attrib) == {"class", "x"}
    if text.isprintable():
        assert (tree.text or "") == text
        assert tree.get("class") == text


@pytest.mark.parametrize("text", ["\x00", "\x0b", "\ud800", "\uffff"])
def test_what_xml_cannot_hold_is_replaced(text: str) -> None:
    assert ET.fromstring(element("text", escape(text))).text == "\ufffd"


def test_elements() -> None:
    assert element("g") == "<g></g>"
    assert element("rect", stroke_width=2, class_=None) == '<rect stroke-width="2"/>'
    assert element("a", escape("<"), element("b")) == "<a>&lt;<b></b></a>"
    picture = ET.fromstring(drawing(10, 20.25, name="x", label='a "b"'))
    assert picture.get("viewBox") == "0 0 10 20.2"
    assert picture.get("aria-label") == 'a "b"'


@given(st.floats(min_value=-1e6, max_value=1e6))
def test_numbers_are_short_and_close(value: float) -> None:
    text = number(value)
    assert abs(float(text) - value) <= 0.0501
    assert text != "-0"
    assert "e" not in text


@given(st.text(max_size=30), st.floats(min_value=0, max_value=300), st.integers(min_value=6, max_value=20))
def test_labels_fit(label: str, width: float, size: int) -> None:
    assert text_width(fitted(label, width, size), size) <= width + 1e-9


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


def test_labels_around_a_circle_stay_out_of_a_line_beside_them() -> None:
    drawn = drawing_of(topology_of("mesh", {"dims": "2x40"}), range(40))
    check_layout(drawn.layout, drawn.cut)
