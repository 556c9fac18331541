"""Every collective on generated topologies over gloo, by threads and by processes, computes what NumPy does."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")

import torch

from coppice.run.engines.torch.engine import TorchEngine
from support.generated_calls import EVERY_PAIR, calls_of
from support.rank_groups import calls_in_processes, in_threads


@pytest.mark.parametrize(
    "ranks", [1, 2, 3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (5, 8))]
)
def test_every_collective_with_every_type(ranks: int) -> None:
    calls, store = calls_of(ranks, EVERY_PAIR, first=5000), torch.distributed.HashStore()

    def work(rank: int) -> str:
        engine = TorchEngine(store, rank, ranks, exchange_timeout_s=60)
        try:
            return next((fault for call in calls if (fault := call.run(engine))), "right")
        finally:
            engine.close()

    assert in_threads(ranks, work) == ["right"] * ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
def test_many_calls_of_processes(tmp_path: Path, ranks: int) -> None:
    calls = calls_of(ranks, 3 * EVERY_PAIR, first=6000)
    assert calls_in_processes("torch", calls, ranks, tmp_path) == [f"{len(calls)} calls right\n"] * ranks
