"""What NCCL 2.30 itself decided on 74 machine shapes: patterns, rings, trees, picks, channels and times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.benchmark_scripts import BENCHMARKS, load_benchmark
from support.shared_data import SHARED

FOLDER = SHARED / "oracles" / "nccl"
ORACLE = FOLDER / "nccl_2.30.7_open.jsonl"

pytestmark = pytest.mark.skipif(
    not ORACLE.is_file(),
    reason=f"NCCL's decisions not found at {ORACLE}: set COPPICE_SHARED to their directory",
)


@pytest.fixture(autouse=True)
def scripts_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ORACLE.read_text().splitlines()] if ORACLE.is_file() else []


def check(row: dict[str, Any]) -> None:
    script = load_benchmark("nccl_decisions")
    shape = script.compared(row, FOLDER)
    assert shape.differences == []
    assert shape.patterns
    assert shape.total_channels
    assert shape.rings
    assert shape.trees
    assert shape.score.cells == len(row["picks"])


@pytest.mark.parametrize("row", rows()[::6], ids=lambda row: row["label"])
def test_some_shapes(row: dict[str, Any]) -> None:
    check(row | {"picks": row["picks"][::4]})


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["label"])
def test_all_shapes(row: dict[str, Any]) -> None:
    check(row)


def test_a_difference_is_noticed() -> None:
    row = rows()[1]
    collective, size, algorithm, protocol, channels, threads, time_us = row["picks"][0]
    wrong = [
        [
            collective,
            size,
            "RING" if algorithm == "TREE" else "TREE",
            protocol,
            channels + 1,
            threads,
            2 * time_us,
        ]
    ]
    shape = load_benchmark("nccl_decisions").compared(row | {"picks": wrong, "channels": 99}, FOLDER)
    assert shape.score.percent() == {
        "cells": 1,
        "algorithm_protocol_percent": 0.0,
        "channels_percent": 0.0,
        "threads_percent": 100.0,
        "time_within_2_percent": 0.0,
    }
    assert not shape.total_channels
