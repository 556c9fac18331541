"""`coppice train import`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


def test_steps_and_collectives_of_a_profile(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "ts": 0, "dur": 100, "tid": 1}
    told = {"Collective name": "allreduce", "In msg nelems": 256, "dtype": "Float", "Group size": 4}
    kernel = {**KERNEL, "args": {"correlation": 1, "stream": 7, **told}}
    path.write_text(json.dumps({"traceEvents": [EVENTS[0], kernel, step]}))
    found = run("train", "import", str(path), "--step", "2", "--json").json
    assert found["steps"] == {"2": 100.0}
    (total,) = found["collectives"]
    assert (total["collective"], total["ranks"], total["size_bytes"]) == ("all_reduce", 4, 1024)
    assert "1 time, 1 KiB over 4 ranks" in run("train", "import", str(path)).out
    assert "found steps 2." in run("train", "import", str(path), "--step", "5").err
    assert "--cluster is not for a profile" in run("train", "import", str(path), "--cluster", "dgx-a100").err
    path.write_text(json.dumps({"traceEvents": [EVENTS[0], {**EVENTS[1], "name": "gemm"}]}))
    assert "none: profile a rank of a job of several ranks" in run("train", "import", str(path)).out


def test_an_exported_plan_comes_back(run: Run, tmp_path: Path) -> None:
    plan, traces = tmp_path / "plan.json", tmp_path / "traces"
    run("plan", "dgx-a100", "--collective", "all_gather", "-o", str(plan))
    run("export", str(plan), "--to", "chakra", "--size", "8M", "-o", str(traces))
    found = run("train", "import", str(traces), "--cluster", "dgx-a100", "--json").json
    assert (found["kind"], found["ranks"], found["messages_alone"]) == ("Chakra", list(range(8)), 0)
    sums = {each["collective"]: each for each in found["collectives"]}
    assert sums["send"]["count"] == sums["receive"]["count"] == found["messages_met"]
    # Every rank gets what seven others have.
    assert sums["send"]["size_bytes"] == sums["receive"]["size_bytes"] == 7 * (8 << 20)
    assert 0 < found["lower_bound_us"] <= found["replay_us"]
    alone = run("train", "import", str(traces / "trace.3.et"))
    assert "whose other rank has no trace here" in alone.out
    assert "name their --cluster" in alone.out


def test_a_module(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    file, workload = tmp_path / "model.py", tmp_path / "workload.json"
    file.write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)), torch.randn(32, 64)\n"
    )
    words = ("--ranks", "16", "--cluster", "dgx-a100", "--boxes", "2", "-o", str(workload))
    found = run("train", "import", str(file), *words, "--json").json
    assert [layer["name"] for layer in found["layers"]] == ["0", "1"]
    assert sum(layer["forward_flops"] for layer in found["layers"]) == 2 * 2 * 32 * 64 * 64
    assert found["collectives"][0]["size_bytes"] == 2 * 4 * (64 * 64 + 64)
    assert found["lower_bound_seconds"] <= found["iteration_seconds"]
    policy = run("train", "policy", str(workload), "--policy", "wfbp", "--json").json
    assert policy["iteration_seconds"] > 0


def test_options_that_do_not_belong(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("def build(): ...\n")
    name = str(file)
    assert "--step is not for a module" in run("train", "import", name, "--step", "1", "--ranks", "2").err
    assert "give --parallel dp=16, or --ranks 16" in run("train", "import", name).err
    assert "found 'dp=0'" in run("train", "import", name, "--parallel", "dp=0").err
    assert "found 'dp=3'" in run("train", "import", name, "--parallel", "dp=2,dp=3").err
    assert "for the times of --output" in run("train", "import", name, "--ranks", "2", "-o", "w.json").err
    assert "--boxes goes with --cluster" in run("train", "import", name, "--ranks", "2", "--boxes", "2").err
    assert "found 'H1000'" in run("train", "import", name, "--ranks", "2", "--device", "H1000").err
    alone = run("train", "import", name, "--ranks", "16", "--device", "H100").err
    assert "expected --cluster for 16 ranks, found only the device of a box of 8" in alone
    assert "expected one module, found 2" in run("train", "import", name, name).err
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": EVENTS}))
    assert "--ranks is not for a trace" in run("train", "import", str(trace), "--ranks", "2").err
