"""`coppice train import`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from cli.conftest import Run

LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0, "dur": 5, "tid": 1}
KERNEL = {"ph": "X", "cat": "kernel", "name": "ncclKernel", "ts": 5, "dur": 95, "tid": 7}
EVENTS = [{**LAUNCH, "args": {"correlation": 1}}, {**KERNEL, "args": {"correlation": 1, "stream": 7}}]


def test_a_trace_and_its_replay(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    shown = run("train", "import", str(path), "--trace", str(tmp_path / "replay.json")).out
    assert "exposed communication" in shown
    assert "0.1 ms, +0.00%" in shown
    assert json.loads((tmp_path / "replay.json").read_text())["traceEvents"]
    found = run("train", "import", str(path), "--scale", "communication=0.5", "--json").json
    assert 50 < found["replay_us"] < 60
    assert "found 'half'" in run("train", "import", str(path), "--scale", "communication=half").err
    assert "found network=2" in run("train", "import", str(path), "--scale", "network=2").err
