"""Estimates that measured steps correct: by how much, in which direction, and which files are read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.iteration import accuracy
from coppice.iteration.accuracy import Anchor, RunSetting
from coppice.iteration.layout import Layout, Recompute
from coppice.iteration.memory import TIGHT, MemoryFit, fit_of
from coppice.iteration.models import model_named
from support.commands import run

MEASURED = Layout(tensor=4, pipeline=2, data=2, micro_batch=2, global_batch=64)
LESS_AND_LESS_ALIKE = (
    Layout(tensor=4, pipeline=2, data=2, micro_batch=2, global_batch=128),
    Layout(tensor=4, pipeline=2, data=2, micro_batch=4, global_batch=64),
    Layout(tensor=2, pipeline=2, data=4, micro_batch=4, global_batch=64),
    Layout(tensor=2, pipeline=1, data=8, micro_batch=4, global_batch=64, recompute=Recompute.FULL),
)


def setting(layout: Layout, *, model: str = "gpt-7.5b", device: str = "H100") -> RunSetting:
    return RunSetting(model=model_named(model), device=device, layout=layout)


def anchor(ratio: float, layout: Layout = MEASURED) -> Anchor:
    return Anchor(setting=setting(layout), measured=3.0 * ratio, estimated=3.0)


def correction(layout: Layout, anchors: Sequence[Anchor], spread: float) -> accuracy.Correction:
    return accuracy.correction(setting(layout), anchors, spread)


@pytest.mark.parametrize("other", [{"model": "gpt-18b"}, {"device": "A100-80G"}])
def test_a_step_of_another_model_or_gpu_is_not_that_of_the_job(other: dict[str, str]) -> None:
    """A step near its estimate says nothing of another model; one that is far says that the software is another."""
    near, far = (
        accuracy.correction(setting(MEASURED, **other), [anchor(ratio)], 0.07).factor for ratio in (1.05, 2.0)
    )
    assert near == pytest.approx(1.0, abs=0.003)
    assert 1.8 < far < 2.0


def normal(distance: float, variance: float) -> float:
    return math.exp(-(distance**2) / 2 / variance) / math.sqrt(2 * math.pi * variance)


@given(ratio=st.floats(0.2, 5.0), spread=st.floats(0.02, 0.2), other=st.sampled_from(LESS_AND_LESS_ALIKE))
def test_one_step_as_by_hand(ratio: float, spread: float, other: Layout) -> None:
    """The mixture of two normal distributions, written out for one step and one other layout."""
    distance = math.log(ratio)
    alike = all(getattr(MEASURED, name) == getattr(other, name) for name in accuracy.LIKE)
    common = (accuracy.ALIKE_SHARE if alike else accuracy.MODEL_SHARE) * spread**2
    likely, moved = [], []
    for chance, width in ((1 - accuracy.FAR_CHANCE, 0.0), (accuracy.FAR_CHANCE, accuracy.FAR_WIDTH)):
        likely.append(chance * normal(distance, spread**2 + width**2))
        moved.append(distance * (common + width**2) / (spread**2 + width**2))
    expected = sum(a * b for a, b in zip(likely, moved, strict=True)) / sum(likely)
    assert correction(other, [anchor(ratio)], spread).factor == pytest.approx(math.exp(expected))


@given(ratio=st.floats(0.3, 3.0), spread=st.floats(0.03, 0.2))
def test_layouts_that_are_more_alike_move_further(ratio: float, spread: float) -> None:
    factors = [correction(each, [anchor(ratio)], spread).factor for each in (MEASURED, *LESS_AND_LESS_ALIKE)]
    moves = [abs(math.log(each)) for each in factors]
    assert moves == sorted(moves, reverse=True)
    assert moves[0] <= abs(math.log(ratio)) + 1e-12
    assert moves[0] >= 0.96 * abs(math.log(ratio))
    assert all((each > 1) == (ratio > 1) or abs(each - 1) < 1e-12 for each in factors)


@given(ratios=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4))
def test_more_steps_never_make_it_less_certain_than_none(ratios: list[float]) -> None:
    found = correction(MEASURED, [anchor(each) for each in ratios], 0.08)
    assert found.spread >= 0
    assert correction(MEASURED, [anchor(ratios[0])] * 3, 0.08).spread <= 0.08


def test_a_step_where_it_is_estimated_changes_nothing_and_narrows_the_range() -> None:
    for each in LESS_AND_LESS_ALIKE:
        found = correction(each, [anchor(1.0)], 0.08)
        assert found.factor == pytest.approx(1.0)
        assert found.spread < 0.08


JOB = """
model = {layers = 24, hidden = 2048, heads = 16, ffn = 8192, seq = 2048, vocab = 32000}
cluster = {topology = "dgx-a100", boxes = 1}
layout = {tp = 2, dp = 4, global_batch = 64, micro_batch = 2}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def estimated(job: Path, *words: str) -> dict[str, Any]:
    answer = run("train", "estimate", job, *words, "--json")
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


def test_the_step_that_was_measured_takes_what_was_measured(job: Path, tmp_path: Path) -> None:
    plain = estimated(job)
    step = tmp_path / "run.json"
    step.write_text(json.dumps({"measured_seconds": 1.1 * plain["iteration_seconds"]}))
    found = estimated(job, "--anchor", str(step))
    assert found["iteration_seconds"] == pytest.approx(1.1 * plain["iteration_seconds"], rel=0.005)
    assert found["simulated_seconds"] == plain["iteration_seconds"]
    assert found["anchors"] == [
        {
            "measured_seconds": 1.1 * plain["iteration_seconds"],
            "estimated_seconds": plain["iteration_seconds"],
        }
    ]
    narrow, wide = (
        each["expected_range"]["high_seconds"] / each["expected_range"]["low_seconds"]
        for each in (found, plain)
    )
    assert narrow < wide
    assert found["mfu"] == pytest.approx(plain["mfu"] / 1.1, rel=0.005)


def test_what_a_step_had_otherwise_replaces_keys_of_the_job(job: Path, tmp_path: Path) -> None:
    other = estimated(job, "--parallel", "tp=4,dp=2")
    step = tmp_path / "run.toml"
    step.write_text("measured_seconds = 2.5\nlayout = {tp = 4, dp = 2}\n")
    found = estimated(job, "--anchor", str(step))
    assert found["anchors"][0]["estimated_seconds"] == other["iteration_seconds"]


def test_a_trace_of_the_job_is_a_measured_step(job: Path, tmp_path: Path) -> None:
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": 9e6 * n, "dur": d, "tid": 1}
        for n, d in enumerate((2.5e6, 1.5e6, 1.7e6))
    ]
    work = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 9e6 * n, "dur": 10, "tid": 1}
        | {"args": {"correlation": n + 1}}
        for n in range(3)
    ]
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 9e6 * n + 20, "dur": 1e6, "tid": 7}
        | {"args": {"correlation": n + 1, "stream": 7}}
        for n in range(3)
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [*steps, *work, *kernels]}))
    assert estimated(job, "--anchor", str(trace))["anchors"][0]["measured_seconds"] == 1.7


def test_a_step_is_estimated_with_the_contention_of_the_job(job: Path, tmp_path: Path) -> None:
    busy = ("--policy", "ddp", "--contention", "0.5")
    plain = estimated(job, *busy)
    step = tmp_path / "run.json"
    step.write_text(json.dumps({"measured_seconds": 1.0}))
    found = estimated(job, *busy, "--anchor", str(step))
    assert found["anchors"][0]["estimated_seconds"] == plain["iteration_seconds"]
    assert plain["iteration_seconds"] > estimated(job, "--policy", "ddp")["iteration_seconds"]


def test_a_search_is_corrected_too(job: Path, tmp_path: Path) -> None:
    step = tmp_path / "run.json"
    step.write_text(json.dumps({"measured_seconds": 5.0}))
    plain, found = (
        json.loads(run("train", "search", job, *words, "--top", "3", "--json").out)["layouts"]
        for words in ((), ("--anchor", str(step)))
    )
    assert plain[0]["iteration_seconds"] == plain[0]["simulated_seconds"]
    assert all(each["iteration_seconds"] > 2 * each["simulated_seconds"] for each in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "`measured_seconds`: expected seconds of a step above 0, found none"),
        ('{"measured_seconds": -1}', "above 0, found -1"),
        ('{"measured_seconds": "fast"}', "above 0, found 'fast'"),
        ('{"measured_seconds": true}', "above 0, found True"),
        ('{"measured_seconds": 1, "tp": 4}', "`tp`: expected measured_seconds and tables of a job"),
        (
            '{"measured_seconds": 1, "layout": {"tpp": 4}}',
            "`layout.tpp`: expected a key of [layout], found an unknown one",
        ),
        ('{"measured_seconds": 1', "expected JSON or TOML in"),
        ("measured_seconds = = 1", "expected JSON or TOML in"),
        ('{"traceEvents": []}', "found"),
    ],
)
def test_files_that_are_no_measured_step(job: Path, tmp_path: Path, text: str, words: str) -> None:
    step = tmp_path / "run.json"
    step.write_text(text)
    answer = run("train", "estimate", job, "--anchor", step)
    assert answer.status == 2
    assert words in " ".join(answer.err.split())


def test_a_step_that_is_not_there(job: Path, tmp_path: Path) -> None:
    answer = run("train", "estimate", job, "--anchor", tmp_path / "none.json")
    assert answer.status == 2
    assert "cannot read the measured step" in " ".join(answer.err.split())


def test_what_takes_nearly_the_memory_is_tight(job: Path) -> None:
    least, most = TIGHT
    assert [
        fit_of(share * 80e9, 80e9) for share in (least - 0.01, least + 0.01, most - 0.01, most + 0.01)
    ] == [
        MemoryFit.YES,
        MemoryFit.TIGHT,
        MemoryFit.TIGHT,
        MemoryFit.NO,
    ]
    assert estimated(job)["fit"] == "yes"


def test_a_search_puts_what_may_not_fit_last() -> None:
    words = ("--topology", "dgx-a100", "--global-batch", "64", "--top", "400", "--json")
    found = json.loads(run("train", "search", "gpt-7.5b", *words).out)
    fits = [each["fit"] for each in found["layouts"]]
    assert {*fits} == {"yes", "tight"}
    assert fits == sorted(fits, reverse=True)
    for kind in ("yes", "tight"):
        times = [each["iteration_seconds"] for each in found["layouts"] if each["fit"] == kind]
        assert times == sorted(times)
    best = found["layouts"][0]["iteration_seconds"]
    alike = found["layouts"][: found["indistinguishable"]]
    assert all(each["iteration_seconds"] <= 1.15 * best for each in alike)
