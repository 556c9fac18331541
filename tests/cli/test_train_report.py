"""`coppice train report`: the page that it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Run

JOB = ("gpt-7.5b", "--cluster", "dgx-a100", "--boxes", "2", "--parallel", "tp=4,pp=4", "--global-batch", "16")
FILE = """
[model]
name = "gpt-7.5b"
[cluster]
topology = "dgx-a100"
boxes = 2
[layout]
tp = 4
pp = 4
global_batch = 16
"""


def test_a_page_of_a_model_and_of_a_file(run: Run, tmp_path: Path) -> None:
    page, again = tmp_path / "a.html", tmp_path / "b.html"
    trace = tmp_path / "trace.json"
    shown = run("train", "report", *JOB, "-o", str(page), "--trace", str(trace)).out
    assert shown.startswith(f"{page}: ")
    text = page.read_text()
    assert "gpt-7.5b on 2 x dgx-a100" in text
    assert {each["pid"] for each in json.loads(trace.read_text())["traceEvents"]} == {1, 2, 3, 4}
    file = tmp_path / "job.toml"
    file.write_text(FILE)
    found = run("train", "report", str(file), "-o", str(again), "--json").json
    estimated = run("train", "estimate", *JOB, "--json").json
    assert found["iteration_seconds"] == estimated["iteration_seconds"]
    assert found["bytes"] == len(again.read_bytes())
    tail = text.index("Where the time goes")
    assert again.read_text()[again.read_text().index("Where the time goes") :] == text[tail:]


def test_what_is_refused(run: Run, tmp_path: Path) -> None:
    assert "found 'page.pdf'" in run("train", "report", *JOB, "-o", str(tmp_path / "page.pdf")).err
    assert "expected" in run("train", "report", "gpt-9b", "--cluster", "dgx-a100").err
