"""Drawings of topologies: everything has a place of its own, links say their numbers, the cut is where it is."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.report.dot import quoted, to_dot, tree_to_dot
from coppice.report.svg import drawing, element, escape, fitted, number
from coppice.report.topology.layout import DrawingLayout, lay_out
from coppice.report.topology.picture import hull, load_class, topology_picture, topology_svg, wire, within
from coppice.schedule.explanation import plan_loads
from coppice.text import percent_text
from coppice.topology.model import Link, Node, Topology
from coppice.topology.operations import remove_links, remove_nodes
from coppice.topology.presets import preset
from coppice.topology.sources import resolve

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


def check_layout(layout: DrawingLayout) -> None:
    """Nodes lie on the drawing and do not overlap; nor do boxes."""
    for at in layout.place.values():
        assert at.width > 8
        assert at.x - at.width / 2 >= 0
        assert at.x + at.width / 2 <= layout.width + 0.01
        assert at.y - at.height / 2 >= 0
        assert at.y + at.height / 2 <= layout.height
    for p, q in combinations(layout.place.values(), 2):
        assert abs(p.x - q.x) >= (p.width + q.width) / 2 or abs(p.y - q.y) >= (p.height + q.height) / 2
    for f, g in combinations(layout.frames, 2):
        assert f.x + f.width <= g.x or g.x + g.width <= f.x or f.y + f.height <= g.y or g.y + g.height <= f.y


@pytest.mark.parametrize(("name", "options"), SPECS, ids=lambda each: str(each))
def test_every_node_and_link_is_drawn(name: str, options: dict[str, object]) -> None:
    topology = topology_of(name, options)
    layout = lay_out(topology)
    check_layout(layout)
    assert set(layout.place) == set(range(topology.num_nodes))
    assert layout.omitted == ()
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
    ("name", "options"),
    [
        ("dgx-h100", {"boxes": 40}),
        ("gb200-nvl72", {"boxes": 2}),
        ("torus", {"dims": "32x32"}),
        ("torus", {"dims": "8x8x8"}),
        ("star", {"gpus": "300"}),
        ("ring", {"gpus": "900"}),
        ("mi250", {"boxes": 20}),
    ],
    ids=str,
)
def test_large_ones_are_drawn_in_part(name: str, options: dict[str, object]) -> None:
    topology = topology_of(name, options)
    picture = topology_picture(topology)
    layout = lay_out(topology)
    check_layout(layout)
    assert picture.omitted
    assert " of " in picture.omitted[0]
    assert len(picture.svg) < 200_000


def test_switches_inside_a_box_that_is_drawn_in_part_stay_inside() -> None:
    topology = topology_of("gb200-nvl72", {"boxes": 2})
    layout = lay_out(topology, [topology.node_index["box1/gpu70"]])
    assert layout.omitted == ("9 of 73 nodes in each of 2 boxes",)
    shown = {topology.node_ids[v]: at for v, at in layout.place.items()}
    assert shown["rail0"].y < shown["box0/gpu0"].y < shown["box0/nvswitch"].y
    assert "box1/gpu70" in shown


def test_boxes_at_the_cut_come_first() -> None:
    topology = topology_of("dgx-h100", {"boxes": 30})
    inside = [v for v in range(topology.num_nodes) if topology.host[v] == 27]
    layout = lay_out(topology, inside)
    assert "box27" in {frame.name for frame in layout.frames}
    assert len(layout.frames) == 8


@pytest.mark.parametrize(("name", "options"), SPECS, ids=lambda each: str(each))
def test_marks_are_on_the_links_of_the_cut(name: str, options: dict[str, object]) -> None:
    topology = topology_of(name, options)
    cut = bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).cut
    picture = topology_picture(topology, cut=cut)
    side = set(cut)
    crossing = {frozenset(pair) for pair in topology.link_index if (pair[0] in side) != (pair[1] in side)}
    assert picture.svg.count('class="tick"') == len(crossing)
    assert picture.svg.count("crosses the bottleneck cut") == len(crossing)
    assert picture.encircled == ("<polygon" in picture.svg)


def test_the_line_around_a_side_holds_it_and_nothing_else() -> None:
    topology = topology_of("torus", {"dims": "4x4"})
    layout = lay_out(topology)
    root = ET.fromstring(topology_picture(topology, cut=[0, 1, 4, 5]).svg)
    polygon = root.find(".//{http://www.w3.org/2000/svg}polygon")
    assert polygon is not None
    points = [tuple(map(float, pair.split(","))) for pair in (polygon.get("points") or "").split()]
    outline = hull([(x, y) for x, y in points])
    inside = {v for v, at in layout.place.items() if within(outline, (at.x, at.y))}
    assert inside == {0, 1, 4, 5}
    line = wire(layout.place, 1, 2)
    x, y = line.at(line.leaves(outline))
    assert not within(outline, line.at(line.leaves(outline) + 0.02))
    assert within(outline, (x - 0.02 * 92, y))


def test_grids_are_found() -> None:
    torus = lay_out(topology_of("torus", {"dims": "4x5"})).place
    rows = {round(at.y, 3) for at in torus.values()}
    columns = {round(at.x, 3) for at in torus.values()}
    assert (len(rows), len(columns)) == (4, 5)
    ring = lay_out(topology_of("ring", {"gpus": "8"})).place
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
    assert len(fitted(label, width, size)) * 0.62 * size <= width + 1e-9


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
