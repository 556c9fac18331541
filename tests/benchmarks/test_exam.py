"""benchmarks/exam.py: figures of a file, rows that cannot be predicted, and the measured iterations where they are."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import ModuleType

import pytest

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


def test_what_is_not_published_is_left_open(exam: ModuleType) -> None:
    given = list(exam.layouts_of(ROW))
    assert [layout.chunks for layout in given] == [3]
    opened = list(exam.layouts_of({**ROW, "vp": "", "micro_batch": ""}))
    assert {layout.micro_batch for layout in opened} == {1, 2, 4, 8}
    assert {layout.chunks for layout in opened} == {1, 2, 3, 4, 6, 12}


@needs_rows
def test_measured_iterations(exam: ModuleType) -> None:
    """The figures that the page claims, with room for constants that are fitted anew."""
    most = {
        "vtrain_multi": 6.0,
        "selene": 3.5,
        "megatron_sc21": 8.0,
        "nanotron_h100": 12.0,
        "vtrain_single": 0.3,
    }
    for name, percent in most.items():
        rows = [row for row in exam.read(FOLDER / f"{name}.csv") if row.get("shard") != "zero3"]
        assert exam.figures(exam.predict(rows, FOLDER), 0.0)["mape_percent"] < percent
    pairs = exam.predict(exam.read(FOLDER / "overlap_pairs.csv"), FOLDER)
    assert all((each.measured > 1) == (each.predicted > 1) for each in pairs)
