"""benchmarks/exam.py: figures of a file, rows that cannot be predicted, and the measured iterations where they are."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from coppice.iteration.job.composed import simulated_job
from support.benchmark_scripts import BENCHMARKS, load_benchmark
from support.shared_data import SHARED

FOLDER = SHARED / "exam"
needs_rows = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"measured iterations not found at {FOLDER}")
ROW = {
    "id": "one",
    "set": "selene",
    "model": "GPT",
    "gpu": "A100-80G",
    "gpus": "64",
    "layers": "96",
    "hidden": "12288",
    "ffn": "49152",
    "mlp": "gelu2",
    "heads": "96",
    "kv_heads": "96",
    "seq": "2048",
    "vocab": "51200",
    "global_batch": "64",
    "micro_batch": "1",
    "tp": "8",
    "pp": "8",
    "dp": "1",
    "vp": "3",
    "cp": "1",
    "recompute": "selective",
    "seq_par": "1",
    "shard": "none",
    "dtype": "fp16",
    "schedule": "interleaved",
    "time_s": "10",
    "note": "",
}


@pytest.fixture
def exam(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which imports its neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return load_benchmark("exam")


@pytest.fixture
def exam_rows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return load_benchmark("exam_rows")


def test_a_file_is_predicted_without_fitting(exam: ModuleType, tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "id": "two", "time_s": "20"}, {**ROW, "id": "bad", "hidden": "wide"}]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows(rows)
    found = exam.predict(exam.read(path), tmp_path)
    assert found[0].predicted == found[1].predicted > 0
    assert found[0].error == pytest.approx(found[0].predicted / 10 - 1)
    assert found[2].error == -1
    assert "wide" in found[2].why
    of = exam.figures(found, 0.0)
    assert of["rows"] == 3
    assert of["refused"] == 1
    assert of["max_percent"] >= 100
    assert of["regret_percent"] == pytest.approx(
        0.0
    )  # both are predicted alike, and the first one is the faster
    assert json.loads(json.dumps(of)) == of


def test_what_is_not_published_is_left_open(exam_rows: ModuleType) -> None:
    given = list(exam_rows.layouts_of(ROW))
    assert [layout.chunks for layout in given] == [3]
    opened = list(exam_rows.layouts_of({**ROW, "vp": "", "micro_batch": ""}))
    assert {layout.micro_batch for layout in opened} == {1, 2, 4, 8}
    assert {layout.chunks for layout in opened} == {1, 2, 3, 4, 6, 12}


@needs_rows
def test_measured_iterations(exam: ModuleType) -> None:
    """The figures that the page claims, with room for constants that are fitted anew."""
    most = {"vtrain_multi": 5.5, "selene": 2.5, "megatron_sc21": 6.0, "nanotron_h100": 9.0}
    for name, percent in most.items():
        rows = [row for row in exam.read(FOLDER / f"{name}.csv") if row.get("shard") != "zero3"]
        assert exam.figures(exam.predict(rows, FOLDER), 0.0)["mape_percent"] < percent
    rows = exam.read(FOLDER / "vtrain_multi.csv")
    assert exam.figures(exam.predict(exam.stable(rows), FOLDER), 0.0)["mape_percent"] < 3
    sharded = [row for row in exam.read(FOLDER / "megatron_sc21.csv") if row["shard"] == "zero3"]
    assert exam.figures(exam.predict(sharded, FOLDER), 0.0)["mape_percent"] < 10
    pairs = exam.predict(exam.read(FOLDER / "overlap_pairs.csv"), FOLDER)
    assert all((each.measured > 1) == (each.predicted > 1) for each in pairs)


@pytest.mark.slow
@needs_rows
def test_published_runs(exam: ModuleType) -> None:
    """The figures that the page claims, with room for constants that are fitted anew."""
    found = exam.figures_of(list(exam.runs_of(exam.read_rows(FOLDER / exam.PUBLISHED), FOLDER)))
    assert found["refused"] == 0
    assert found["exact"]["mape_percent"] < 6
    assert abs(found["exact"]["bias_percent"]) < 2
    assert found["exact"]["within_20_percent"] > 95
    memory = found["memory"]
    assert memory["out_of_memory_said_to_fit"] < 0.05 * memory["out_of_memory"]
    assert memory["ran_said_not_to_fit"] < 0.05 * memory["ran"]
    assert found["groups"]["median_regret_percent"] == 0
    assert found["groups"]["mean_regret_percent"] < 4
    assert found["groups"]["picked_out_of_memory"] == 0


def test_variants_of_a_run_are_one(exam: ModuleType, tmp_path: Path) -> None:
    """The fastest variant that fits is the prediction; a run out of memory is judged by its memory alone."""
    job = """
    model = {layers = 24, hidden = 2048, heads = 16, ffn = 8192, seq = 2048, vocab = 32000}
    cluster = {topology = "dgx-a100", boxes = 1}
    layout = {tp = %d, global_batch = 64, micro_batch = %d}
    """
    about = {"source": "Somebody", "group": "one", "exact": True, "features": "", "measured_s": 1.0}
    rows = [
        {
            **about,
            "id": f"tp{tensor}",
            "note": "all legal ones, best that fits counts",
            "job": job % (tensor, 2),
        }
        for tensor in (1, 2, 4)
    ]
    rows.append(
        {**about, "id": "large", "group": "two", "note": "", "measured_s": "OOM", "job": job % (1, 64)}
    )
    rows[-1]["job"] = (
        rows[-1]["job"].replace("boxes = 1", "boxes = 1").replace("tp = 1", "tp = 1, dp = 1, pp = 8")
    )
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = list(exam.runs_of(exam.read_rows(path), tmp_path))
    assert [len(run.rows) for run in runs] == [3, 1]
    alone = [simulated_job(each).seconds for each in runs[0].jobs]
    assert runs[0].predicted() == min(alone)
    found = exam.figures_of(runs)
    assert found["exact"]["rows"] == 1
    assert (found["memory"]["out_of_memory"], found["memory"]["ran"]) == (1, 1)


@needs_rows
def test_profiled_iterations_are_met_everywhere(exam: ModuleType) -> None:
    of = exam.figures(exam.predict(exam.read(FOLDER / "vtrain_single.csv"), FOLDER), 0.0)
    assert of["max_percent"] < 1


@needs_rows
def test_numbers_of_ranks_that_were_not_fitted(exam: ModuleType) -> None:
    rows = [row for row in exam.read(FOLDER / "nccl_allreduce.csv") if row["ranks"] in {"3", "5", "6", "7"}]
    of = exam.figures(exam.predict(rows, FOLDER), 0.0)
    assert of["refused"] == 0
    assert of["mape_percent"] < 3


def test_rings_of_nvlinks() -> None:
    """Ranks of measured V100 all-reduces in the order of their rates: 22, 37, 45, 46, 85, 87 and 135 GB/s."""
    rate = load_benchmark("exam_boxes").ring_rate
    rates = [rate("V100", ranks).bytes_per_second / 1e9 for ranks in (2, 5, 3, 6, 4, 7, 8)]
    assert rates == sorted(rates) == pytest.approx([25, 40, 50, 50, 100, 100, 150])
    assert [rate("V100", ranks).rings for ranks in (2, 5, 3, 6, 4, 7, 8)] == [1, 0, 2, 2, 4, 4, 6]
    assert rate("A100", 5) == (pytest.approx(300e9), 0)


def test_only_layouts_that_fit_are_possible(exam_rows: ModuleType) -> None:
    opened = {**ROW, "layers": "128", "hidden": "25600", "ffn": "102400", "heads": "160", "kv_heads": "160"}
    opened |= {
        "pp": "64",
        "vp": "",
        "micro_batch": "",
        "global_batch": "512",
        "recompute": "full",
        "seq_par": "0",
    }
    every = list(exam_rows.layouts_of(opened))
    fitting = exam_rows.run_of(opened).fitting
    assert 0 < len(fitting) < len(every)


BARRIER = ("serial", "wfbp", "ddp", "jia", "mg-wfbp", "poseidon", "gradientflow")


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The common set; scripts import their neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return load_benchmark("policies_grid")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return load_benchmark("policies_simulated")


@pytest.mark.slow
def test_quick_run_prints_every_table() -> None:
    run = subprocess.run(
        [sys.executable, BENCHMARKS / "policies_simulated.py", "--quick"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for title in ("vgg-19 on V100", "By the ratio", "Beside the exact optimum"):
        assert title in run.stdout


def test_a_message_costs_what_the_page_says(grid: ModuleType) -> None:
    workload = grid.workload_of("resnet-50", "V100", 64, 8, 100)
    assert math.isclose(workload.message(7e8), 6 * 10e-6 + 2 * 7 / 8 * 7e8 / 12.5e9)


def test_only_fully_connected_layers_have_factors(grid: ModuleType) -> None:
    workload = grid.workload_of("vgg-19", "V100", 64, 8, 10)
    assert workload.matrices[:16] == (None,) * 16
    assert workload.matrices[16:] == ((25088, 4096), (4096, 4096), (4096, 1000))


def test_a_case_has_no_policy_below_the_bound_but_those_that_send_less(grid: ModuleType) -> None:
    names = ("serial", "ddp", "priority", "dear", "pace")
    case = grid.measure("vgg-19", 25, 8, names)
    assert list(case.plain) == list(names)
    for seconds in (*case.plain.values(), *case.tuned.values()):
        assert seconds >= case.bound * (1 - 1e-9)
    assert all(case.tuned[name] <= case.plain[name] * (1 + 1e-9) for name in names)
    assert case.plain["serial"] > case.plain["ddp"]


def test_gaps_of_policies_with_a_barrier_are_never_negative(grid: ModuleType) -> None:
    gaps = {gap.name: gap for gap in grid.optimum_gaps(3, (*BARRIER, "priority", "dear"))}
    assert {name for name, gap in gaps.items() if gap.barrier} == {
        f"{name}{star}" for name in BARRIER for star in ("", "*")
    }
    for gap in gaps.values():
        assert not gap.barrier or min(gap.whole) > -1e-6, gap.name
    assert min(gaps["priority"].whole) > -1e-6


def test_sentences_say_where_an_idea_gains_and_loses(grid: ModuleType, script: ModuleType) -> None:
    plain = dict.fromkeys(grid.GRADIENTS, 1.0)
    one = {"model": "vgg-19", "gb_per_s": 10, "ratio": 2.0, "largest": 0.7, "bound": 0.5}
    gains = grid.Case(**one, workers=8, plain={**plain, "serial": 1.5}, tuned=plain)
    loses = grid.Case(**one, workers=64, plain={**plain, "serial": 0.8}, tuned=plain)
    first, *others = script.regimes([gains, loses])
    assert "more than 1% in 1 of 2 settings, with 8 workers at ratios of 2; most 50%" in first
    assert "loses more than 1% in 1, most 20% at vgg-19, 10 Gb/s, 64 workers" in first
    assert all("nowhere more than 1%" in each for each in others)
    assert script.best_of(loses) == ("serial", 0.8)
