"""Groups of ranks, as threads of this process or as processes, and what became of each rank."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.generated_calls import Call
from support.paths import TESTS

GENERATED_WORKER = Path(__file__).with_name("generated_worker.py")


def in_threads(ranks: int, work: Callable[[int], Any], *, patience_s: float = 120) -> list[Any]:
    """What ``work(rank)`` returns or raises, each rank a thread; a rank that hangs fails the test."""
    found: list[Any] = ["hangs"] * ranks

    def serve(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except BaseException as error:  # noqa: BLE001  (it is the result)
            found[rank] = error

    threads = [threading.Thread(target=serve, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_s)
    assert not any(thread.is_alive() for thread in threads), found
    return found


def by_engines(engines: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    """What ``work(engine)`` returns or raises on every rank; the engine of a rank that fails is closed."""

    def serve(rank: int) -> Any:
        try:
            return work(engines[rank])
        except BaseException:
            engines[rank].close()
            raise

    return in_threads(len(engines), serve)


def in_processes(
    commands: Sequence[Sequence[str]],
    *,
    variables: Mapping[str, str],
    folder: Path | None = None,
    timeout_s: float = 120,
) -> list[str]:
    """What each rank's command prints, errors included.

    Args:
        commands: One for every rank.
        variables: Added to those of this process.
        folder: Where they run, None for here.
        timeout_s: Each must have ended so long after the one before.
    """
    processes = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        return [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def calls_in_processes(engine: str, calls: Sequence[Call], ranks: int, folder: Path) -> list[str]:
    """What each rank prints that carries out the calls by ``engine``, shm or torch; ``folder`` is empty."""
    (folder / "calls").write_bytes(pickle.dumps(calls))
    command = [sys.executable, str(GENERATED_WORKER), engine, str(folder / "calls"), str(folder)]
    return in_processes(
        [[*command, str(rank), str(ranks)] for rank in range(ranks)],
        variables={"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        timeout_s=500,
    )
