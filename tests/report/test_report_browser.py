"""The report in a real browser: nothing goes wrong on the console, nothing sticks out, the choice of trees works."""

from __future__ import annotations

from pathlib import Path

import pytest

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.comparison.sweep import compare
from coppice.planners.planning import plan
from coppice.report.page import report_html
from coppice.topology.presets import preset
from support.browser import needs_browser, probed

PROBE = """
<script>
var seen = function () {
  return Array.from(document.querySelectorAll("section.tree")).filter(function (t) { return t.offsetHeight; }).length;
};
var first = seen();
var choice = document.getElementById("tree-choice");
choice.selectedIndex = 1;
document.getElementById("tree-mark").checked = true;
choice.dispatchEvent(new Event("change"));
var wanted = document.querySelectorAll("section.tree")[1].dataset.links.split(" ").length;
var root = document.documentElement;
root.dataset.probe = [
  root.scrollWidth - root.clientWidth, first, seen(), wanted - document.querySelectorAll("g.chosen").length,
  getComputedStyle(document.body).backgroundColor,
  Math.min.apply(null, Array.from(document.querySelectorAll("figure > svg")).filter(function (s) {
    return s.getBoundingClientRect().width;
  }).map(function (s) { return s.getBoundingClientRect().width / s.viewBox.baseVal.width; })),
].join(";");
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = Problem(topology=preset("dgx-a100", boxes=2), collective=Collective.ALL_REDUCE)
    made = plan(problem, ring=False).plan
    rivals = compare(problem, sizes=[2**10, 2**20], algorithms=["forest", "rabenseifner"], jobs=1)
    target = tmp_path_factory.mktemp("report") / "report.html"
    text = report_html(made, size_bytes=2**20, comparison=rivals)
    target.write_text(text.replace("</body>", f"</body>{PROBE}"), encoding="utf-8")
    return target


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (520, False)])
def test_page_in_chromium(page: Path, width: int, dark: bool, tmp_path: Path) -> None:
    overflow, before, after, missing, background, scale = probed(
        page, tmp_path, width=width, dark=dark
    ).split(";")
    assert int(overflow) <= 0
    assert (before, after) == ("1", "1")
    assert missing == "0"
    # On a phone drawings keep the size of their text, and scroll.
    assert float(scale) >= (0.99 if width < 640 else 0.9)
    assert background == ("rgb(20, 25, 31)" if dark else "rgb(255, 255, 255)")
