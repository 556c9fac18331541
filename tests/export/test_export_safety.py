"""Exports with default options hang at no size from 1 KiB to 4 GiB, or say up to which they do not."""

from __future__ import annotations

import pytest

from coppice.collectives import Collective
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


@pytest.mark.parametrize(
    ("only", "exports"),
    [
        ("dgx-h100 x 16", 6),
        pytest.param("dgx-a100 x 32", 4, marks=pytest.mark.slow),
        pytest.param("torus of 8 x 16", 4, marks=pytest.mark.slow),
    ],
)
def test_clusters_of_128_and_256_ranks(safety, only: str, exports: int) -> None:
    """A part of the table of large clusters."""
    [(label, topology)] = safety.large_topologies(only)
    assert label == only
    assert topology.num_ranks in (128, 256)
    chosen = {
        6: (Collective.ALL_GATHER, Collective.BROADCAST),
        4: (Collective.BROADCAST, Collective.REDUCE),
    }[exports]
    targets = ("rccl", "azure-executor", "msccl") if exports == 6 else ("rccl", "msccl")
    found = list(safety.verdicts(topology, chosen, targets))
    assert len(found) == exports
    assert {verdict.word for *_, verdict in found} <= {safety.SAFE, safety.LIMITED}


def test_all_to_all_of_many_ranks_on_direct_links_is_left_out(safety) -> None:
    assert Collective.ALL_TO_ALL not in safety.judged_collectives("torus of 8 x 16")
    assert Collective.ALL_TO_ALL in safety.judged_collectives("dgx-h100 x 16")
    assert Collective.ALL_TO_ALL in safety.judged_collectives("torus")


@pytest.mark.slow
def test_every_preset(safety) -> None:
    for label, topology in safety.topologies(64, "*"):
        for collective, target, verdict in safety.verdicts(topology):
            assert verdict.word != safety.HANGS, (label, collective, target)
