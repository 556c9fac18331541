"""However a sweep ends, no rank stays, and its file can be gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coppice.tuning.records import decode_runs
from run.engines.mpi.launching import HOME, environment, reason_to_skip


def workers(output: Path) -> list[str]:
    """Processes whose command line names the output."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(output) in command and "coppice.tuning.worker" in command:
                found.append(entry.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("library", ["open-mpi", "mpich"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_stays(library: str, how: signal.Signals, tmp_path: Path) -> None:
    reason = reason_to_skip(library)
    if reason:
        pytest.skip(reason)
    output = tmp_path / "runs.jsonl"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "coppice", "tune", "sweep", "--library", library, "--ranks", "2"),
            *("-b", "1K", "-e", "256M", "-f", "2", "-n", "5", "-o", str(output)),
            *("--launcher", str(HOME / library / "bin" / "mpiexec")),
        ],
        env={**os.environ, **environment(library)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 300
        while not output.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert output.exists()
        assert workers(output)
        process.send_signal(how)
        code = process.wait(300)
    finally:
        process.kill()
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + 120
    while workers(output) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers(output)
    assert decode_runs(output.read_bytes(), file="runs")[0]
