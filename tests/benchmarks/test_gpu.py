"""The script for machines with GPUs, on one without; and what it makes of commands that answer, fail, and hang."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from support.benchmark_scripts import load_benchmark


@pytest.fixture(name="gpu")
def fixture_gpu() -> ModuleType:
    return load_benchmark("gpu")


def test_without_a_gpu_it_says_so_and_succeeds(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if gpu.device():
        pytest.skip("a GPU is there")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--write"])
    gpu.main()
    assert capsys.readouterr() == ("no GPU\n", "")
    assert not gpu.PAGE.exists()


def test_rows_of_a_bench_become_lines(gpu: ModuleType) -> None:
    row = {
        "collective": "all_reduce",
        "size_bytes": 2**20,
        "algorithm": "forest",
        "time_us": 12.34,
        "algbw_gb_per_s": 84.97,
        "wrong": 0,
        "refusal": "",
    }
    rows = [row, {**row, "refusal": "expected this,\nfound that | there"}]
    text = "".join(json.dumps(each) + "\n" for each in rows)
    trial = gpu.Trial(what="a bench", command=[sys.executable, "-c", f"print({text!r})"])
    assert list(trial.lines()) == [
        "| a bench | all_reduce | 1 | forest | 12.3 | 84.97 | 0 | |",
        "| a bench | all_reduce | 1 | forest | | | | expected this, found that / there |",
    ]


def test_last_words_of_what_fails_or_hangs(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('Error: no puts here\\nbye', file=sys.stderr); sys.exit(3)"
    trial = gpu.Trial(what="a bench", command=[sys.executable, "-c", program])
    assert list(trial.lines()) == ["| a bench | | | | | | | status 3: Error: no puts here |"]
    monkeypatch.setattr(gpu, "LIMIT_S", 0.2)
    trial = gpu.Trial(what="a bench", command=[sys.executable, "-c", "import time; time.sleep(60)"])
    assert list(trial.lines()) == ["| a bench | | | | | | | no answer in 0.2 s |"]
