"""Reports in a real browser: nothing on the console, nothing sticks out or is struck through, and all of it prints."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.sweep import compare
from coppice.planners.planning import plan
from coppice.report.page import report_html
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from support.browser import Browser, needs_browser
from support.drawn_topologies import FILES, NAMES, of_file, of_preset

pytestmark = needs_browser

PRINTED_WIDTH = 688
PRINTED_HEIGHT = 1016
"""Pixels of a sheet of A4 inside its margins."""

BROKEN = """(() => {
  const found = [];
  const apart = (p, q) => p.right <= q.left + 0.5 || q.right <= p.left + 0.5
    || p.bottom <= q.top + 0.5 || q.bottom <= p.top + 0.5;
  const inner = box => ({left: box.left, right: box.right, top: box.top + 1.5, bottom: box.bottom - 1.5});
  for (const svg of document.querySelectorAll("figure > svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) { continue; }
    const texts = Array.from(svg.querySelectorAll("text")).filter(t => t.textContent);
    const boxes = texts.map(t => inner(t.getBoundingClientRect()));
    boxes.forEach((box, i) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
          || box.bottom > frame.bottom + 1) { found.push("outside: " + texts[i].textContent); }
      for (let j = 0; j < i; j++) {
        if (!apart(box, boxes[j])) { found.push(texts[j].textContent + " over " + texts[i].textContent); }
      }
    });
    for (const line of svg.querySelectorAll("path.link, path.edge, path.cut")) {
      const matrix = line.getScreenCTM(), length = line.getTotalLength();
      for (let at = 0; at <= length; at += 1.5) {
        const point = line.getPointAtLength(at).matrixTransform(matrix);
        const hit = boxes.findIndex(box => box.left < point.x && point.x < box.right
          && box.top < point.y && point.y < box.bottom);
        if (hit >= 0) { found.push(line.getAttribute("class") + " through " + texts[hit].textContent); break; }
      }
    }
  }
  return found;
})()"""
"""What is wrong with the pictures that are seen: texts off them or over each other, lines through texts."""

STUCK = """(() => {
  const root = document.documentElement, found = [root.scrollWidth - root.clientWidth];
  for (const each of document.querySelectorAll("figure, figure > svg, table, dl, p")) {
    const box = each.getBoundingClientRect();
    found.push(box.right - root.clientWidth, each.scrollWidth - Math.ceil(box.width) - 1);
    found.push(each.scrollHeight - Math.ceil(box.height) - 1);
    if (each.tagName == "svg" || each.tagName == "FIGURE") { found.push(box.height - HEIGHT); }
  }
  return Math.max(...found);
})()"""
"""How far anything sticks out of its place, of the page, or of one sheet of paper."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE)
    made = plan(problem, ring=False).plan
    rivals = compare(problem, sizes=[2**10, 2**20], algorithms=["forest", "rabenseifner"], jobs=1)
    target = tmp_path_factory.mktemp("report") / "report.html"
    target.write_text(report_html(made, size_bytes=2**20, comparison=rivals), encoding="utf-8")
    return target


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (520, False)])
def test_the_page(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert not browser.said()
    assert browser.ask(BROKEN) == []
    assert browser.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    seen = """Array.from(document.querySelectorAll("section.tree")).filter(t => t.offsetHeight).length"""
    assert browser.ask(seen) == 1
    chosen = browser.ask(
        """(() => {
          const choice = document.getElementById("tree-choice");
          choice.selectedIndex = 1;
          document.getElementById("tree-mark").checked = true;
          choice.dispatchEvent(new Event("change"));
          const wanted = document.querySelectorAll("section.tree")[1].dataset.links.split(" ").length;
          return wanted - document.querySelectorAll("g.chosen").length;
        })()"""
    )
    assert chosen == 0
    assert browser.ask(seen) == 1
    # On a phone drawings keep the size of their text, and scroll.
    scale = browser.ask(
        """Math.min(...Array.from(document.querySelectorAll("figure > svg"))
          .map(s => [s.getBoundingClientRect().width, s.viewBox.baseVal.width])
          .filter(([seen, _]) => seen).map(([seen, own]) => seen / own))"""
    )
    assert scale >= (0.99 if width < 640 else 0.9)
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 25, 31)" if dark else "rgb(255, 255, 255)")


def check_report(browser: Browser, topology: Topology, folder: Path) -> None:
    """A report of an all-reduce: complete, readable on the screen, and on paper."""
    made = plan(Problem(topology=topology, collective=Collective.ALL_REDUCE), ring=False).plan
    target = folder / "report.html"
    target.write_text(report_html(made, size_bytes=2**16), encoding="utf-8")
    browser.open(target)
    assert browser.ask(BROKEN) == []
    assert browser.ask(STUCK.replace("HEIGHT", "1e9")) <= 0
    if topology.num_nodes < 100:
        nodes = "svg.topology rect.gpu, svg.topology rect.nic, svg.topology rect.switch"
        assert browser.ask(f"document.querySelectorAll('{nodes}').length") == topology.num_nodes
    trees = browser.ask("""document.querySelectorAll("section.tree").length""")
    for number in range(trees):
        choose = f"""(() => {{ const choice = document.getElementById("tree-choice");
            choice.selectedIndex = {number}; choice.dispatchEvent(new Event("change")); }})()"""
        browser.ask(choose)
        assert browser.ask(BROKEN) == []
    browser.open(target, width=PRINTED_WIDTH, height=PRINTED_HEIGHT, media="print")
    assert browser.ask(STUCK.replace("HEIGHT", str(PRINTED_HEIGHT))) <= 0
    check_pdf(browser.pdf())


def check_pdf(content: bytes) -> None:
    """A PDF of whole sheets of one size."""
    sizes = set(re.findall(rb"/MediaBox \[([^\]]*)\]", content))
    for packed in re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL):
        try:
            sizes |= set(re.findall(rb"/MediaBox \[([^\]]*)\]", zlib.decompress(packed)))
        except zlib.error:
            continue
    assert len(sizes) == 1


QUICK_FILES = {"aws_p4d-24xl-topo.xml", "dgx1v_8x_v100_4ib.txt", "rccl_topo_8p_940.xml"}
QUICK_PRESETS = {"dgx-a100-pcie", "fat-tree", "petersen", "mi250", "gb200-nvl72"}
"""Machines with rows of their own kind: their reports are looked at in every run, those of all others with the slow
tests."""


def marked(names: Iterable[str], quick: set[str]) -> list[Any]:
    """Names, those that are not quick marked as slow; a name of a machine that is not there is no name."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.skipif(not FILES, reason="no files of real machines are beside the repository")
def test_the_quick_machines_are_there() -> None:
    assert set(FILES) >= QUICK_FILES
    assert set(NAMES) >= QUICK_PRESETS


@pytest.mark.skipif(not FILES, reason="no files of real machines are beside the repository")
@pytest.mark.parametrize("name", marked(FILES, QUICK_FILES))
def test_reports_of_real_machines(browser: Browser, name: str, tmp_path: Path) -> None:
    check_report(browser, of_file(name), tmp_path)


@pytest.mark.parametrize("name", marked(NAMES, QUICK_PRESETS))
def test_reports_of_presets(browser: Browser, name: str, tmp_path: Path) -> None:
    check_report(browser, of_preset(name), tmp_path)


@pytest.mark.parametrize(
    ("name", "boxes"),
    [
        ("dgx-a100-pcie", 2),
        ("dgx-h100", 5),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("mi250", 2), ("ndv2", 3), ("dgx-h100", 40))
        ),
    ],
)
def test_reports_of_clusters(browser: Browser, name: str, boxes: int, tmp_path: Path) -> None:
    check_report(browser, of_preset(name, boxes), tmp_path)
