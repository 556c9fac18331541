"""Training scripts captured without a GPU do what real ranks on gloo do: FLOPs, collectives, memory, and their job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import coppice
from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.iteration.capture.capturing import ScriptError, capture_ranks
from coppice.iteration.capture.job_file import job_text
from coppice.iteration.capture.recognising import RecognisedJob, recognise
from coppice.iteration.capture.recomputing import Recomputation, recomputation_of
from coppice.iteration.capture.request import CapturedRank, CaptureResult, ParameterFact, ScriptFacts
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.modules.tracing import ModuleLayer, ModuleOperation
from support.commands import run
from support.paths import ROOT

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.timeout(900)

TESTS = ROOT / "tests"
SCRIPTS = TESTS / "support" / "captured"
EXAMPLES = ROOT / "examples" / "training"
ODD = SCRIPTS / "odd"

GPT = {
    "layers": 3,
    "hidden": 64,
    "heads": 4,
    "ffn": 256,
    "vocab": 512,
    "seq": 64,
    "gated": False,
    "biases": True,
}
LLAMA = {
    "layers": 4,
    "hidden": 64,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 176,
    "gated": True,
    "vocab": 512,
    "seq": 64,
}

JOBS: dict[str, dict[str, Any]] = {
    "ddp": {
        "ranks": 2,
        "job": {**GPT, "dp": 2, "global_batch": 8, "shard": "none", "policy": "ddp"},
    },
    "tensor_parallel": {"ranks": 2, "job": {**GPT, "tp": 2, "dp": 1, "sequence_parallel": False}},
    "pipeline": {
        "ranks": 2,
        "captured": [0, 1],
        "job": {**GPT, "layers": 4, "pp": 2, "dp": 1, "micro_batch": 2, "global_batch": 8, "policy": "1f1b"},
    },
    "fsdp2": {"ranks": 2, "job": {**GPT, "dp": 2, "shard": "zero3", "policy": "fsdp", "recompute": "none"}},
    "mixture": {
        "ranks": 2,
        "job": {"layers": 3, "experts": 4, "experts_per_token": 2, "expert_ffn": 128, "ep": 2, "dp": 2},
    },
    "checkpointed": {"ranks": 2, "job": {**GPT, "dp": 2, "recompute": "full", "global_batch": 16}},
    "again_every": {
        "script": "again",
        "arguments": ["full", "--every", "2"],
        "ranks": 1,
        "job": {**GPT, "layers": 4, "recompute": "full", "recompute_every": 2, "recompute_layers": None},
    },
    "again_operators": {
        "script": "again",
        "arguments": ["operators"],
        "ranks": 1,
        "job": {**GPT, "layers": 4, "recompute": "operators", "recompute_every": None},
    },
    "again_modules": {
        "script": "again",
        "arguments": ["mlp+layernorm", "--first", "3"],
        "ranks": 1,
        "job": {
            **GPT,
            "layers": 4,
            "recompute": "selective",
            "recompute_layers": 3,
            "recompute_modules": ["mlp", "layernorm"],
        },
    },
    "again_attention": {
        "script": "again",
        "arguments": ["core_attn"],
        "ranks": 1,
        "job": {**GPT, "layers": 4, "recompute": "selective", "recompute_modules": ["core_attn"]},
    },
    "compiled": {"ranks": 2, "job": {**GPT, "layers": 2, "dp": 2}},
    "torchtitan_like": {
        "ranks": 4,
        "arguments": ["--tp", "2", "--checkpoint"],
        "job": {
            **LLAMA,
            "tp": 2,
            "dp": 2,
            "shard": "zero3",
            "recompute": "full",
            "sequence_parallel": True,
            "micro_batch": 4,
            "global_batch": 8,
        },
    },
    "nanotron_like": {
        "ranks": 4,
        "arguments": ["--tp", "2"],
        "job": {
            "layers": 3,
            "heads": 4,
            "ffn": 192,
            "gated": True,
            "tp": 2,
            "dp": 2,
            "shard": "zero1",
            "sequence_parallel": True,
            "micro_batch": 2,
            "global_batch": 8,
        },
    },
    "megatron_like": {
        "ranks": 4,
        "arguments": ["--tp", "2", "--pp", "2"],
        "captured": [0, 2],
        "job": {
            **GPT,
            "layers": 4,
            "tp": 2,
            "pp": 2,
            "dp": 1,
            "micro_batch": 2,
            "global_batch": 8,
            "sequence_parallel": False,
        },
    },
}
QUICK = ("ddp",)


def script_of(name: str) -> Path:
    name = JOBS[name].get("script", name)
    found = SCRIPTS / f"{name}.py"
    return found if found.is_file() else EXAMPLES / f"{name}.py"


def run_all(names: list[str], folder: Path) -> Path:
    """Run scripts for real and captured, all of a kind in processes forked from one."""
    jobs = [
        {
            "name": name,
            "script": str(script_of(name)),
            "arguments": JOBS[name].get("arguments", []),
            "ranks": JOBS[name]["ranks"],
            "captured": JOBS[name].get("captured", [0]),
        }
        for name in names
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for module in ("support.capture_reference", "support.captures"):
        words = [sys.executable, "-m", module, str(folder / "jobs.json"), str(folder)]
        subprocess.run(words, cwd=TESTS, env=environment, check=True, capture_output=True, timeout=800)
    return folder


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_all(list(QUICK), tmp_path_factory.mktemp("quick"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_all([name for name in JOBS if name not in QUICK], tmp_path_factory.mktemp("slow"))


def real_of(folder: Path, name: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}-{rank}.json").read_text())
    assert not found["error"], found["error"]
    return found


def captured_of(folder: Path, name: str) -> dict[int, CapturedRank]:
    found = {}
    for rank in JOBS[name].get("captured", [0]):
        path = folder / f"{name}-{rank}.answer"
        assert path.is_file(), (folder / f"{name}-{rank}.log").read_text()[-2000:]
        result = msgspec.json.decode(path.read_bytes(), type=decodable(CaptureResult))
        assert result.captured is not None, result.error + result.traceback
        found[rank] = result.captured
    return found


def check_step(folder: Path, name: str) -> None:
    for rank, captured in captured_of(folder, name).items():
        real = real_of(folder, name, rank)
        assert captured.steps == 2
        assert captured.flops == pytest.approx(real["flops"], rel=0.01)
        rows = [[each.collective, each.size_bytes] for each in captured.collectives]
        assert rows == [row[:2] for row in real["collectives"]]
        sizes = [len(each.ranks) for each in captured.collectives if each.collective not in ("send", "recv")]
        assert sizes == [row[2] for row in real["collectives"] if row[0] not in ("send", "recv")]
        assert captured.peak_bytes == pytest.approx(real["peak_bytes"], rel=0.05)


def check_job(folder: Path, name: str) -> None:
    job = recognise(captured_of(folder, name), JOBS[name]["ranks"])
    wanted = JOBS[name]["job"]
    assert job.record is not None
    for key, value in wanted.items():
        table = next(
            each for each in (job.record.model, job.record.layout, job.record.run) if hasattr(each, key)
        )
        assert getattr(table, key) == value, key
    assert job.recognised_weights == pytest.approx(job.weights, rel=0.01)
    text = job_text(job, [name], rank=0, ranks=JOBS[name]["ranks"])
    assert parse_job_record(text, where="job.toml") == job.record
    assert tomllib.loads(text)["model"]["layers"] == job.record.model.layers


@pytest.mark.parametrize("name", QUICK)
def test_step_is_that_of_real_ranks(quick: Path, name: str) -> None:
    check_step(quick, name)


@pytest.mark.parametrize("name", QUICK)
def test_job_is_that_of_the_script(quick: Path, name: str) -> None:
    check_job(quick, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in JOBS if name not in QUICK])
def test_step_of_more_scripts(slow: Path, name: str) -> None:
    check_step(slow, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in JOBS if name not in QUICK])
def test_job_of_more_scripts(slow: Path, name: str) -> None:
    check_job(slow, name)


@pytest.mark.slow
def test_compiled_regions_have_the_flops_of_the_profiler(slow: Path, tmp_path: Path) -> None:
    """Modes that count keep PyTorch from compiling, its profiler does not."""
    program = tmp_path / "profiled.py"
    program.write_text(
        "import runpy, sys, torch\n"
        "from torch.optim.optimizer import register_optimizer_step_post_hook\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "profiler, steps = torch.profiler.profile(with_flops=True), []\n"
        "def after(*_):\n"
        "    steps.append(1)\n"
        "    (profiler.start if len(steps) == 1 else profiler.stop if len(steps) == 2 else len)() "
        "if len(steps) < 3 else None\n"
        "register_optimizer_step_post_hook(after)\n"
        f"runpy.run_path({str(script_of('compiled'))!r}, run_name='__main__')\n"
        "print('FLOPS', sum(each.flops for each in profiler.key_averages()))\n"
        "print('CALLS', sum('ompiled' in each.key for each in profiler.key_averages()))\n"
    )
    environment = {
        **os.environ,
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29577",
    }
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True
    )
    words = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("FLOPS", "CALLS")))
    assert int(words["CALLS"]) > 0
    captured = captured_of(slow, "compiled")[0]
    attention = sum(each.flops for each in captured.operations if "attention" in each.name)
    assert captured.flops - attention == pytest.approx(int(words["FLOPS"]), rel=0.01)


FLAGS: list[tuple[list[list[int]], int, dict[str, Any], bool]] = [
    # Layers of each stage that compute again, chunks, what the job says of them, and whether something is noted
    ([[1, 1], [1, 1]], 1, {}, False),
    ([[0, 1, 0, 1], [0, 1, 0, 1]], 1, {"every": 2}, False),
    ([[1, 0, 1, 0]], 1, {"every": 2}, False),
    ([[0, 0, 1, 0, 0, 1]], 1, {"every": 3}, False),
    ([[1, 1, 0], [1, 1, 0]], 1, {"layers": 2}, False),
    ([[1, 0, 1, 0], [1, 0, 1, 0]], 2, {"layers": 1}, False),
    ([[0, 0, 0], [1, 1, 1]], 1, {"every": 2}, True),
    ([[1, 1, 0, 1, 1, 0]], 1, {"every": 2}, True),
    ([[0, 0], [0, 0]], 1, {"recompute": "none"}, False),
]


@pytest.mark.parametrize(("flags", "chunks", "wanted", "noted"), FLAGS)
def test_layers_that_compute_again_are_those_of_the_job(
    flags: list[list[int]], chunks: int, wanted: dict[str, Any], noted: bool
) -> None:
    notes: list[str] = []
    stages = [made_stage(row) for row in flags]
    expected = Recomputation(**{"recompute": "full", **wanted})
    assert recomputation_of(stages, chunks, (), notes) == expected
    assert bool(notes) == noted


def made_stage(flags: list[int]) -> CapturedRank:
    """A stage whose layers have three products and a call of attention, and run again as told."""
    names = ("qkv", "out", "up")
    layers = [
        ModuleLayer(name=f"{block}.{name}", kind="Linear", parameters=1, gradient_bytes=2)
        for block in range(len(flags))
        for name in names
    ]
    facts = ScriptFacts(
        parameters=[
            ParameterFact(name=f"{block}.x", shape=[1], local=1, element_bytes=2, kind="Linear", block=block)
            for block in range(len(flags))
        ],
        layer_blocks={number: number // 3 for number in range(len(layers))},
    )

    def passes(block: int, **fields: bool) -> list[ModuleOperation]:
        rows = (
            ("aten.mm", 0),
            ("aten._scaled_dot_product_flash_attention", 0),
            ("aten.mm", 1),
            ("aten.mm", 2),
        )
        return [ModuleOperation(name=name, layer=3 * block + at, flops=1, **fields) for name, at in rows]

    operations = [each for block in range(len(flags)) for each in passes(block)]
    operations += [
        each for block, flag in enumerate(flags) if flag for each in passes(block, backward=True, again=True)
    ]
    return CapturedRank(
        rank=0,
        steps=1,
        layers=layers,
        operations=operations,
        setup=[],
        peak_bytes=0,
        peak_parts={},
        notes=[],
        facts=facts,
        torch="",
    )


def odd(name: str, *arguments: str, **options: Any) -> dict[int, CapturedRank]:
    return capture_ranks(ODD / f"{name}.py", arguments, **options)


@pytest.fixture(scope="module")
def printed() -> CapturedRank:
    (found,) = odd("values", "printed").values()
    return found


def test_values_that_are_printed_are_noted(printed: CapturedRank) -> None:
    found = printed
    assert found.flops == 1024
    assert any("values.py:26" in note and "taken to be 1.0" in note for note in found.notes)


@pytest.mark.slow
def test_values_that_are_printed_are_refused_if_asked_for() -> None:
    with pytest.raises(
        InputError, match=r"found `.item\(\)` of a float32 tensor at .*values.py:26 .*give it by the"
    ):
        odd("values", "printed", strict=True)


@pytest.mark.parametrize(
    ("what", "line", "words"),
    [
        ("if", 14, "a tensor that decides"),
        ("mask", 17, "a size that depends on values"),
        ("size", 19, "expected sizes that a capture knows"),
        ("split", 22, "expected sizes that a capture knows"),
        ("graph", 36, "a CUDA graph"),
    ],
)
@pytest.mark.slow
def test_values_that_are_needed_are_refused_with_the_line(what: str, line: int, words: str) -> None:
    with pytest.raises(InputError) as refusal:
        odd("values", what)
    assert words in str(refusal.value)
    assert f"values.py:{line} (" in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "line", "value"), [("if", 14, False), ("mask", 17, 12), ("size", 19, 5), ("split", 22, [3, 5])]
)
def test_values_that_are_given_are_taken(what: str, line: int, value: Any) -> None:
    (found,) = odd("values", what, assume={f"values.py:{line}": value}).values()
    assert found.steps == 2
    assert found.flops >= 1024


@pytest.mark.slow
def test_a_crash_is_one_sentence_and_the_traceback_of_the_script() -> None:
    with pytest.raises(ScriptError) as crash:
        odd("values", "crash")
    message, trace = str(crash.value), crash.value.traceback
    assert "found KeyError at" in message
    assert "values.py:30: 'nothing here'." in message
    assert 'raise KeyError("nothing here")' in trace
    assert "site-packages" not in trace
    assert "coppice" not in trace.replace(str(ROOT), "")


@pytest.mark.slow
def test_an_exit_code_is_told() -> None:
    with pytest.raises(InputError, match=r"exits with 3: its output has the reason"):
        odd("values", "exit")
    with pytest.raises(InputError, match=r"expected a training step on the GPU"):
        odd("nothing")


@pytest.mark.slow
def test_manners(tmp_path: Path) -> None:
    """A scaler, streams, autocast, checkpoints and processes work, and only the script's own files are written."""
    before = {path for path in SCRIPTS.rglob("*") if "__pycache__" not in path.parts}
    (found,) = odd("manners", str(tmp_path), ranks=2).values()
    assert found.steps == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt"]
    assert {path for path in SCRIPTS.rglob("*") if "__pycache__" not in path.parts} == before
    notes = " ".join(found.notes)
    assert "saves a checkpoint" in notes
    assert "objects that all ranks gather" in notes
    assert [each.collective for each in found.collectives].count("all_reduce") == 1


def capture_and_estimate(script: Path, *arguments: str) -> dict[str, Any]:
    """What the command prints of a script; its job and its trace are written, and the job is estimated as it says."""
    words = f"train capture {script} --topology dgx-h100 -o job.toml --trace step.json --json"
    found = run(*words.split(), "--", *arguments).json
    assert found["format"] == "coppice-train-capture-output"
    assert found["flops"] == found["forward_flops"] + found["backward_flops"]
    assert found["job_text"] == Path("job.toml").read_text()
    assert json.loads(Path("step.json").read_text())["traceEvents"]
    estimate = run("train", "estimate", "job.toml", "--json").json
    assert found["iteration_seconds"] == pytest.approx(estimate["iteration_seconds"], rel=1e-9)
    assert estimate["device"] == "H100"
    return found


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = capture_and_estimate(SCRIPTS / "ddp.py")
    assert [each["rank"] for each in found["captured_ranks"]] == [0]
    assert "all_reduce" in {each["collective"] for each in found["issued"]}


@pytest.mark.slow
def test_the_command_for_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Megatron's kind: a rank of each stage is captured."""
    monkeypatch.chdir(tmp_path)
    found = capture_and_estimate(EXAMPLES / "megatron_like.py", "--tp", "2", "--pp", "2", "--steps", "9")
    assert [each["rank"] for each in found["captured_ranks"]] == [0, 4]
    assert {each["collective"] for each in found["issued"]} == {"all_reduce", "send", "recv"}
    assert "# Not recognised: the hand-written order of the pipeline" in found["job_text"]


@pytest.mark.slow
def test_the_verb_and_its_layers(tmp_path: Path) -> None:
    found = coppice.train.capture(str(SCRIPTS / "ddp.py"), topology="dgx-h100", step=1)
    assert found.num_ranks == 8
    assert found.device == "H100"
    assert found.flops == found.captured.flops > 0
    assert found.seconds is not None
    assert found.estimate is not None
    assert found.seconds == found.estimate.seconds
    found.write(tmp_path / "layers.json")
    planned = run("train", "policy", tmp_path / "layers.json", "--policy", "ddp", "--json").json
    assert planned["iteration_seconds"] > 0
    with pytest.raises(InputError, match="expected as many ranks as the 8 GPUs"):
        coppice.train.capture(str(SCRIPTS / "ddp.py"), topology="dgx-h100", num_ranks=4)


def test_refusals() -> None:
    found = run("train", "capture", "nothing.py")
    assert found.status == 2
    assert "cannot read the script nothing.py" in found.text
    with pytest.raises(InputError, match="expected `rank` from 0 to 1, found 2"):
        capture_ranks(SCRIPTS / "ddp.py", ranks=2, rank=2)
    with pytest.raises(InputError, match="expected a device"):
        capture_ranks(SCRIPTS / "ddp.py", device="H10")


def test_what_is_no_transformer_has_no_job(printed: CapturedRank) -> None:
    job: RecognisedJob = recognise({0: printed}, 1)
    assert job.record is None
    assert job.weights == 72
    assert any("table of words" in note for note in job.notes)
