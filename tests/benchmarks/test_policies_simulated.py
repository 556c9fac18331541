"""benchmarks/policies_simulated.py: its quick run, the cost of a message, and gaps to the optimum that add up."""

from __future__ import annotations

import math
import subprocess
import sys
from types import ModuleType

import pytest

from support.benchmark_scripts import BENCHMARKS, load_benchmark

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
