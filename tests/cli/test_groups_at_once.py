"""`coppice bound --groups` and `coppice train estimate --collectives`: what they print and refuse."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from cli.conftest import Run

CLUSTER = ("dgx-a100", "--boxes", "4")
ESTIMATE = (
    "train",
    "estimate",
    "gpt-7.5b",
    "--topology",
    *CLUSTER,
    "--parallel",
    "tp=8,dp=4",
    "--global-batch",
    "16",
)
JOB = """
[model]
name = "gpt-7.5b"
[cluster]
topology = "dgx-a100"
boxes = 4
[layout]
tp = 8
pp = 2
global_batch = 32
[run]
collectives = "ring"
"""


def test_groups_at_once_are_bounded(run: Run) -> None:
    found = run("bound", *CLUSTER, "--groups", "tp=8,dp=4", "--json").json
    # 1 GB in each of 8 groups over 4 boxes, through a NIC of 25 GB/s for each GPU.
    assert Fraction(found["least_seconds_exact"]) == Fraction(2 * 3, 4) / 25
    assert [each["name"] for each in found["demands"]] == ["tp", "dp"]
    assert found["bytes"].keys() == {"dp"}
    words = run("bound", *CLUSTER, "--groups", "tp=8,dp=4").out
    assert "least time  60 ms" in words
    assert "all_reduce of 1 GB in each of" in words
    assert words.count("all_reduce of up to 1 GB in") == 2
    assert "4 links of 25 GB/s from NIC to GPU in the box" in words
    gathered = run("bound", *CLUSTER, "--groups", "tp=8,dp=4", "-c", "all_gather", "--json").json
    assert Fraction(gathered["least_seconds_exact"]) == Fraction(3, 4) / 25


def test_iterations_are_bounded(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    of_file = run("bound", *CLUSTER, "--job", str(path), "--json").json
    options = ("--groups", "tp=8,pp=2,dp=2", "--job", "gpt-7.5b", "--global-batch", "32")
    assert run("bound", *CLUSTER, *options, "--json").json == of_file
    assert {each["name"] for each in of_file["demands"]} == {"tp", "pp forward", "pp backward", "dp"}
    whole = run("train", "estimate", str(path), "--json").json
    assert whole["collectives"] == "ring"
    assert of_file["least_seconds"] < whole["iteration_seconds"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--groups", "tp=8,dp=2"), "product is the 32 GPUs"),
        (("--groups", "tp=8,xp=2"), "expected `--groups` such as"),
        (("--groups", "tp=8,dp=4", "--root", "1"), "leave these out"),
        (("--groups", "tp=8,dp=4", "-c", "broadcast"), "one of all_reduce"),
        (("--groups", "tp=8,pp=3", "--job", "gpt-7.5b"), "expected"),
        (("--global-batch", "8"), "with `--job`"),
        (("--job", "gpt-7.5x"), "gpt-7.5b"),
    ],
)
def test_what_is_no_job_is_refused(run: Run, words: tuple[str, ...], message: str) -> None:
    found = run("bound", *CLUSTER, *words)
    assert found.code == 2
    assert message in found.err


def test_collectives_change_what_sums_take(run: Run) -> None:
    found = {
        name: run(*ESTIMATE, "--collectives", name, "--json").json
        for name in ("calibrated", "nccl", "forest")
    }
    assert found["calibrated"] == run(*ESTIMATE, "--json").json
    parts = {name: each["seconds_by_part"] for name, each in found.items()}
    assert len({each["compute"] for each in parts.values()}) == 1
    assert len({each["gradients"] for each in parts.values()}) == 3
    bound = run(
        "bound", *CLUSTER, "--groups", "tp=8,dp=4", "--job", "gpt-7.5b", "--global-batch", "16", "--json"
    )
    for name in ("nccl", "forest"):
        assert bound.json["least_seconds"] <= parts[name]["tensor"] + parts[name]["gradients"]
    assert "simulated with model nccl-2.30" in run(*ESTIMATE, "--collectives", "nccl").out


def test_collectives_that_do_not_exist_or_suit_are_refused(run: Run) -> None:
    found = run(*ESTIMATE, "--collectives", "forets")
    assert (found.code, "did you mean 'forest'" in found.err) == (2, True)
    changed = run(*ESTIMATE, "--collectives", "nccl", "--what-if", "nic=x2")
    assert (changed.code, "leave --collectives out" in changed.err) == (2, True)


def test_collectives_take_a_model_of_time(run: Run) -> None:
    found = {
        name: run(*ESTIMATE, "--collectives", "ring", "--model", name, "--json").json
        for name in ("nccl-2.30", "alpha-beta")
    }
    assert found["alpha-beta"]["iteration_seconds"] < found["nccl-2.30"]["iteration_seconds"]
    assert found["alpha-beta"]["model"] == "alpha-beta"
    assert run(*ESTIMATE, "--collectives", "ring", "--json").json == found["nccl-2.30"]
    failed = run(*ESTIMATE, "--model", "alpha-beta")
    assert failed.code == 2
    assert "expected simulated collectives beside a model of time, found calibrated ones" in failed.err
