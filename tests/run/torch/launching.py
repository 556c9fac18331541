"""Running a script as several ranks, and reading what each of them has to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run_ranks(
    script: str,
    ranks: int,
    folder: Path,
    *arguments: str,
    timeout_s: float = 300,
    killed: tuple[int, ...] = (),
    variables: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Run ``script RANK RANKS FOLDER ARGUMENTS`` for every rank; what each wrote to ``FOLDER/RANK.json``.

    Args:
        script: A script beside this file.
        ranks: Number of ranks.
        folder: An empty directory.
        arguments: Further arguments.
        timeout_s: All must have ended by then, in seconds.
        killed: Ranks that end by a signal or an exit status of their own; all others must end with status 0.
        variables: Further variables.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "COPPICE_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(HERE),
        **(variables or {}),
    }
    logs = [folder / f"{rank}.log" for rank in range(ranks)]
    processes = []
    for rank, log in enumerate(logs):
        command = [sys.executable, str(HERE / script), str(rank), str(ranks), str(folder), *arguments]
        with log.open("w") as file:
            processes.append(
                subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment)
            )
    end = time.monotonic() + timeout_s
    try:
        codes = [process.wait(max(0.1, end - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    survivors = [rank for rank in range(ranks) if rank not in killed]
    failed = [rank for rank in survivors if codes[rank]]
    assert not failed, "\n".join(f"rank {rank}: {codes[rank]}\n{logs[rank].read_text()}" for rank in failed)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in survivors]
