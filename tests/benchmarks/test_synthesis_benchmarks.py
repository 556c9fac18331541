"""The scripts that measure methods of synthesis: their networks, their tables, and the driver of the public program."""

from __future__ import annotations

import argparse
import json
from types import ModuleType

import pytest

from coppice.bounds import Problem, bound
from coppice.planners.synthesis.method import METHODS
from support.benchmark_scripts import BENCHMARKS, load_benchmark


@pytest.fixture(name="tacos")
def fixture_tacos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load_benchmark("tacos")


@pytest.fixture(name="synthesis")
def fixture_synthesis(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load_benchmark("synthesis")


def test_published_times_are_in_the_table(tacos: ModuleType) -> None:
    options = argparse.Namespace(only="torus 3x3x3", attempts=5, reference=None)
    (row,) = tacos.published(options).rows
    assert row[:4] == ("torus 3x3x3", "27", "1", "3706.20 us")
    assert abs(float(row[5].rstrip("%"))) <= 1


def test_every_grid_names_what_the_public_program_calls_it(tacos: ModuleType) -> None:
    for grid in tacos.GRIDS:
        header, name, arguments = grid.source
        assert header.replace("_", "") == name.lower().replace("_", "")
        # Sizes count the last dimension first, as the constructors do.
        assert arguments.split(", ")[: len(grid.dims)] == [str(size) for size in grid.dims[::-1]]


def test_the_common_set(synthesis: ModuleType) -> None:
    found = {each.name: each.topology for each in synthesis.networks()}
    assert len(found) == 8
    # The bound of two NDv2 boxes that TE-CCL's schedules are measured by.
    assert bound(Problem(found["ndv2 x 2"], "all_gather")).algbw_gb_per_s == 25


def test_rows_are_kept_and_complete(synthesis: ModuleType) -> None:
    rows = json.loads(synthesis.ROWS.read_text())
    for network in synthesis.networks():
        for collective in synthesis.COLLECTIVES:
            own = rows[network.name][collective.value]
            assert {"tacos", "syccl", synthesis.PLANNED} <= set(own)
            table = synthesis.table_of(network, collective, own)
            timed = [name for name in METHODS if "times_us" in own.get(name, {})]
            assert [row[0] for row in table.rows] == [synthesis.PLANNED, *timed]
            assert all(own[name]["gap"] >= 0 for name in timed)
            assert any(row[-1] != "-" for row in table.rows)
