"""Every collective on generated topologies over gloo, by threads and by processes, computes what NumPy does."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (TORCH=0)")

import torch

from coppice.collectives import Collective
from coppice.run.datatype import DataType
from coppice.run.torch_engine import TorchEngine
from generated_calls import calls_of

WORKER = Path(__file__).parents[2] / "generated_worker.py"
EVERY_PAIR = len(Collective) * len(DataType)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_every_collective_with_every_type(ranks: int) -> None:
    calls, store = calls_of(ranks, EVERY_PAIR, first=5000), torch.distributed.HashStore()
    found: list[Any] = ["hangs"] * ranks

    def serve(rank: int) -> None:
        engine = TorchEngine(store, rank, ranks, exchange_timeout_s=60)
        try:
            found[rank] = next((fault for call in calls if (fault := call.run(engine))), "right")
        except Exception as error:  # noqa: BLE001  (it is the result)
            found[rank] = error
        finally:
            engine.close()

    threads = [threading.Thread(target=serve, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == ["right"] * ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 9))
def test_many_calls_of_processes(tmp_path: Path, ranks: int) -> None:
    calls = calls_of(ranks, 3 * EVERY_PAIR, first=6000)
    (tmp_path / "calls").write_bytes(pickle.dumps(calls))
    command = [sys.executable, str(WORKER), "torch", str(tmp_path / "calls"), str(tmp_path)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(WORKER.parent), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(ranks)
    ]
    try:
        told = [process.communicate(timeout=500)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert told == [f"{len(calls)} calls right\n"] * ranks
