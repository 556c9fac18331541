"""`coppice report`: what it writes, and what it refuses."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from coppice.bounds.problem import Problem
from coppice.cli.report import report
from coppice.collectives import Collective
from coppice.comparison import compare
from coppice.errors import InputError
from coppice.planners.planning import plan
from coppice.report import report as write_report
from coppice.report import report_text
from coppice.schedule.files.plan_file import write_plan
from coppice.topology.presets import preset


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    problem = Problem(topology=preset("star", gpus=3), collective=Collective.ALL_GATHER)
    write_plan(plan(problem).plan, tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


def test_files_by_suffix(plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(plan_file, output=tmp_path / "a.html", size="1M", compare="1K,1M")
    report(plan_file, output=tmp_path / "a.svg")
    report(plan_file, output=tmp_path / "a.dot")
    headings = [h.text for h in ET.parse(tmp_path / "a.html").iter("h2")]
    assert headings == ["Topology", "Trees", "Link loads", "Timeline", "Comparison"]
    assert "1 MiB take" in (tmp_path / "a.html").read_text()
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "a.dot").read_text().startswith("digraph ")
    assert capsys.readouterr().out.count(f"{tmp_path}/a.") == 3


def test_synthesised_schedules_are_rivals(tmp_path: Path) -> None:
    problem = Problem(topology=preset("star", gpus=3), collective=Collective.BROADCAST, root=0)
    write_plan(plan(problem).plan, tmp_path / "plan.json")
    report(str(tmp_path / "plan.json"), output=tmp_path / "a.html", compare="1M", synthesize="tacos, syccl")
    page = ET.parse(tmp_path / "a.html")
    assert [cell.text for cell in page.iter("td")].count("tacos") == 1
    assert any((p.text or "").startswith("syccl: method syccl synthesises") for p in page.iter("p"))
    with pytest.raises(InputError, match="`synthesize` adds to a comparison"):
        report(str(tmp_path / "plan.json"), output=tmp_path / "b.html", synthesize="tacos")


def test_refusals(plan_file: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a file called \*\.html"):
        report(plan_file, output=tmp_path / "a.pdf")
    with pytest.raises(InputError, match="`compare` belongs on a page"):
        report(plan_file, output=tmp_path / "a.svg", compare="1K")
    with pytest.raises(InputError, match="expected `size`"):
        report(plan_file, output=tmp_path / "a.html", size="big")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json"]


def test_topologies_and_comparisons(tmp_path: Path) -> None:
    topology = preset("star", gpus=3)
    for suffix in (".html", ".svg", ".dot"):
        assert write_report(topology, tmp_path / f"t{suffix}") == (tmp_path / f"t{suffix}").stat().st_size
    assert ET.parse(tmp_path / "t.html").getroot().tag == "html"
    found = compare(Problem(topology=topology, collective=Collective.ALL_GATHER), sizes=[1024, 2**20])
    write_report(found, tmp_path / "c.html")
    assert [h.text for h in ET.parse(tmp_path / "c.html").iter("h2")] == ["Comparison"]
    assert ET.fromstring(report_text(found, ".svg")).tag.endswith("svg")
    with pytest.raises(InputError, match=r"found Comparison for \.dot"):
        report_text(found, ".dot")
    with pytest.raises(InputError, match="found int"):
        report_text(3, ".svg")
