"""Child processes that end with this process, together with their own children."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1


def end_with_parent(how: signal.Signals) -> Callable[[], None]:
    """``preexec_fn`` that signals the child when its parent ends (Linux)."""

    def prepare() -> None:
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how)

    return prepare


def stop(processes: Sequence[subprocess.Popen[Any]], *, last_words_s: float) -> None:
    """Terminate the sessions of running processes, then kill them.

    Args:
        processes: Each was started in a session of its own.
        last_words_s: How long each way is waited for, in seconds.
    """
    for how in (signal.SIGTERM, signal.SIGKILL):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            try:
                os.killpg(process.pid, how)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + last_words_s
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
