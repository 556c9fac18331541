"""The page of an iteration: what it tells, that it is well formed, and that a browser draws it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from coppice.iteration.layout import Layout
from coppice.iteration.machine import cluster_of
from coppice.iteration.models import MODELS
from coppice.iteration.page.page import iteration_html, report_of_step
from coppice.iteration.page.timeline import MOST_TASKS, timeline_rows
from coppice.iteration.policies.step_plans import plan_named
from coppice.iteration.step.blocks import transformer_step
from coppice.iteration.step.simulated import order_for, simulate_step
from coppice.iteration.tasks import TaskGraphBuilder, TaskTimes, run_tasks
from coppice.iteration.trace import write_task_trace
from coppice.topology.presets import preset
from support.browser import needs_browser, probed

MEMORY = {"parameters": 2e9, "gradients": 1e9, "optimizer": 12e9, "activations": 20e9}


@pytest.fixture(scope="module")
def page() -> str:
    """Sixteen stages and 64 micro-batches."""
    layout = Layout(tensor=8, pipeline=16, data=4, global_batch=256)
    name, order = order_for(None, 16, 64, 1)
    step = transformer_step(MODELS["gpt-175b"], layout, cluster_of(preset("dgx-a100", boxes=64)))
    found = simulate_step(step, plan_named("none", step, order), name=name)
    return iteration_html(
        report_of_step(
            "gpt <175b>",
            found,
            memory=MEMORY,
            memory_bytes=80e9,
            device="A100-80G",
            command="coppice train estimate x",
        )
    )


def data_of(page: str) -> dict[str, list[dict[str, list[int]]]]:
    root = ET.fromstring(page.removeprefix("<!DOCTYPE html>"))
    canvas = next(each for each in root.iter("canvas"))
    found: dict[str, list[dict[str, list[int]]]] = json.loads(canvas.attrib["data-tasks"])
    return found


def test_all_tasks_of_all_stages_are_there(page: str) -> None:
    data = data_of(page)
    devices = [row for row in data["rows"] if str(row["name"]).startswith("device ")]
    assert len(devices) == 16
    kinds = data["kinds"]
    for row in devices:
        named = [kinds[kind] for kind in row["kind"]]
        assert named.count("forward") >= 64
        assert named.count("backward") >= 64
        ends = [start + length for start, length in zip(row["start"], row["length"], strict=True)]
        assert all(start >= end - 1 for start, end in zip(row["start"][1:], ends, strict=False))
    assert any(any(row["critical"]) for row in data["rows"])


def test_what_the_page_tells(page: str) -> None:
    assert len(page) < 2_000_000
    assert "gpt &lt;175b&gt;" in page
    for words in (
        "Where the time goes",
        "Exposed communication",
        "Memory of a GPU",
        "Lower bounds",
        "tp all_reduce",
    ):
        assert words in page
    assert "coppice train estimate x --json" in page
    assert not re.search(r"(src|href)=", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def crowd(devices: int, tasks: int) -> TaskTimes:
    graph = TaskGraphBuilder()
    for device in range(devices):
        stream = graph.stream(f"device {device}")
        for task in range(tasks):
            graph.add(f"F{task}", "forward", stream, 1e-3)
    return run_tasks(graph.build())


def test_large_jobs_show_some_devices() -> None:
    rows = timeline_rows(crowd(256, 320))
    assert rows.of_devices == 256
    assert rows.devices == len(rows.streams) < 256
    assert rows.devices * 320 <= MOST_TASKS
    assert {rows.streams[0], rows.streams[-1]} == {0, 255}
    few = timeline_rows(crowd(4, 3))
    assert (few.devices, few.of_devices) == (4, 4)


def test_a_process_for_each_device(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert write_task_trace(crowd(2, 3), path) == 6
    events = json.loads(path.read_text())["traceEvents"]
    named = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert named == {1: "device 0", 2: "device 1"}
    assert [each["pid"] for each in events if each["ph"] == "X"] == [1, 1, 1, 2, 2, 2]


PROBE = """
<script>
var canvas = document.getElementById("timeline"), told = document.getElementById("told");
function inked() {
  var c = canvas.getContext("2d"), seen = new Set();
  var data = c.getImageData(0, 0, canvas.width, canvas.height).data;
  for (var at = 0; data.length > at; at += 4004) { seen.add(data[at] + "," + data[at + 1] + "," + data[at + 2]); }
  return seen.size;
}
var whole = canvas.dataset.drawn, colours = inked();
document.querySelector("[data-act=in]").click();
var zoomed = canvas.dataset.drawn;
document.querySelector("[data-act=right]").click();
var moved = canvas.dataset.drawn;
document.querySelector("[data-act=whole]").click();
var box = canvas.getBoundingClientRect();
canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 121, clientY: box.top + 26 }));
var root = document.documentElement;
root.dataset.probe = [root.scrollWidth - root.clientWidth, whole, zoomed, moved, canvas.dataset.drawn, colours,
  getComputedStyle(document.body).backgroundColor, told.textContent].join("|");
</script>
"""


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (520, True)])
def test_page_in_chromium(page: str, width: int, dark: bool, tmp_path: Path) -> None:
    target = tmp_path / "iteration.html"
    target.write_text(page.replace("</body>", f"</body>{PROBE}"), encoding="utf-8")
    overflow, whole, zoomed, moved, again, colours, background, told = probed(
        target, width=width, dark=dark
    ).split("|")
    assert int(overflow) <= 0
    spans = [[float(each) for each in text.split()] for text in (whole, zoomed, moved, again)]
    assert spans[1][1] - spans[1][0] == pytest.approx((spans[0][1] - spans[0][0]) / 2)
    assert spans[2][0] > spans[1][0]
    assert spans[3] == [0, 10_000_000]
    assert int(colours) > 4
    assert background == ("rgb(20, 25, 31)" if dark else "rgb(255, 255, 255)")
    assert told.startswith("device 0: 0F0")
