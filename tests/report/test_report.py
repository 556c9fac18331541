"""The report: one well-formed page that holds everything, is the same each time, and stays below a megabyte."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from coppice.bounds.describe import describe_cut
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.sweep import compare
from coppice.errors import CheckError
from coppice.planners.planning import plan as make_plan
from coppice.report.comparison import comparison_picture
from coppice.report.page import report_html
from coppice.report.reporting import report
from coppice.report.timeline import timeline_picture
from coppice.report.tree import Sketch, sketches, tree_picture
from coppice.schedule.plan import Plan
from coppice.topology.model import Link, Node, Topology
from coppice.topology.operations import scale_nodes
from coppice.topology.presets import preset
from support.alpha_beta import simulate

SVG = "{http://www.w3.org/2000/svg}"
FETCHING = re.compile(
    r"""\b(?:src|href|action|poster)\s*=|@import|url\((?!#)|//[a-z]|\bfetch\b|XMLHttp""", re.IGNORECASE
)


def plan_of(topology: Topology, collective: Collective, **options: object) -> Plan:
    root = 0 if collective.rooted else None
    return make_plan(Problem(topology=topology, collective=collective, root=root), ring=False, **options).plan


def parsed(page: str) -> ET.Element:
    assert page.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(page.partition("\n")[2])


def check_page(page: str) -> ET.Element:
    """Well-formed, nothing from elsewhere, ids unique and found, small."""
    root = parsed(page)
    outside = page.replace("http://www.w3.org/2000/svg", "")
    assert not FETCHING.search(outside)
    ids = Counter(each.get("id") for each in root.iter() if each.get("id"))
    assert max(ids.values(), default=1) == 1
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    assert len(page.encode()) < 1_000_000
    return root


@pytest.mark.parametrize("collective", list(Collective))
def test_every_collective(collective: Collective) -> None:
    # Rails are not joined: the algorithms of a barrier need a single switch.
    barrier = collective is Collective.BARRIER
    made = plan_of(preset("star", gpus=6) if barrier else preset("dgx-a100", boxes=2), collective)
    page = report_html(made, size_bytes=2**20)
    root = check_page(page)
    headings = [h.text for h in root.iter("h2")]
    assert {"Topology", "Link loads", "Timeline"} <= set(headings)
    values = {dt.text: dd.text for dt, dd in zip(root.iter("dt"), root.iter("dd"), strict=True)}
    assert (values["Verified"] or "").startswith("yes")
    if made.bound is not None and made.bound.inv_rate:
        assert values["Bottleneck"] == describe_cut(made.bound)
        assert "the plan reaches" in (values["Optimum"] or "")


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    made = plan_of(preset("mi250"), Collective.ALL_REDUCE)
    written = report(made, tmp_path / "a.html", size=2**22)
    assert (tmp_path / "a.html").read_bytes() == report_html(made, size_bytes=2**22).encode()
    assert (tmp_path / "a.html").stat().st_size == written


def test_a_plan_that_does_not_verify_gets_no_page(tmp_path: Path) -> None:
    made = plan_of(preset("star", gpus=4), Collective.ALL_GATHER)
    assert made.forest is not None
    made.forest.edge_dst[0] = made.forest.edge_src[0]
    with pytest.raises(CheckError):
        report(made, tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_text_of_the_topology_is_escaped() -> None:
    names = ["</script><script>alert(1)</script>", "\"' onload=x", "a & b <i>\x07"]
    nodes = [Node(id=name, host="<box>") for name in names]
    links = [Link(src=a, dst=b, gb_per_s=preset_rate) for a, b, preset_rate in _pairs(names)]
    made = plan_of(Topology.of("<title>&", nodes, links, source="]]> -->"), Collective.ALL_GATHER)
    page = report_html(made, size_bytes=4096)
    root = check_page(page)
    assert page.count("<script") == 1
    assert next(root.iter("h1")).text == "all_gather on <title>&"


def _pairs(names: list[str]) -> list[tuple[str, str, int]]:
    return [(a, b, 1) for at, a in enumerate(names) for b in names[at + 1 :]]


def test_comparison() -> None:
    made = plan_of(preset("star", gpus=4), Collective.ALL_REDUCE)
    sizes = [2**10, 2**16, 2**20]
    found = compare(made.problem, sizes=sizes, jobs=1)
    root = check_page(report_html(made, size_bytes=2**20, comparison=found))
    charts = [svg for svg in root.iter(f"{SVG}svg") if "comparison" in (svg.get("class") or "")]
    assert len(charts) == 1
    curves = [line.find(f"{SVG}title").text or "" for line in charts[0].iter(f"{SVG}polyline")]
    for name in found.times:
        assert sum(words.startswith(f"{name}:") for words in curves) == 2
    rows = [[cell.text for cell in row.iter("td")] for row in root.iter("tr")][1:]
    assert [row[0] for row in rows] == ["1K", "64K", "1M"]
    for size, row in zip(sizes, rows, strict=True):
        best = found.best(size)
        assert best is not None
        assert (row[-1] or "").startswith(best.algorithm)


@pytest.mark.slow
def test_large_cluster_says_what_it_leaves_out() -> None:
    made = plan_of(preset("dgx-h100", boxes=32), Collective.ALL_REDUCE)
    page = report_html(made)
    check_page(page)
    assert "Large topology: what is alike stands as one, 26 for 296 nodes." in page
    assert "31 boxes like box1" in page
    assert re.search(r"32 of 1,024 links are shown", page)
    assert "more</text>" in page


def test_trees_are_those_of_the_plan() -> None:
    made = plan_of(preset("mi250"), Collective.ALL_REDUCE)
    forest = made.forest
    assert forest is not None
    chosen = sketches(made)
    assert len(chosen) == 8
    assert {each.upward for each in chosen} == {True, False}
    for sketch in chosen:
        tree = int((sketch.title.split(":")[0]).removeprefix("tree "))
        drawn = {path for below in sketch.children.values() for _, path in below}
        assert drawn == {path for _, _, path in forest.edges(tree)}
        root = ET.fromstring(tree_picture(made.topology, sketch, name="t"))
        titles = [title.text or "" for title in root.iter(f"{SVG}title")]
        assert sum("→" in title for title in titles) == len(drawn)
        assert sum("steps from the root" in title for title in titles) == len(drawn) + 1


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("ring", {True, False}), ("recursive-doubling", set()), ("rabenseifner", {True, False})],
)
def test_chunks_of_schedules_are_drawn_where_they_form_trees(algorithm: str, expected: set[bool]) -> None:
    made = plan_of(preset("star", gpus=4), Collective.ALL_REDUCE, algorithm=algorithm)
    found = sketches(made)
    assert {each.upward for each in found} == expected
    check_page(report_html(made, size_bytes=2**16))


def test_large_and_deep_trees_are_folded() -> None:
    topology = preset("star", gpus=300)
    hub = topology.num_nodes - 1
    wide = Sketch(
        title="wide", root=0, children={0: tuple((v, (0, hub, v)) for v in range(1, 300))}, upward=False
    )
    text = tree_picture(topology, wide, name="w")
    assert "+283 more" in text
    deep = Sketch(
        title="deep", root=0, children={v: ((v + 1, (v + 1, hub, v)),) for v in range(299)}, upward=True
    )
    text = tree_picture(topology, deep, name="d")
    assert "+210 more" in text
    assert 'marker-end="url(#d-arrow)"' in text
    for picture in (ET.fromstring(text), ET.fromstring(tree_picture(topology, wide, name="w"))):
        assert float(picture.get("width") or 0) <= 1100
        assert float(picture.get("height") or 0) <= 870


def repeated(picture: ET.Element, tag: str) -> list[ET.Element]:
    """The shapes of a timeline, each as often as its row says."""
    found: list[ET.Element] = []
    count = 1
    for each in picture.iter():
        if each.tag == f"{SVG}g":
            label = each.find(f"{SVG}text")
            words = "" if label is None else label.text or ""
            count = int(words.rpartition("×")[2]) if "×" in words else 1
        if each.tag == f"{SVG}{tag}":
            found += [each] * count
    return found


def test_timeline_bars_are_the_passages() -> None:
    made = plan_of(preset("star", gpus=3), Collective.ALL_REDUCE)
    run = simulate(made.body, 30_000)
    picture = timeline_picture(run)
    assert (picture.rows, picture.used, picture.areas) == (6, 6, False)
    root = ET.fromstring(picture.svg)
    bars = [bar for bar in repeated(root, "rect") if bar.get("class") in ("send", "add")]
    assert len(bars) == sum(len(run.passages(link)[0]) for link in range(6))
    added = sum(int((run.messages.added_bytes[run.passages(link)[0]] > 0).sum()) for link in range(6))
    assert sum(bar.get("class") == "add" for bar in bars) == added > 0


def test_busy_links_are_areas_of_the_same_time() -> None:
    made = plan_of(preset("star", gpus=8), Collective.ALL_REDUCE)
    run = simulate(made.body, 2**24, pieces=256)
    picture = timeline_picture(run)
    assert picture.areas
    root = ET.fromstring(picture.svg)
    areas = [path for path in repeated(root, "path") if path.get("class") in ("send", "add")]
    filled = 0.0
    for path in areas:
        for height, width in re.findall(r"v-([\d.]+)h([\d.]+)", path.get("d") or ""):
            filled += float(height) * float(width)
    # 876 units stand for the whole time, 15 for a link in full use.
    wanted = float(run.link_busy_us.sum()) / run.time_us * 876 * 15
    assert np.isclose(filled, wanted, rtol=0.02)


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_REDUCE])
def test_links_that_are_alike_share_a_row_with_their_count(collective: Collective) -> None:
    made = plan_of(preset("dgx-a100", boxes=2), collective)
    run = simulate(made.body, 2**20)
    picture = timeline_picture(run)
    assert picture.folded
    assert picture.rows == picture.used == int((run.link_bytes > 0).sum())
    root = ET.fromstring(picture.svg)
    labels = [text.text or "" for text in root.iter(f"{SVG}text") if "→" in (text.text or "")]
    assert len(labels) <= 12
    counts = [int(found[1]) if (found := re.search(r" ×(\d+)$", label)) else 1 for label in labels]
    assert sum(counts) == picture.used
    page = report_html(made, size_bytes=2**20)
    assert "share a row with their number (×)" in page
    assert "links alike: " in page


def test_links_that_differ_keep_their_rows() -> None:
    """One GPU of half the rate: its links are a row of their own."""
    slow = scale_nodes(preset("star", gpus=4), {"gpu3": "50%"})
    run = simulate(plan_of(slow, Collective.ALL_GATHER).body, 2**20)
    picture = timeline_picture(run)
    labels = [text.text or "" for text in ET.fromstring(picture.svg).iter(f"{SVG}text")]
    assert any("gpu3" in label and "×" not in label for label in labels)


def test_eight_lines_stand_out_at_most() -> None:
    problem = Problem(topology=preset("star", gpus=8), collective=Collective.ALL_REDUCE)
    found = compare(problem, sizes=[2**10, 2**14, 2**20], jobs=1)
    assert len(found.times) > 12
    strong = found.outstanding(8)
    assert len(strong) == 8
    assert strong[0] == "forest"
    assert {each.algorithm for each in found.ranges} <= set(strong)
    root = ET.fromstring(comparison_picture(found))
    lines = {
        (line.find(f"{SVG}title").text or "").split(":")[0]: line.get("class")
        for line in root.iter(f"{SVG}polyline")
    }
    assert {name for name, colours in lines.items() if colours == "curve other"} == set(found.times) - set(
        strong
    )
    assert len({lines[name] for name in strong}) == 8
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert f"{len(found.times) - 8} others" in words
    assert not set(words) & (set(found.times) - set(strong))
