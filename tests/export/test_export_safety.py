"""Exports with default options hang at no size from 1 KiB to 4 GiB, or say up to which they do not."""

from __future__ import annotations

import pytest

from support.benchmark_scripts import BENCHMARKS, load_benchmark


@pytest.fixture(name="safety")
def fixture_safety(monkeypatch: pytest.MonkeyPatch):
    """The script that makes the table."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return load_benchmark("export_safety")


def test_a_preset_whose_exports_hung(safety) -> None:
    """All sends first, the all-reduce of a DGX-1V stands still for two targets."""
    [(label, topology)] = safety.topologies(8, "dgx-1v")
    found = list(safety.verdicts(topology))
    assert label == "dgx-1v"
    assert len(found) == 22
    assert {verdict.word for *_, verdict in found} == {safety.SAFE}
    assert sum(verdict.sends_first for *_, verdict in found) == 2


@pytest.mark.slow
def test_every_preset(safety) -> None:
    for label, topology in safety.topologies(64, "*"):
        for collective, target, verdict in safety.verdicts(topology):
            assert verdict.word != safety.HANGS, (label, collective, target)
