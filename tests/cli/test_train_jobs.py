"""`coppice train` with files: jobs shown, estimated, searched, changed, measured; traces and profiles imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Run
from coppice.iteration.measured import measuring
from iteration.test_measured import RECORD
from support.paths import ROOT

EXAMPLES = ROOT / "examples" / "iteration"
MIXTURE = EXAMPLES / "mixture.toml"


def test_a_job_is_shown(run: Run) -> None:
    shown = run("train", "job", MIXTURE).out
    assert "46.7 billion weights, 32 layers, 2 of 8 experts a token" in shown
    assert "tp 2, dp 16, ep 4" in shown
    assert run("train", "job", MIXTURE, "--json").json["model"]["experts"] == 8
    schema = run("train", "job", "--schema").json
    assert schema["$defs"]["LayoutTable"]["properties"]["tp"]["anyOf"][0]["minimum"] == 1
    assert "expected a job file, found none: name one, or take `--schema`" in run("train", "job").err


def test_models_are_listed(run: Run) -> None:
    found = {each["name"]: each for each in run("train", "models", "--json").json["models"]}
    assert found["resnet-50"]["parameters"] == 25_557_032
    shown = run("train", "models").out.splitlines()
    assert len(shown) == 1 + len(found)
    assert any(line.startswith("mixtral-8x7b") and "12.9B" in line for line in shown)


def test_options_replace_keys_of_the_file(run: Run) -> None:
    job = EXAMPLES / "resnet-50.toml"
    file = run("train", "estimate", job, "--json").json
    other = run("train", "estimate", job, "--micro-batch", "32", "--device", "H100", "--json").json
    assert other["device"] == "H100"
    assert other["memory_by_part"]["activations"] == file["memory_by_part"]["activations"] / 4
    assert file["tokens_per_second"] is None
    boxes = run("train", "estimate", job, "--boxes", "2", "--json").json
    assert boxes["iteration_seconds"] > 1.9 * file["iteration_seconds"]
    assert "images/s" in run("train", "estimate", job).out
    single = run(
        "train", "estimate", EXAMPLES / "two-generations.toml", "--topology", "dgx-a100", "--boxes", "8"
    )
    assert "on 8 x dgx-a100" in single.out
    assert "one kind of box" not in single.out


def test_a_file_says_the_same_as_options(run: Run) -> None:
    options = (
        "--topology dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512 --shard zero1 --json"
    )
    named = run("train", "estimate", "gpt-175b", *options.split()).json
    assert run("train", "estimate", EXAMPLES / "gpt-175b.toml", "--json").json == named


def test_searches_take_files(run: Run) -> None:
    found = run("train", "search", MIXTURE, "--top", "100", "--json").json
    assert {each["expert"] for each in found["layouts"]} >= {1, 2, 4, 8}
    shown = run("train", "search", MIXTURE, "--top", "2").out.splitlines()
    assert " dp  ep  vp " in shown[1]
    net = run("train", "search", EXAMPLES / "resnet-50.toml", "--json").json
    assert {each["data"] for each in net["layouts"]} == {32}


def test_what_if_beside_the_job(run: Run) -> None:
    words = ["train", "estimate", EXAMPLES / "resnet-50.toml"]
    words += ["--what-if", "nic=x2", "--what-if", "drain=1", "--degrade", "box0/nic3=50%"]
    found = run(*words, "--json").json
    rows = found["what_if"]
    assert [each["change"] for each in rows] == ["none", "nic=x2", "drain=1", "degrade=box0/nic3=50%"]
    assert rows[0]["ways"][0]["iteration_seconds"] == found["iteration_seconds"]
    assert [each["way"] for each in rows[3]["ways"]] == ["keep", "keep, laid out anew", "drain"]
    shown = run(*words).out.splitlines()
    head = next(line for line in shown if line.startswith("what if"))
    assert head.split() == ["what", "if", "way", "GPUs", "iteration", "samples/s", "change"]
    assert (
        sum(line.endswith("best") for line in shown) == 2
    )  # of the healthy job, and of the one with a slow NIC


def test_a_measured_device(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(RECORD))
    words = [
        *("train", "estimate", "gpt-7.5b", "--topology", "hgx-h200", "--parallel", "tp=8", "--global-batch"),
        *("8", "--json"),
    ]
    plain, measured = run(*words).json, run(*words, "--device", path).json
    assert measured["device"] == plain["device"] == "H200"
    assert measured["iteration_seconds"] != plain["iteration_seconds"]
    slower = RECORD | {"matrices": [each | {"tflops_per_s": 1.0} for each in RECORD["matrices"]]}
    path.write_text(json.dumps(slower))
    assert run(*words, "--device", path).json["iteration_seconds"] > 10 * measured["iteration_seconds"]


def test_a_measurement(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(kind: str | None, *, seconds: float, say: Callable[[str], None]) -> dict[str, object]:
        say("measured")
        asked.append((kind, seconds))
        return RECORD | {"launch_seconds": 2e-6}

    monkeypatch.setattr(measuring, "measure_device", measured)
    path = tmp_path / "new.json"
    done = run("train", "measure", "--kind", "cpu", "--seconds", "3", "-o", path)
    assert asked == [("cpu", 3.0)]
    assert f"wrote     {path}" in done.out
    words = ["train", "estimate", "gpt-7.5b", "--topology", "hgx-h200", "--parallel", "tp=8", "--json"]
    assert run(*words, "--device", path).json["device"] == "H200"
    assert run("train", "measure", "-o", path, "--json").json["name"] == "NVIDIA H200"
    assert "expected `--kind` to be cuda or cpu, found 'tpu'" in run("train", "measure", "--kind", "tpu").err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt-7.5b --parallel tp=8", "expected `--topology`, a preset or topology file, found none"),
        (f"{MIXTURE} --parallel ep=3", "found 3"),
        (f"{MIXTURE} --parallel ep=16", "expected ep that divides 8 experts, found 16"),
        (f"{MIXTURE} --shard zero4", "`layout.shard`: expected one of"),
        (f"{MIXTURE} --recompute all", "`layout.recompute`: expected one of"),
        (f"{MIXTURE} --parallel tpp=3", "found 'tpp=3': did you mean 'tp'"),
        (f"{MIXTURE} --device x.json", "x.json"),
        (f"{MIXTURE} --what-if nic", "expected a change such as nic=x2 (`--what-if`)"),
        (f"{EXAMPLES / 'resnet-50.toml'} --shard fsdp", "expected shard none, zero1 or zero2 for resnet-50"),
        ("nothing.toml", "nothing.toml"),
    ],
)
def test_what_cannot_be(run: Run, words: str, message: str) -> None:
    found = run("train", "estimate", *words.split())
    assert found.code == 2
    assert message in found.err


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
    assert (
        "`--topology` is not for a profile" in run("train", "import", str(path), "--topology", "dgx-a100").err
    )
    path.write_text(json.dumps({"traceEvents": [EVENTS[0], {**EVENTS[1], "name": "gemm"}]}))
    assert "none: profile a rank of a job of several ranks" in run("train", "import", str(path)).out


def test_an_exported_plan_comes_back(run: Run, tmp_path: Path) -> None:
    plan, traces = tmp_path / "plan.json", tmp_path / "traces"
    run("plan", "dgx-a100", "--collective", "all_gather", "-o", str(plan))
    run("export", str(plan), "--to", "chakra", "--size", "8M", "-o", str(traces))
    found = run("train", "import", str(traces), "--topology", "dgx-a100", "--json").json
    assert (found["kind"], found["ranks"], found["messages_alone"]) == ("Chakra", list(range(8)), 0)
    sums = {each["collective"]: each for each in found["collectives"]}
    assert sums["send"]["count"] == sums["receive"]["count"] == found["messages_met"]
    # Every rank gets what seven others have.
    assert sums["send"]["size_bytes"] == sums["receive"]["size_bytes"] == 7 * (8 << 20)
    assert 0 < found["lower_bound_us"] <= found["replay_us"]
    alone = run("train", "import", str(traces / "trace.3.et"))
    assert "whose other rank has no trace here" in alone.out
    assert "name their --topology" in alone.out


@pytest.mark.slow
def test_a_module(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    file, workload = tmp_path / "model.py", tmp_path / "workload.json"
    file.write_text(
        "import torch\n"
        "def build():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)), torch.randn(32, 64)\n"
    )
    words = ("--num-ranks", "16", "--topology", "dgx-a100", "--boxes", "2", "-o", str(workload))
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
    assert "--step is not for a module" in run("train", "import", name, "--step", "1", "--num-ranks", "2").err
    assert "give `--parallel dp=16`, or `--num-ranks 16`" in run("train", "import", name).err
    assert "found 'dp=0'" in run("train", "import", name, "--parallel", "dp=0").err
    assert "found 'dp=3'" in run("train", "import", name, "--parallel", "dp=2,dp=3").err
    assert "for the times of --output" in run("train", "import", name, "--num-ranks", "2", "-o", "w.json").err
    assert (
        "`--boxes` goes with `--topology`"
        in run("train", "import", name, "--num-ranks", "2", "--boxes", "2").err
    )
    assert "found 'H1000'" in run("train", "import", name, "--num-ranks", "2", "--device", "H1000").err
    alone = run("train", "import", name, "--num-ranks", "16", "--device", "H100").err
    assert "expected `--topology` for 16 ranks, found only the device of a box of 8" in alone
    assert "expected one module, found 2" in run("train", "import", name, name).err
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": EVENTS}))
    assert "--num-ranks is not for a trace" in run("train", "import", str(trace), "--num-ranks", "2").err
