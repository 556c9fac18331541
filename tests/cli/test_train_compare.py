"""`coppice train` on models of its own: compare, tune, advise, policy and report, and what they refuse."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run
from support.paths import ROOT

LAYERS = str(ROOT / "examples" / "iteration" / "three-layers.json")
JOB = """
model = {layers = 8, hidden = 1024, heads = 16, ffn = 4096, seq = 1024, vocab = 32000}
cluster = {topology = "dgx-a100", boxes = 2}
layout = {tp = 4, pp = 2, global_batch = 16}
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def test_a_table_of_a_job(run: Run, job: str) -> None:
    words = ("train", "compare", job, "--policy", "dear,dear+breadth-first,trirace", "-j", "1")
    found = run(*words, "--json").json
    assert found.keys() == {
        *(
            "format",
            "version",
            "job",
            "compute_seconds",
            "lower_bound_seconds",
            "baseline",
            "rows",
            "refused",
        ),
        *("compute_seconds_by_family", "lower_bound_seconds_by_family"),
    }
    for name in ("compute_seconds", "lower_bound_seconds"):
        assert found[name] == found[f"{name}_by_family"]
    assert [each["policy"] for each in found["rows"]] == ["dear+breadth-first", "dear", "none"]
    assert found["rows"][0]["gain"] > found["rows"][1]["gain"] > found["rows"][2]["gain"] == 0
    assert found["refused"][0]["policy"] == "trirace"
    text = run(*words).out
    assert text.splitlines()[1].endswith("the computation of the busiest device alone")
    assert "  trirace: expected policies whose gradients are of this iteration" in text


def test_rows_of_layers_are_what_the_policy_prints(run: Run) -> None:
    rows = run("train", "compare", LAYERS, "--policy", "all", "-j", "1", "--json").json["rows"]
    assert len(rows) > 10
    for each in rows[:5]:
        own = run("train", "policy", LAYERS, "--policy", each["policy"], "--json").json
        assert each["iteration_seconds"] == own["iteration_seconds"]
        assert each["lower_bound_seconds"] == own["lower_bound_seconds"]


def test_processes_change_nothing(run: Run) -> None:
    words = ("train", "compare", LAYERS, "--policy", "ddp,pace,dear", "--json")
    assert run(*words, "-j", "1").json == run(*words, "-j", "2").json


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_a_picture(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "policies.svg"
    run("train", "compare", LAYERS, "--policy", "ddp,pace,dear", "-j", "1", "--plot", str(picture))
    assert picture.read_text().count("<path") > 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", LAYERS, "--policy", "dpd"), "such as ddp or dear+breadth-first, found 'dpd'"),
        (
            ("compare", LAYERS, "--topology", "dgx-a100"),
            "no options of jobs with a workload of layers, found --topology",
        ),
        (("compare", LAYERS, "--plot", "a.txt"), "expected a picture called"),
        (
            ("tune", LAYERS, "--policy", "decomposition"),
            "a policy of gradients or of pipelines on a workload",
        ),
        (
            ("compare", "{job}", "--policy", "ddp+dear"),
            "ddp and dear, which both decide gradients: leave one out",
        ),
        (
            ("estimate", "{job}", "--policy", "ddp", "--overlap", "dear"),
            "found ddp and dear, which both decide gradients: leave one out",
        ),
        (("estimate", "{job}", "--policy", "ddp", "--set", "nothing=1"), "has no parameter 'nothing'"),
        (("estimate", "{job}", "--policy", "ddp", "--set", "bucket=1Q"), "policy ddp can use"),
    ],
)
def test_what_is_refused(run: Run, job: str, words: tuple[str, ...], message: str) -> None:
    done = run("train", *(word.format(job=job) for word in words))
    if "ddp+dear" in words:  # a row that does not suit
        assert message in done.out
        return
    assert done.code == 2
    assert message in done.err


def test_an_estimate_under_a_policy(run: Run, job: str, tmp_path: Path) -> None:
    words = ("train", "estimate", job, "--policy", "bytescheduler+zero-bubble", "--json")
    sizes = ("--set", "partition=4M", "--set", "credit=16M")
    found = run(*words, *sizes).json
    assert found["policy"] == "bytescheduler+zero-bubble"
    long = ("--set", f"partition_bytes={4 * 2**20}", "--set", f"bytescheduler.credit_bytes={16 * 2**20}")
    assert run(*words, *long).json == found
    by_file = tmp_path / "with.toml"
    run_table = (
        'run = {policy = "bytescheduler+zero-bubble", settings = {partition = "4M", credit = "16M"}}\n'
    )
    by_file.write_text(JOB + run_table)
    assert run("train", "estimate", str(by_file), "--json").json == found
    preset = run(*words, *sizes, "--set", "port_gb_per_s=10").json
    assert preset["iteration_seconds"] != found["iteration_seconds"]


def test_a_plan_of_the_whole_iteration(run: Run, job: str) -> None:
    found = run("train", "estimate", job, "--policy", "lina", "--json").json
    assert found["iteration_seconds"] >= found["lower_bound_seconds"] > 0
    assert "as lina plans it" in run("train", "estimate", job, "--policy", "lina").out


def test_a_policy_is_tuned(run: Run) -> None:
    found: dict[str, Any] = run("train", "tune", LAYERS, "--policy", "bytescheduler", "--json").json
    assert found["iteration_seconds"] <= found["default_seconds"]
    assert found["within_1_percent"].keys() == {"partition_bytes", "credit_bytes"}
    text = run("train", "tune", LAYERS, "--policy", "bytescheduler").out
    assert "with the defaults: tuning gains" in text
    assert "within 1%  partition_bytes from" in text


def test_advice(run: Run) -> None:
    found = run("train", "advise", LAYERS, "-j", "1", "--json").json
    assert found["possible_gain_seconds"] == found["baseline_seconds"] - found["lower_bound_seconds"]
    assert 0 < found["worth_its_trouble"]["share_of_possible_gain"] <= 1
    assert found["best_by_flags"]["stock"]
    assert "is worth its trouble" in run("train", "advise", LAYERS, "-j", "1").out


GOOD: dict[str, Any] = {
    "forward": [1, 1, 1],
    "backward": [2, 2, 2],
    "bytes": [2, 2, 8],
    "bytes_per_second": 1,
}


def written(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps({**GOOD, **changes}))
    return str(path)


def test_an_iteration_and_its_bound(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path / "w.json", message_seconds=0, workers=4)
    found = run("train", "policy", file, "--policy", "wfbp", "--json").json
    assert found["iteration_seconds"] == 17
    assert found["lower_bound_seconds"] == 15
    shown = run(
        "train", "policy", file, "--policy", "ddp", "--set", "bucket_bytes=4", "--set", "first_bytes=4"
    ).out
    assert "17 s" in shown
    assert "15 s: the iteration takes 13.333% more" in shown


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"forward": [1]}, "1 in `forward`, 3 in `backward`"),
        ({"bytes": [1, 2, -3]}, "found -3.0 at $.bytes[2]"),
        ({"bytes": "all"}, "$.bytes"),
        ({"speed": 3}, "speed"),
    ],
)
def test_workloads_that_cannot_be(run: Run, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    found = run("train", "policy", written(tmp_path / "w.json", **changes))
    assert found.code == 2
    assert words in found.err


def test_what_cannot_be_asked(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path / "w.json")
    assert "expected a policy" in run("train", "policy", file, "--policy", "best").err
    assert "found 'caps'" in run("train", "policy", file, "--policy", "ddp", "--set", "caps=1").err
    assert run("train", "policy", str(tmp_path / "none.json")).code == 2


REPORT_JOB = (
    *("gpt-7.5b", "--topology", "dgx-a100", "--boxes", "2", "--parallel", "tp=4,pp=4", "--global-batch"),
    "16",
)
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
    shown = run("train", "report", *REPORT_JOB, "-o", str(page), "--trace", str(trace)).out
    assert shown.startswith(f"{page}: ")
    text = page.read_text()
    assert "gpt-7.5b on 2 x dgx-a100" in text
    assert {each["pid"] for each in json.loads(trace.read_text())["traceEvents"]} == {1, 2, 3, 4}
    file = tmp_path / "job.toml"
    file.write_text(FILE)
    found = run("train", "report", str(file), "-o", str(again), "--json").json
    estimated = run("train", "estimate", *REPORT_JOB, "--json").json
    assert found["iteration_seconds"] == estimated["iteration_seconds"]
    assert found["bytes"] == len(again.read_bytes())
    tail = text.index("Where the time goes")
    assert again.read_text()[again.read_text().index("Where the time goes") :] == text[tail:]


def test_reports_that_are_refused(run: Run, tmp_path: Path) -> None:
    assert "found 'page.pdf'" in run("train", "report", *REPORT_JOB, "-o", str(tmp_path / "page.pdf")).err
    assert "expected" in run("train", "report", "gpt-9b", "--topology", "dgx-a100").err


ESTIMATED_JOB = (
    "train estimate gpt-175b --topology dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512"
)


def test_where_the_time_goes(run: Run) -> None:
    shown = run(*ESTIMATED_JOB.split()).out
    assert "gpt-175b on 64 x dgx-a100" in shown
    assert "of the peak (MFU)" in shown
    found = run(*ESTIMATED_JOB.split(), "--json").json
    assert found["fits"]
    assert sum(found["seconds_by_part"].values()) == pytest.approx(found["iteration_seconds"])
    assert sum(found["memory_by_part"].values()) == pytest.approx(found["memory_bytes"])
    assert found["least_seconds"] < found["iteration_seconds"]


def test_a_job_that_does_not_fit(run: Run) -> None:
    words = "train estimate gpt-1t --topology dgx-a100 --boxes 2 --parallel tp=8,dp=2 --global-batch 16"
    found = run(*words.split())
    assert found.code == 1
    assert "fits 80 GB, found" in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt-175b --topology dgx-a100 --boxes 2 --parallel tp=8", "the 16 GPUs of 2 x dgx-a100, found 8"),
        ("gpt-175b --topology dgx-a100 --parallel tp=8,xp=2", "found 'xp=2'"),
        ("gpt-175b --topology dgx-a100 --parallel tp=eight", "found 'tp=eight'"),
        ("gpt-2 --topology dgx-a100 --parallel tp=8", "expected a model"),
        ("gpt-175b --topology ring --parallel tp=8", "name one (`--device A100-80G`)"),
        (
            "gpt-7.5b --topology dgx-a100 --boxes 37 --parallel tp=8,pp=37",
            "as many stages as the 36 layers, found 37 x 1",
        ),
        ("gpt-175b --topology dgx-a100 --boxes 2 --parallel tp=8,dp=2 --global-batch 3", "found 3"),
    ],
)
def test_what_cannot_be(run: Run, words: str, message: str) -> None:
    found = run("train", "estimate", *words.split())
    assert found.code == 2
    assert message in found.err


def test_the_search(run: Run) -> None:
    words = [
        "train",
        "search",
        "gpt-7.5b",
        "--topology",
        "dgx-a100",
        "--num-ranks",
        "16",
        "--global-batch",
        "32",
    ]
    shown = run(*words, "--top", "3").out.splitlines()
    assert shown[0].startswith("gpt-7.5b on 16 GPUs of 2 x dgx-a100")
    assert all(line.endswith("%") for line in shown[2:5])
    assert shown[5].startswith("The fastest ")
    assert len(shown) == 6
    assert all(len(line) <= 80 for line in shown)
    found = run(*words, "--json").json
    assert found["fitting"] + found["too_large"] == found["tried"]
    assert len(found["layouts"]) == 10
    assert "found 64: raise `--boxes`" in run(*words[:5], "--boxes", "2", "--num-ranks", "64").err


def test_a_simulated_order_and_its_trace(run: Run, tmp_path: Path) -> None:
    job = "train estimate gpt-7.5b --topology dgx-a100 --boxes 2 --parallel tp=8,pp=2 --global-batch 16"
    words = job.split()
    found = run(*words, "--order", "zero-bubble", "--json").json
    assert found["order"] == "zero-bubble"
    assert found["simulated_seconds"] >= found["lower_bound_seconds"] * (1 - 1e-6)
    shown = run(*words, "--trace", str(tmp_path / "trace.json"))
    assert "as 1f1b" in shown.out
    assert (tmp_path / "trace.json").stat().st_size > 1000
    assert "expected policies such as" in run(*words, "--order", "best").err
