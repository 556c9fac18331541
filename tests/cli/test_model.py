"""`coppice model`: what it lists and shows, and that a fit finds the model that made the times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.conftest import Run
from coppice.collectives import Collective
from coppice.fitting.time_model import bodies_of, predicted_us
from coppice.simulation import ALPHA_BETA, DEFAULT_MODEL, Model, model_of, named_models
from coppice.topology import preset

TRUE = replace(ALPHA_BETA, overhead_us=6.0, efficiency=0.7)
SIZES = [2**10, 2**16, 2**20, 2**24]


def test_models_are_listed_and_shown(run: Run) -> None:
    listed = run("model", "list")
    assert [line.split()[0] for line in listed.out.splitlines()] == list(named_models())
    shown = run("model", "show", "nccl-2.30").out
    assert shown.splitlines()[0] == DEFAULT_MODEL.text
    assert "from: workers" in shown
    assert run("model", "show", "alpha-beta", "--json").json["overhead_us"] == 1.0
    assert run("model", "show", "fast").code == 2


def predicted(algorithm: str, size: int, model: Model) -> float:
    """What a model says of an all-gather among four ranks on a switch."""
    bodies = bodies_of(preset("star", gpus=4), Collective.ALL_GATHER, [algorithm])
    return predicted_us(bodies, algorithm, size, model)


def bench_lines() -> str:
    """What `coppice bench --json` would print on a machine that is as the model says."""
    rows = [
        {
            "collective": "all_gather",
            "algorithm": name,
            "size_bytes": size,
            "time_us": predicted(name, size, TRUE),
        }
        for name in ("ring", "bruck")
        for size in SIZES
    ]
    rows.append({"collective": "all_gather", "algorithm": "native", "size_bytes": 64, "time_us": 1e6})
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_a_fit_finds_the_model_that_made_the_times(run: Run, tmp_path: Path) -> None:
    times, made = tmp_path / "bench.json", tmp_path / "mine.json"
    times.write_text(bench_lines())
    words = ("model", "fit", times, "star", "--set", "gpus=4", "-c", "all_gather", "--model", "alpha-beta")
    done = run(*words, "--name", "mine", "-o", made)
    assert done.code == 0, done.err
    assert "fitted to   8 times of ring, bruck" in done.out
    found = model_of(made)
    assert found.name == "mine"
    for size in SIZES:
        assert predicted("ring", size, found) == pytest.approx(predicted("ring", size, TRUE), rel=0.1)
    assert run("model", "show", made, "--json").json["name"] == "mine"
    record = run(*words, "--json").json
    assert record["worst_error"] < 0.1
    assert len(record["rows"]) == 8


def test_pieces_that_ran_are_simulated(run: Run, tmp_path: Path) -> None:
    """Times of recursive doubling in 8 pieces fit a model that makes every piece a message, and not otherwise."""
    bodies = bodies_of(preset("star", gpus=4), Collective.ALL_REDUCE, ["recursive-doubling"])
    told = tmp_path / "bench.json"
    lines = []
    for size in SIZES[1:]:
        time_us = predicted_us(bodies, "recursive-doubling", size, TRUE, 8)
        row = {"collective": "all_reduce", "algorithm": "recursive-doubling", "size_bytes": size}
        lines.append(json.dumps({**row, "time_us": time_us, "pieces": 8}))
    told.write_text("\n".join(lines))
    done = run(
        "model", "fit", told, "star", "--set", "gpus=4", "-c", "all_reduce", "--model", "alpha-beta", "--json"
    )
    assert done.code == 0, done.err
    assert done.json["worst_error"] < 0.05
    assert done.json["model"]["efficiency"] == pytest.approx(TRUE.efficiency, rel=0.1)


def test_the_table_of_nccl_tests_is_read(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "all_gather_perf.txt"
    table.write_text(
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "     1048576         65536     float    none      -1    30.00   34.95   26.21      0  31.0  33.8  25.4  0\n"
        "    16777216       1048576     float    none      -1    95.00  176.60  132.45      0  96.0  174.8  131.1  0\n"
    )
    done = run("model", "fit", table, "dgx-a100", "--ranks", "0-3", "-c", "all_gather", "--json")
    assert done.code == 0, done.err
    assert [row["algorithm"] for row in done.json["rows"]] == ["library", "library"]


def test_a_table_of_something_else_is_refused(run: Run, tmp_path: Path) -> None:
    """Another collective, another number of ranks: no model is fitted to it; what is left out is said."""
    table = tmp_path / "table.txt"
    rank = "#  Rank {0} Group  0 Pid  1 on n1 device {0} [0x0f] NVIDIA A100\n"
    rows = (
        "     1048576        262144     float     sum      -1    30.00   34.95   52.43      0  31.00  33.83  50.74  0\n"
        "    16777216       4194304     float     sum      -1    95.00  176.60  264.90      0  96.00 174.76 262.14  0\n"
    )
    head = "# Collective test starting: all_reduce_perf\n"
    words = ("model", "fit", table, "dgx-a100", "--ranks", "0-3", "--json", "-c")
    table.write_text(head + "".join(rank.format(each) for each in range(8)) + rows)
    done = run(*words, "all_reduce")
    assert (done.code, "expected times of 4 ranks" in done.err, "found those of 8" in done.err) == (
        2,
        True,
        True,
    )
    table.write_text(head + "".join(rank.format(each) for each in range(4)) + rows)
    done = run(*words, "all_gather")
    assert done.code == 2
    assert "2 measurements" in done.err or "4 measurements" in done.err
    assert "expected measured times of all_gather" in done.err
    assert run(*words, "all_reduce").code == 0


@pytest.mark.parametrize(
    "text", ["", '{"collective": "reduce", "algorithm": "ring", "size_bytes": 8, "time_us": 1}\n']
)
def test_nothing_to_fit_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    done = run("model", "fit", path, "star", "-c", "all_gather")
    assert done.code == 2
    assert "expected measured times of all_gather" in done.err
