"""`coppice train estimate` and `search`: what they print, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Run

JOB = "train estimate gpt-175b --cluster dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512"


def test_where_the_time_goes(run: Run) -> None:
    shown = run(*JOB.split()).out
    assert "gpt-175b on 64 x dgx-a100" in shown
    assert "of the peak (MFU)" in shown
    found = run(*JOB.split(), "--json").json
    assert found["fits"]
    assert sum(found["seconds_by_part"].values()) == pytest.approx(found["iteration_seconds"])
    assert sum(found["memory_by_part"].values()) == pytest.approx(found["memory_bytes"])
    assert found["least_seconds"] < found["iteration_seconds"]


def test_a_job_that_does_not_fit(run: Run) -> None:
    words = "train estimate gpt-1t --cluster dgx-a100 --boxes 2 --parallel tp=8,dp=2 --global-batch 16"
    found = run(*words.split())
    assert found.code == 1
    assert "fits 80 GB, found" in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt-175b --cluster dgx-a100 --boxes 2 --parallel tp=8", "the 16 GPUs of 2 x dgx-a100, found 8"),
        ("gpt-175b --cluster dgx-a100 --parallel tp=8,xp=2", "found 'xp=2'"),
        ("gpt-175b --cluster dgx-a100 --parallel tp=eight", "found 'tp=eight'"),
        ("gpt-2 --cluster dgx-a100 --parallel tp=8", "expected a model"),
        ("gpt-175b --cluster ring --parallel tp=8", "name one (`--device A100-80G`)"),
        ("gpt-175b --cluster dgx-a100 --boxes 7 --parallel tp=8,pp=7", "divide 96 layers, found 7 x 1"),
        ("gpt-175b --cluster dgx-a100 --boxes 2 --parallel tp=8,dp=2 --global-batch 3", "found 3"),
    ],
)
def test_what_cannot_be(run: Run, words: str, message: str) -> None:
    found = run("train", "estimate", *words.split())
    assert found.code == 2
    assert message in found.err


def test_the_search(run: Run) -> None:
    words = ["train", "search", "gpt-7.5b", "--cluster", "dgx-a100", "--gpus", "16", "--global-batch", "32"]
    shown = run(*words, "--top", "3").out.splitlines()
    assert shown[0].startswith("gpt-7.5b on 16 GPUs of 2 x dgx-a100")
    assert len(shown) == 5
    assert all(len(line) <= 80 for line in shown)
    found = run(*words, "--json").json
    assert found["fitting"] + found["too_large"] == found["tried"]
    assert len(found["layouts"]) == 10
    assert "found 64: raise --boxes" in run(*words[:5], "--boxes", "2", "--gpus", "64").err


def test_a_simulated_order_and_its_trace(run: Run, tmp_path: Path) -> None:
    job = "train estimate gpt-7.5b --cluster dgx-a100 --boxes 2 --parallel tp=8,pp=2 --global-batch 16"
    words = job.split()
    found = run(*words, "--order", "zero-bubble", "--json").json
    assert found["order"] == "zero-bubble"
    assert found["simulated_seconds"] >= found["lower_bound_seconds"] * (1 - 1e-6)
    shown = run(*words, "--trace", str(tmp_path / "trace.json"))
    assert "as 1f1b" in shown.out
    assert (tmp_path / "trace.json").stat().st_size > 1000
    assert "expected an order" in run(*words, "--order", "best").err
