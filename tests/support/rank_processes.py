"""Ranks as processes that share what all of them import: loading torch takes seconds, and forking none.

Every rank is a process of its own, forked from a server that has imported torch and nothing has run in.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

_SHARED = ["torch", "torch._dynamo", "torch.distributed.fsdp", "coppice.torch", "coppice.training.torch"]


def rank_codes(
    script: Path,
    arguments: Sequence[Sequence[object]],
    logs: Sequence[Path],
    *,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 500,
) -> list[int]:
    """Run ``script`` once for every rank, all at once; how each ended: its status, or less the signal.

    Args:
        script: A Python program.
        arguments: Of each rank.
        logs: Where each rank's output and errors go.
        variables: Of the environment, added to those of this process.
        timeout_s: All must have ended by then.

    Raises:
        TimeoutError: If one has not.
    """
    ranks = [
        _context().Process(
            target=_run, args=(str(script), [str(each) for each in words], str(log), dict(variables or {}))
        )
        for words, log in zip(arguments, logs, strict=True)
    ]
    end = time.monotonic() + timeout_s
    try:
        for rank in ranks:
            rank.start()
        for number, rank in enumerate(ranks):
            rank.join(max(0.0, end - time.monotonic()))
            if rank.exitcode is None:
                raise TimeoutError(
                    f"rank {number} of {script.name} has not ended: {logs[number].read_text()}"
                )
        return [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            if rank.is_alive():
                rank.kill()
                rank.join()


@cache
def _context() -> Any:
    """A server with the modules, one for all tests of a process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_SHARED)
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    return context


def _run(script: str, words: list[str], log: str, variables: dict[str, str]) -> None:
    """As `python SCRIPT WORDS > LOG 2>&1` would."""
    gc.freeze()  # hundreds of thousands of objects of torch, which would be gone through again and again
    os.environ.update(variables)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv[:] = [script, *words]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
